"""contract_of: pure, total on what it knows, clear about the rest."""

from __future__ import annotations

import inspect

import pytest
import torch

import samebits
from samebits.contract import (
    CUDA_FMA,
    AttentionContract,
    Balanced,
    Chain,
    IeeeFma,
    Lanes,
    LinearContract,
    RowContract,
    Segment,
    Split,
    hopper_mma,
)
from samebits.contract.rows import FORMULAS, HOPPER_ROW_TREE
from samebits.errors import ContractError, DTypeError
from samebits.plan import contract_of
from samebits.plan.contracts import LINEAR_OPS, ROW_OPS, hopper_tree


def test_it_is_at_the_front_door() -> None:
    assert samebits.contract_of is contract_of
    assert "contract_of" in samebits.__all__


def test_it_cannot_be_asked_about_a_batch() -> None:
    assert set(inspect.signature(contract_of).parameters) == {
        "op", "dtype", "kv_dtype", "n", "k", "head_dim", "value_dim", "out_dtype", "activation",
        "tree", "scaling", "device",
    }  # fmt: skip


@pytest.mark.parametrize("op", sorted(LINEAR_OPS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cpu_has_one_tree_for_every_weight(op: str, dtype: torch.dtype) -> None:
    found = {contract_of(op, n=n, k=k, dtype=dtype) for n in (1, 4096) for k in (0, 7, 14336)}
    assert found == {contract_of(op, dtype=dtype)}
    (contract,) = found
    assert isinstance(contract, LinearContract)
    assert (contract.tree, contract.arithmetic) == (Lanes(16), IeeeFma())
    assert contract.epilogue == ("alpha", "bias")


@pytest.mark.parametrize(
    ("n", "k", "tree"),
    [
        (1024, 3072, Split(4)), (576, 7168, Split(4)), (256, 7168, Split(4)),
        (2112, 7168, Split(4)), (896, 4864, Split(4)), (1, 2048, Split(4)),
        (4096, 4096, Chain()), (6144, 4096, Chain()), (28672, 4096, Chain()),
        (4096, 14336, Chain()), (2113, 7168, Chain()), (768, 768, Chain()), (1, 2047, Chain()),
    ],
)  # fmt: skip
def test_skinny_weights_with_a_long_k_are_split_on_hopper(
    n: int, k: int, tree: Split | Chain
) -> None:
    assert hopper_tree(n, k) == tree
    contract = contract_of("linear", n=n, k=k, dtype=torch.bfloat16, device="sm_90")
    assert isinstance(contract, LinearContract)
    assert contract.tree == tree
    assert contract.arithmetic == hopper_mma("bf16")


def test_other_types_on_hopper() -> None:
    fp8 = contract_of("linear", n=4096, k=7168, dtype=torch.float8_e4m3fn, device="h200")
    assert isinstance(fp8, LinearContract)
    assert (fp8.tree, fp8.scaling, fp8.output) == (Segment(128), "block", "bf16")
    fp32 = contract_of("linear", n=64, k=64, dtype=torch.float32, device="sm_90")
    assert isinstance(fp32, LinearContract)
    assert (fp32.tree, fp32.arithmetic) == (Chain(), CUDA_FMA)
    tf32 = contract_of("mm", n=64, k=64, dtype="tf32", device="sm_90")
    assert isinstance(tf32, LinearContract)
    assert (tf32.arithmetic, tf32.output) == (hopper_mma("tf32"), "fp32")


def test_attention_and_rows() -> None:
    cpu = contract_of("attention", head_dim=128, dtype=torch.bfloat16)
    assert isinstance(cpu, AttentionContract)
    assert (cpu.leaf, cpu.exp2, cpu.probabilities, cpu.positions) == (512, "poly", "bf16", "seen")
    gpu = contract_of("attention", head_dim=128, dtype=torch.bfloat16, device="sm_90")
    assert isinstance(gpu, AttentionContract)
    assert (gpu.arithmetic, gpu.positions) == (hopper_mma("bf16"), "absolute")
    for op in ROW_OPS:
        row = contract_of(op, dtype=torch.float16, out_dtype=torch.float32)
        assert isinstance(row, RowContract)
        assert str(row.tree) == "segment(1024) of lanes(16) folded pairwise"
        assert (row.input, row.output) == ("fp16", "fp32")
        gpu_row = contract_of(op, dtype=torch.float16, device="sm_90")
        assert isinstance(gpu_row, RowContract)
        assert gpu_row.tree == HOPPER_ROW_TREE
        assert str(gpu_row.tree) == "segment(8192) of lanes(1024, neighbours) folded pairwise"
        assert gpu_row.arithmetic == CUDA_FMA


def test_every_row_formula_has_a_name() -> None:
    assert frozenset(FORMULAS) == ROW_OPS


def test_a_contract_is_found_once() -> None:
    a, b = (contract_of("linear", n=8, k=8, dtype=d) for d in (torch.float32, "fp32"))
    assert a is b


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ({"op": "cdist", "dtype": "fp32"}, ContractError, "cdist"),
        ({"op": "linear", "dtype": "fp32", "device": "sm_70"}, ContractError, "sm_70"),
        ({"op": "linear", "dtype": "fp32", "device": "cuda:0"}, ContractError, "cuda:0"),
        ({"op": "linear", "dtype": torch.float64}, DTypeError, "float64"),
        ({"op": "linear", "dtype": torch.int8}, DTypeError, "int8"),
        ({"op": "linear", "dtype": "e4m3"}, ContractError, "CPU engine takes"),
        ({"op": "linear", "dtype": "bf16", "device": "sm_90"}, ContractError, "give n and k"),
        ({"op": "linear", "dtype": "bf16", "n": -1}, ContractError, "negative"),
        ({"op": "linear", "dtype": "bf16", "activation": "swish"}, ContractError, "swish"),
        ({"op": "sum", "dtype": "bf16", "activation": "relu"}, ContractError, "relu"),
        ({"op": "linear", "dtype": "bf16", "out_dtype": "e4m3"}, ContractError, "results"),
        ({"op": "softmax", "dtype": "e4m3", "device": "sm_90"}, ContractError, "row reductions"),
        ({"op": "attention", "dtype": "fp32", "device": "sm_90"}, ContractError, "bf16 or fp16"),
        ({"op": "attention", "dtype": "bf16", "out_dtype": "fp32"}, ContractError, "q, k, v"),
    ],
)
def test_what_is_not_covered_is_said(
    args: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        contract_of(**args)  # type: ignore[arg-type]


def test_the_caller_may_ask_for_a_tree_or_a_scaling_on_a_gpu() -> None:
    shape = {"n": 4096, "k": 4096, "device": "sm_90"}
    assert contract_of("linear", dtype="bf16", tree=Balanced(8), **shape).tree == Balanced(8)
    assert contract_of("mm", dtype="fp16", tree="segment(512)", **shape).tree == Segment(512)
    row = contract_of("linear", dtype="e4m3", scaling="row", **shape)
    assert (row.tree, row.scaling) == (Chain(), "row")
    with pytest.raises(ContractError, match="scales are for fp8"):
        contract_of("linear", dtype="bf16", scaling="row", **shape)
    with pytest.raises(ContractError, match="leaves are chains"):
        contract_of("linear", dtype="bf16", tree="lanes(16)", **shape)
    with pytest.raises(ContractError, match="the tree is lanes"):
        contract_of("linear", dtype="bf16", tree="chain")
    with pytest.raises(ContractError, match="for matrix products"):
        contract_of("softmax", dtype="bf16", tree="chain")
