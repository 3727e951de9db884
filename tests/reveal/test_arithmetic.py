"""What an operation does is measured: each property against machines that have it or not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from samebits.contract import IEEE_FMA, BlockFma, LinearContract, Split, hopper_mma
from samebits.contract.tree import CHAIN
from samebits.reveal import reveal


def found(fn: Callable[..., object], op: str = "sum", **sizes: object) -> dict[str, str]:
    result = reveal(fn, op=op, **sizes)  # type: ignore[arg-type]
    return {finding.name: finding.value for finding in result.arithmetic}


def chained(step: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Tensor], Tensor]:
    """A chain over the last axis of [m, k] with a given addition."""

    def total(x: Tensor) -> Tensor:
        columns = x.float().numpy().T
        acc = columns[0]
        for column in columns[1:]:
            acc = step(acc, column)
        return torch.from_numpy(np.ascontiguousarray(acc, np.float32))

    return total


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
def test_a_tensor_core(dtype: str) -> None:
    contract = LinearContract(CHAIN, hopper_mma(dtype), dtype, "fp32")
    got = found(contract.evaluate, "linear", m=1, n=64, k=128, dtype=dtype)
    block = {"bf16": 16, "fp16": 16, "tf32": 8}[dtype]
    assert got["block"] == f"{block} addends"
    assert got["accumulator"] == "chained"
    assert got["fraction bits of a block"] == "25"
    assert got["significant bits"] == "24 (fp32)"
    assert got["rounding"] == "toward zero"


def test_another_grid_is_seen() -> None:
    narrow = BlockFma("other", "bf16", block=8, fraction=20, significand=14)
    contract = LinearContract(Split(2), narrow, "bf16", "fp32")
    got = found(contract.evaluate, "linear", m=1, n=64, k=512, dtype="bf16")
    assert got["block"] == "8 addends"
    assert got["fraction bits of a block"] == "20"
    assert got["significant bits"].startswith("14")


def test_blocks_that_are_added_afterwards_are_restarted() -> None:
    contract = LinearContract(CHAIN, hopper_mma("bf16"), "bf16", "fp32")

    def restarted(x: Tensor, w: Tensor) -> Tensor:
        parts = [contract.evaluate(x[:, i : i + 16], w[:, i : i + 16]) for i in range(0, 128, 16)]
        acc = parts[0]
        for part in parts[1:]:
            acc = acc + part
        return acc

    assert found(restarted, "linear", m=1, n=64, k=128, dtype="bf16")["accumulator"] == "restarted"


def test_ieee_additions_and_subnormals() -> None:
    got = found(chained(np.add), k=40, m=4)
    assert got["significant bits"] == "24 (fp32)"
    assert got["rounding"] == "to nearest even"
    assert got["subnormals"] == "kept"
    assert got["partial results"] == "not narrowed"

    def flushing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = a + b
        return np.where(np.abs(total) < 2.0**-126, np.float32(0), total)

    assert found(chained(flushing), k=40, m=4)["subnormals"].startswith("flushed to zero")


def test_directed_rounding_is_named() -> None:
    def rounded(a: np.ndarray, b: np.ndarray, to: str) -> np.ndarray:
        exact = a.astype(np.float64) + b
        near = exact.astype(np.float32)
        if to == "zero":
            over = np.abs(near.astype(np.float64)) > np.abs(exact)
            return np.where(over, np.nextafter(near, np.float32(0)), near)
        low = near.astype(np.float64) < exact
        return np.where(low, np.nextafter(near, np.float32(np.inf)), near)

    assert (
        found(chained(lambda a, b: rounded(a, b, "zero")), k=24, m=4)["rounding"] == "toward zero"
    )
    assert found(chained(lambda a, b: rounded(a, b, "up")), k=24, m=4)["rounding"] == "up"


def test_products_fused_or_not() -> None:
    def separate(x: Tensor, w: Tensor) -> Tensor:
        return chained(np.add)((x[0] * w).reshape(-1, w.shape[1]))[None]

    fused = LinearContract(CHAIN, input="fp32", output="fp32", arithmetic=IEEE_FMA)
    sizes = {"m": 1, "n": 8, "k": 40}
    assert found(fused.evaluate, "linear", **sizes)["products"] == "fused multiply-add"
    assert found(separate, "linear", **sizes)["products"] == "multiplied and rounded, then added"


def test_wider_and_narrower_sums() -> None:
    wide = found(lambda x: x.double().cumsum(-1)[:, -1].float(), k=40, m=4)
    assert wide["significant bits"] == "53 (fp64)"

    def narrowed(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        parts = [chained(np.add)(x[:, :half]), chained(np.add)(x[:, half:])]
        return parts[0].bfloat16().float() + parts[1].bfloat16().float()

    got = found(narrowed, k=40, m=4)
    assert got["partial results"] == "narrowed to bf16"
    assert found(chained(np.add), k=40, m=4)["partial results"] == "not narrowed"
