"""Device classes as data, against the published outputs of the chips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samebits.bits import equal as same_bits
from samebits.contract import BlockFma, LinearContract, hopper_mma
from samebits.contract.block import block_chain
from samebits.contract.devices import PAPER, arithmetic_of, described
from samebits.contract.operands import values
from samebits.contract.text import parse
from samebits.errors import ContractError
from samebits.plan import contract_of

VECTORS = np.load(Path(__file__).with_name("tensor_cores.npz"))
CASES = sorted({name.rpartition(" ")[0] for name in VECTORS.files})


def case(name: str) -> tuple[Any, ...]:
    device, kind = name.split()
    a, b = (values(VECTORS[f"{name} {x}"], kind, x) for x in "ab")
    return arithmetic_of(device, kind), a, b, VECTORS[f"{name} c"].view(np.float32)


def stepped(step: BlockFma, a: Any, b: Any, c: Any) -> Any:
    """Each vector's dot product, added to its c."""
    dots = [
        block_chain(a[i : i + 1], b[i : i + 1], step, c[i : i + 1, None]) for i in range(len(a))
    ]
    return np.array([d[0, 0] for d in dots], np.float32).view(np.uint32)


@pytest.mark.parametrize("name", CASES)
def test_a_chips_own_outputs(name: str) -> None:
    step, a, b, c = case(name)
    assert (stepped(step, a, b, c) == VECTORS[f"{name} d"]).all()


def test_one_generation_is_not_another() -> None:
    """The vectors can tell: what explains an A100 does not explain a B200."""
    for name, other in (("sm_80 bf16", "sm_70"), ("sm_80 bf16", "sm_100"), ("sm_89 fp16", "sm_70"),
                        ("sm_100 bf16", "sm_80"), ("sm_70 fp16", "sm_80")):  # fmt: skip
        kind = name.split()[1]
        if kind not in described()[other].arithmetic:
            continue
        _, a, b, c = case(name)
        assert (stepped(arithmetic_of(other, kind), a, b, c) != VECTORS[f"{name} d"]).any()


def test_every_file_is_read() -> None:
    assert set(described()) == {"sm_70", "sm_80", "sm_89", "sm_90", "sm_100", PAPER}
    for found in described().values():
        assert found.source and found.chips and found.arithmetic
        assert (found.machine is not None) == (found.name == PAPER)
    assert arithmetic_of("H200", "bf16") == hopper_mma("bf16")


def test_what_is_not_described_is_refused() -> None:
    with pytest.raises(ContractError, match="no arithmetic of sm_70 for bf16: use one of fp16"):
        arithmetic_of("V100", "bf16")
    with pytest.raises(ContractError, match=r"sm_100 for e4m3: the published outputs"):
        arithmetic_of("B200", "e4m3")
    with pytest.raises(ContractError, match=r"no device class 'gfx942' .* use one of"):
        arithmetic_of("gfx942", "bf16")
    with pytest.raises(ContractError, match="of this class products are described"):
        contract_of("softmax", dtype="bf16", device="a100")
    with pytest.raises(ContractError, match="no contracts for device class 'sm_75'"):
        contract_of("linear", n=8, k=8, dtype="bf16", device="sm_75")


@pytest.mark.parametrize("device", ["v100", "a100", "ada", "b200", PAPER])
def test_contracts_of_other_chips_are_evaluated_and_bounded(device: str) -> None:
    contract = contract_of("linear", n=24, k=1024, dtype="fp16", device=device)
    assert isinstance(contract, LinearContract)
    assert parse(contract.text) == contract
    g = torch.Generator().manual_seed(1)
    x, w = (torch.randn(r, 1024, generator=g).half() for r in (3, 24))
    y = contract.evaluate(x, w)
    assert isinstance(y, torch.Tensor)
    within = contract.interval(x, w, order="any")
    assert within.contains(y).all()
    exact = x.double() @ w.double().T
    assert (within.low <= exact.numpy()).all() and (exact.numpy() <= within.high).all()
    hopper = contract_of("linear", n=24, k=1024, dtype="fp16", device="h100", tree="chain")
    other = hopper.evaluate(x, w)
    assert isinstance(other, torch.Tensor)
    assert same_bits(y, other) == (device == "b200")  # one step, by two names


def test_fp32_on_any_gpu_is_the_chain_of_its_cores() -> None:
    there = contract_of("linear", n=8, k=8, dtype="fp32", device="a100")
    assert there == contract_of("linear", dtype="fp32", device="portable")
