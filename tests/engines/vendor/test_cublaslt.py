"""cuBLASLt with a pinned algorithm: what is taken, what is refused, and that the bits are right."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import torch

import interpreter
from samebits import bits
from samebits.contract import Chain, ContractKey, LinearContract, Split, hopper_mma
from samebits.engines.schedule import Schedule
from samebits.engines.vendor import cublaslt, tuning
from samebits.engines.vendor.schedule import CublasLt
from samebits.errors import DeviceError
from samebits.plan import contract_for

needs_gpu = pytest.mark.skipif(interpreter.INTERPRETED, reason="needs a GPU")
BF16, FP32 = torch.bfloat16, torch.float32


def contract(n: int = 64, k: int = 64, dtype: str = "bf16", tree: Any = None) -> LinearContract:
    if tree is not None:
        return LinearContract(tree, hopper_mma(dtype), dtype, dtype)
    out = {"e4m3": "bf16", "tf32": "fp32"}.get(dtype, dtype)
    found = contract_for(
        ContractKey(op="linear", dtype=dtype, out_dtype=out, device="sm_90", n=n, k=k)
    )
    assert isinstance(found, LinearContract)
    return found


def zeros(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def operands(**change: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": zeros(32, 64), "w": zeros(64, 64), "y": zeros(32, 64), **change}


def test_schedule_round_trip() -> None:
    schedule = CublasLt(version=130100, algorithm=66, tile=32, stages=35, cluster=3, swizzle=1)
    raw = msgspec.json.encode(schedule)
    assert msgspec.json.decode(raw, type=CublasLt) == schedule
    assert b'"kind":"cublaslt"' in raw and b"workspace" not in raw
    assert issubclass(CublasLt, Schedule) and schedule.library == "cublaslt"


def test_no_schedule_can_split() -> None:
    schedule = CublasLt(version=1, algorithm=2, tile=3, stages=4, cluster=5, inner=6, swizzle=7)
    assert schedule.configuration() == (2, 3, 1, 0, 7, 0, 4, 6, 5)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "cublaslt", "version": "x", "algorithm": 2}, type=CublasLt)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": zeros(32, 72)[:, 1:65]}, "the address of x is not a multiple of 16"),
        ({"w": zeros(64, 65)[:, :64]}, r"strides \(65, 1\) of w are not multiples of 16 bytes"),
        ({"y": zeros(32, 68)[:, :64]}, r"strides \(68, 1\) of y are not multiples"),
        ({"x": zeros(32, 128)[:, ::2]}, "neither rows nor columns of x are contiguous"),
        ({"x": zeros(1, 64).expand(32, 64)}, r"strides \(0, 1\) of x"),
        ({"y": zeros(64, 32).t()}, "rows of y are not contiguous"),
        ({"x": zeros(32, 64, dtype=torch.float64)}, "x is torch.float64"),
        ({"x": zeros(0, 64), "y": zeros(0, 64)}, "an operand is empty"),
        ({"c": zeros(64, dtype=FP32).expand(32, 64)}, "c is torch.float32, y torch.bfloat16"),
        ({"c": zeros(72)[1:65].expand(32, 64)}, "the address of c"),
        ({"c": zeros(32, 1).expand(32, 64)}, "neither a row of bias nor those of y"),
        ({"c": zeros(32, 128)[:, :64]}, "neither a row of bias nor those of y"),
    ],
)
def test_operands_that_are_not_taken(change: dict[str, torch.Tensor], text: str) -> None:
    given = operands(**change)
    why = cublaslt.refusal(contract(), **given)
    assert why is not None and re.search(text, why), why
    assert cublaslt.run(contract(), CublasLt(version=1, algorithm=66), **given) is False


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"x": zeros(64, 32).t()},
        {"w": zeros(64, 64).t()},
        {"x": zeros(1, 64), "y": zeros(1, 64)},
        {"x": zeros(32, 128)[:, 64:]},
        {"c": zeros(64).expand(32, 64)},
        {"c": zeros(32, 64)},
        {"y": zeros(32, 64, dtype=FP32)},
        {"x": zeros(3, 32, 64), "w": zeros(64, 64).expand(3, 64, 64), "y": zeros(3, 32, 64)},
    ],
)
def test_operands_that_are_taken(change: dict[str, torch.Tensor]) -> None:
    assert cublaslt.refusal(contract(), **operands(**change)) is None


def test_contracts_that_are_not_taken() -> None:
    for tree in (Chain(), Split(4)):
        assert cublaslt.refusal(contract(tree=tree), **operands()) is None
    assert cublaslt.refusal(contract(dtype="e4m3"), **operands()) is not None
    assert cublaslt.refusal(contract(dtype="tf32"), **operands()) == "the contract multiplies tf32"
    relu = LinearContract(
        Chain(), hopper_mma("bf16"), "bf16", "bf16", epilogue=("alpha", "bias", "relu")
    )
    assert cublaslt.refusal(relu, **operands()) is not None


@pytest.mark.skipif(not interpreter.INTERPRETED, reason="there is a GPU")
def test_without_the_library_the_reason_is_given() -> None:
    with pytest.raises(DeviceError, match="libcublasLt"):
        cublaslt.run(contract(), CublasLt(version=1, algorithm=66), **operands())


@needs_gpu
@pytest.mark.parametrize("rows", [3, 4096])
def test_the_first_call_may_be_captured(rows: int) -> None:
    n, k = 4096, 512
    x, w = (torch.randn(m, k, device="cuda").to(BF16) for m in (rows, n))
    y, eager = (torch.zeros(rows, n, device="cuda", dtype=BF16) for _ in range(2))
    schedule = tuning.candidates(rows, n, k, BF16)[-1]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert cublaslt.run(contract(n, k), schedule, x, w, y)
    assert y.eq(0).all()
    graph.replay()
    assert cublaslt.run(contract(n, k), schedule, x, w, eager)
    assert bits.equal(y, eager) and not y.eq(0).all()
