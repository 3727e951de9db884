"""Products that check their own paths: the same bits, no false alarm, and every fault is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from gemm_samples import contract, operand
from interpreter import INTERPRETED
from samebits import bits
from samebits.contract import Balanced, Chain, LinearContract, Segment, Split, Tree
from samebits.engines import tickets
from samebits.engines.leaves import Leaves
from samebits.engines.triton import path
from samebits.engines.triton.linear import kernel, run, tile
from samebits.engines.triton.linear.schedule import GemmSchedule

DEVICE = torch.device("cpu" if INTERPRETED else "cuda:0")
SPLIT = GemmSchedule(block_m=16, block_n=64, block_k=128, swap=True, split=True)
FOLDED = GemmSchedule(block_m=64, block_n=64, block_k=64)
PERSISTENT = GemmSchedule(block_m=128, block_n=64, block_k=64, warps=8, persistent=True)
KINDS = (SPLIT, FOLDED, PERSISTENT)
X, W = operand("bf16", 19, 1160, seed=1), operand("bf16", 72, 1160, seed=2)


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """Paths are checked, and nothing is left of earlier tests."""
    run._PLANS.clear()
    tickets.check(True)
    tickets.take(DEVICE)
    yield
    tickets.check(False)
    run._PLANS.clear()


def product(agreed: LinearContract, schedule: GemmSchedule) -> torch.Tensor:
    y = torch.full((19, 72), torch.nan, dtype=torch.float32, device=DEVICE)
    run.run(agreed, schedule, X.to(DEVICE), W.to(DEVICE), y)
    return y.cpu()


def wrong() -> int:
    return sum(n for _, n in tickets.take(DEVICE))


@pytest.mark.parametrize("schedule", KINDS, ids=lambda s: s.split * "split" or "folded")
@pytest.mark.parametrize(
    "tree", [Chain(), Split(4), Balanced(4), Balanced(8), Segment(200), Segment(512)], ids=str
)
def test_right_products_are_right(tree: Tree, schedule: GemmSchedule) -> None:
    agreed = contract("bf16", tree)
    y = product(agreed, schedule)
    assert wrong() == 0
    tickets.check(False)
    run._PLANS.clear()
    assert bits.equal(product(agreed, schedule), y)


@pytest.mark.parametrize("schedule", KINDS, ids=lambda s: s.split * "split" or "folded")
@pytest.mark.parametrize(
    "leaves",
    [Leaves(2, 640, False), Leaves(8, 256, False), Leaves(4, 320, False), Leaves(4, 384, True)],
    ids=["2 leaves", "8 leaves", "other edges", "another fold"],
)
def test_another_tree_is_seen(
    monkeypatch: pytest.MonkeyPatch, schedule: GemmSchedule, leaves: Leaves
) -> None:
    monkeypatch.setattr(run, "_leaves", lambda *_: leaves)
    product(contract("bf16", Split(4)), schedule)
    assert wrong() > 0


honest = tile.close_seal


def interpreted(fn: Callable[..., Any]) -> Any:
    return triton.jit(fn)


needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="kernels are changed in Python")


@needs_interpreter
def test_a_flipped_bit_in_a_partial_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:

    def close_seal(part, seals, index, begin, end):  # type: ignore[no-untyped-def]
        harmed = (part.to(tl.int32, bitcast=True) ^ (1 << 7)).to(tl.float32, bitcast=True)
        first = tl.arange(0, part.shape[1])[None, :] == 0
        honest(tl.where(first & (begin == 0), harmed, part), seals, index, begin, end)

    monkeypatch.setattr(kernel, "close_seal", interpreted(close_seal))
    product(contract("bf16", Split(4)), SPLIT)
    assert wrong() > 0


@needs_interpreter
def test_a_leaf_that_is_not_written_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partial and the seal are those of the call before, in the same memory."""
    kept: dict[Any, torch.Tensor] = {}

    def empty(rows: int, columns: int, dtype: torch.dtype, device: int) -> torch.Tensor:
        return kept.setdefault((rows, columns, dtype), torch.zeros(rows, columns, dtype=dtype))

    monkeypatch.setattr(run, "empty", empty)
    agreed = contract("bf16", Split(4))
    product(agreed, SPLIT)
    assert wrong() == 0

    def close_seal(part, seals, index, begin, end):  # type: ignore[no-untyped-def]
        if begin > 0:
            honest(part, seals, index, begin, end)

    monkeypatch.setattr(kernel, "close_seal", interpreted(close_seal))
    product(agreed, SPLIT)
    assert wrong() > 0


@needs_interpreter
def test_two_leaves_in_one_place_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:

    def close_seal(part, seals, index, begin, end):  # type: ignore[no-untyped-def]
        honest(part, seals, tl.minimum(index, 2), begin, end)

    monkeypatch.setattr(kernel, "close_seal", interpreted(close_seal))
    product(contract("bf16", Split(4)), SPLIT)
    assert wrong() > 0


def test_digests_in_a_kernel_are_the_contracts() -> None:
    from samebits.contract import path as definition

    out = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    for lo, hi, length in ((0, 1400, 512), (700, 5000, 512), (0, 70_001, 512), (3, 4, 256)):
        digest_kernel[(1,)](out, lo, hi, length)
        want = definition.ascending(length, lo, hi, 12345)
        assert out[0].item() & 0xFFFFFFFF == want, (lo, hi)
        assert out[1].item() & 0xFFFFFFFF == definition.leaf(lo, hi)


@triton.jit
def digest_kernel(out, lo, hi, length):
    digest = path.ascending(tl.full((), 12345, tl.uint32), lo, hi, length)
    tl.store(out, digest.to(tl.int32, bitcast=True))
    tl.store(out + 1, path.leaf_word(lo, hi).to(tl.int32, bitcast=True))
