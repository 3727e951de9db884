"""Sums of caches: a bit that flips in what was written is seen, what a cache may do is not."""

from __future__ import annotations

import pytest
import torch
from faulty import events, flip

import samebits
from samebits import guard
from samebits.engines.cpu import _cpu
from samebits.errors import GuardError
from samebits.guard import cache
from samebits.guard.cache import Sums


def filled(dtype: torch.dtype = torch.bfloat16) -> tuple[Sums, torch.Tensor, torch.Tensor]:
    """A cache of 2 sequences, 3 heads and 40 positions, 20 of them written."""
    keys, values = torch.zeros(2, 3, 40, 8, dtype=dtype), torch.zeros(2, 3, 40, 4, dtype=dtype)
    sums = Sums(keys, values)
    for begin in range(0, 20, 5):
        write(sums, keys, values, begin)
    return sums, keys, values


def write(sums: Sums, keys: torch.Tensor, values: torch.Tensor, begin: int) -> None:
    for x in (keys, values):
        x[:, :, begin : begin + 5] = torch.randn_like(x[:, :, begin : begin + 5].float()).to(x)
    sums.write(2, begin, begin + 5)


@pytest.mark.parametrize("which", [0, 1], ids=["keys", "values"])
def test_a_flipped_bit_is_seen(which: int) -> None:
    with samebits.deterministic(guard="sample:1"), events() as heard:
        sums, *held = filled()
        before = guard.counts.cache_checks
        flip(held[which].view(-1)[40 * held[which].shape[3] + 9 * held[which].shape[3] :])
        with pytest.raises(GuardError, match="the first is 9"):
            write(sums, held[0], held[1], 20)
    assert guard.counts.cache_checks == before + 1
    assert [(e.kind, e.verdict) for e in heard] == [("cache", "late")]


def test_appending_cropping_moving_and_starting_again_are_no_faults() -> None:
    with samebits.deterministic(guard="sample:1"), events() as heard:
        sums, keys, values = filled()
        write(sums, keys, values, 20)
        write(sums, keys, values, 10)  # cropped
        for x in (keys, values):
            x.copy_(x[[1, 1]])
        sums.move(torch.tensor([1, 1]))
        write(sums, keys, values, 15)
        write(sums, keys, values, 0)  # another request
        write(sums, keys, values, 5)
    assert not heard


def test_numbers_of_any_type_are_summed() -> None:
    with samebits.deterministic(guard="sample:1"), events() as heard:
        for dtype in (torch.float64, torch.float32, torch.float16, torch.int8):
            sums, keys, values = filled(dtype)
            write(sums, keys, values, 20)
    assert not heard


@pytest.mark.parametrize("apart", [False, True], ids=["cpu", "elsewhere"])
def test_a_flipped_bit_is_seen_after_sequences_moved(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beams move before every token: a sum made anew then would be that of the flipped bit."""
    if apart:
        monkeypatch.setattr(cache, "_together", cache._Apart)
    with samebits.deterministic(guard="sample:1"), events():
        sums, keys, values = filled()
        flip(values[1, 2, 9])
        for x in (keys, values):
            x.copy_(x[[1, 0]])
        sums.move(torch.tensor([1, 0]))
        with pytest.raises(GuardError, match="1 positions, the first is 9"):
            write(sums, keys, values, 20)


def test_a_bit_in_the_last_half_of_a_double_is_seen() -> None:
    with samebits.deterministic(guard="sample:1"), events():
        sums, keys, values = filled(torch.float64)
        flip(keys[1, 2, 19], 7, 62)
        with pytest.raises(GuardError, match="the first is 19"):
            write(sums, keys, values, 20)


@pytest.mark.parametrize("rows, begin, end", [(3, 0, 1), (2, 5, 4), (2, 0, 10), (2, -1, 1)])
def test_sums_stay_in_their_memory(rows: int, begin: int, end: int) -> None:
    x = torch.zeros(2, 1, 9, 4)
    sums = _cpu.CacheSums(2, 1, 9, [(x.data_ptr(), 4, 4)])
    for call in (sums.write, sums.changed):
        with pytest.raises(ValueError, match="no such"):
            call(rows, begin, end)
    with pytest.raises(ValueError, match="no such"):
        sums.move([0, 2])


def test_nothing_is_kept_while_nothing_is_sampled() -> None:
    with samebits.deterministic():
        sums, keys, values = filled()
        assert sums._from is None
        flip(keys)
    with samebits.deterministic(guard="sample:1"):
        write(sums, keys, values, 20)
        flip(keys)  # written before sums began
        write(sums, keys, values, 25)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("width", [1, 67, (1 << 16) + 3])
def test_sums_name_the_positions_that_changed(dtype: torch.dtype, width: int) -> None:
    """Of the lowest numbers, too, whose sums in fewer bits would be the largest."""
    x = torch.full((2, 1, 9, width), torch.iinfo(dtype).min, dtype=dtype)
    y = torch.zeros(2, 1, 9, 4, dtype=torch.int32)
    held = [(t.data_ptr(), t.element_size(), t.shape[3]) for t in (x, y)]
    sums = _cpu.CacheSums(2, 1, 9, held)
    sums.write(2, 0, 9)
    assert sums.changed(2, 0, 9) == []
    x[1, 0, 6, -1] += 1
    x[0, 0, 2, 0] += 1
    y[0, 0, 6, 3] = -1
    assert sums.changed(2, 0, 9) == [2, 6] and sums.changed(2, 3, 6) == []
    sums.write(2, 6, 7)
    assert sums.changed(2, 0, 9) == [2]
