"""The portable contracts as data: what they are, and that no device class is in them."""

from __future__ import annotations

import pytest

from samebits.contract import CUDA_FMA, portable_attention, portable_linear, portable_row
from samebits.contract.text import parse
from samebits.errors import ContractError
from samebits.plan import contract_of
from samebits.plan.contracts import ROW_OPS


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_they_are_read_back_from_their_text(dtype: str) -> None:
    made = [portable_linear(dtype, dtype), portable_attention(dtype)]
    made += [portable_row(op, dtype, "fp32") for op in sorted(ROW_OPS)]
    for contract in made:
        assert parse(contract.text) == contract
        assert contract.arithmetic == CUDA_FMA  # type: ignore[attr-defined]


def test_weights_and_heads_do_not_matter() -> None:
    of = {(n, k): contract_of("linear", n=n, k=k, dtype="bf16", device="portable").id
          for n, k in ((1, 1), (64, 8192), (8192, 64))}  # fmt: skip
    assert len(set(of.values())) == 1
    assert contract_of("linear", dtype="bf16", device="portable").id in of.values()


def test_where_a_gpu_computes_the_same_anyway_it_is_the_same_contract() -> None:
    for op in sorted(ROW_OPS):
        there = contract_of(op, dtype="bf16", device="sm_90")  # type: ignore[call-overload]
        assert there == contract_of(op, dtype="bf16", device="portable")  # type: ignore[call-overload]
    fp32 = contract_of("linear", n=64, k=64, dtype="fp32", device="sm_90")
    assert fp32 == contract_of("linear", dtype="fp32", device="portable")


def test_attention_keeps_p_in_fp32() -> None:
    contract = contract_of("attention", dtype="bf16", head_dim=64, device="portable")
    assert (contract.probabilities, contract.positions, contract.exp2) == ("fp32", "seen", "poly")


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("linear", {"dtype": "e4m3"}),
        ("linear", {"dtype": "tf32"}),
        ("linear", {"dtype": "bf16", "tree": "split(4)"}),
        ("grouped_linear", {"dtype": "bf16"}),
        ("conv2d", {"dtype": "fp32"}),
        ("attention", {"dtype": "bf16", "kv_dtype": "e4m3"}),
        ("sum", {"dtype": "e4m3"}),
    ],
)
def test_what_is_not_portable_is_refused(op: str, options: dict[str, str]) -> None:
    with pytest.raises(ContractError, match="no contract"):
        contract_of(op, n=8, k=8, head_dim=8, device="portable", **options)  # type: ignore[call-overload]
