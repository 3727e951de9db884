"""Masks that are rules: they stand for the bits that transformers would have written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import masking_utils as stock

from samebits.bits import equal as same_bits
from samebits.integrations.transformers.attention import place
from samebits.integrations.transformers.masks import Mask, Rule, mask, pattern
from samebits.ops import attention

PACKED = torch.tensor([[0, 0, 0, 1, 1, 2]])


def rule(**how: Any) -> Rule:
    made = mask(**how)
    assert isinstance(made, Mask)
    return made.rule


@pytest.mark.parametrize(
    "function, causal, window",
    [
        (stock.causal_mask_function, True, None),
        (stock.sliding_window_causal_mask_function(4), True, 4),
        (stock.bidirectional_mask_function, False, None),
        (stock.sliding_window_bidirectional_mask_function(4), False, 5),
    ],
)
def test_patterns_of_transformers_are_read(function: Any, causal: bool, window: int | None) -> None:
    found = pattern(function)
    assert found is not None
    assert (found.causal, found.window, found.packed) == (causal, window, None)


def test_packed_sequences_are_read_and_other_functions_are_not() -> None:
    packed = stock.and_masks(
        stock.causal_mask_function, stock.packed_sequence_mask_function(PACKED)
    )
    found = rule(batch_size=1, q_length=6, kv_length=6, mask_function=packed)
    assert found.segments() == [[(0, 3), (3, 5), (5, 6)]]
    other = stock.or_masks(stock.causal_mask_function, lambda b, h, q, k: k > q + 2)
    assert pattern(other) is None
    assert pattern(stock.and_masks(stock.causal_mask_function, lambda b, h, q, k: k > 1)) is None


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("static", [False, True])
def test_whoever_looks_sees_the_dense_mask(window: int | None, causal: bool, static: bool) -> None:
    function = stock.causal_mask_function if causal else stock.bidirectional_mask_function
    if window is not None:
        function = (
            stock.sliding_window_causal_mask_function(window)
            if causal
            else stock.sliding_window_bidirectional_mask_function(window)
        )
    offset = torch.tensor(2) if static else 2
    seen = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], dtype=torch.bool)
    how: dict[str, Any] = {
        "batch_size": 2, "q_length": 4, "kv_length": 6, "q_offset": offset,
        "mask_function": function, "attention_mask": seen,
    }  # fmt: skip
    made = mask(**how)
    expected = stock.sdpa_mask(**how, allow_is_causal_skip=False)
    if static:
        offset += 4  # a static cache counts on in the tensor it handed out
    assert made.shape == expected.shape and made.dtype is torch.bool
    assert torch.equal(made & True, expected)
    assert torch.equal(made[:, :, 1:, :3], expected[:, :, 1:, :3])
    assert torch.equal(made.clone(), expected)


def test_padding_is_kept_only_where_it_matters() -> None:
    right, left, holes = ([1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1])

    def made(*rows: list[int], causal: bool = True) -> Rule:
        function = stock.causal_mask_function if causal else stock.bidirectional_mask_function
        seen = torch.tensor(rows, dtype=torch.bool)
        return rule(
            batch_size=len(rows), q_length=4, kv_length=4, mask_function=function,
            attention_mask=seen,
        )  # fmt: skip

    assert made([1, 1, 1, 1], right).real is None
    assert made(right, causal=False).real is not None and made(right, causal=False).starts is None
    found = made([1, 1, 1, 1], left).starts
    assert found is not None and found.tolist() == [0, 1]
    assert made(holes).holes and not made(left, right).holes


LEAF = 4


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kept", [0, 6])
@pytest.mark.parametrize("static", [False, True])
def test_placed_keys_stand_where_they_stand_alone(
    window: int | None, causal: bool, kept: int, static: bool
) -> None:
    """Every key that a query sees lies at its own position, modulo a leaf, and is seen as before.

    On devices where leaves are cut at positions nothing more is needed for equal bits.
    """
    if kept and (window is None or not causal):
        pytest.skip("only the cache of a causal window forgets keys")
    torch.manual_seed(0)
    pads, total, queries = [0, 3, 5, 9], 14, 3
    first = total - queries
    if kept:
        kept = first - window + 1 if window else 0
    number = torch.arange(1, total + 1).float()  # a key's content names its column
    keys = number[None, None, kept:, None].expand(len(pads), 2, -1, 4).clone()
    seen = torch.ones(len(pads), total, dtype=torch.bool)
    for row, pad in enumerate(pads):
        seen[row, :pad] = False
    function = stock.causal_mask_function if causal else stock.bidirectional_mask_function
    if window is not None and causal:
        function = stock.sliding_window_causal_mask_function(window)
    elif window is not None:
        function = stock.sliding_window_bidirectional_mask_function(window - 1)
    found = rule(
        batch_size=len(pads), q_length=queries, kv_length=total - kept, mask_function=function,
        q_offset=torch.tensor(first) if static else first, kv_offset=kept, attention_mask=seen,
    )  # fmt: skip
    k, v, start, real = place(found, keys, 10 * keys, LEAF)
    assert same_bits(v, 10 * k)
    for row, pad in enumerate(pads):
        begin = int(start[row]) if isinstance(start, torch.Tensor) else int(start)
        for i in range(queries):
            column = first + i
            if column < pad:
                continue  # a padded query
            for slot in range(k.shape[2]):
                near = window is None or abs(begin + i - slot) < window
                visible = near and (slot <= begin + i or not causal)
                if real is not None:
                    visible = visible and bool(real[row, slot])
                if visible:
                    key_column = int(k[row, 0, slot, 0]) - 1
                    assert (slot - (key_column - pad)) % LEAF == 0
                    assert key_column - pad == slot + (column - pad) - (begin + i)
            count = sum(
                (not causal or j <= column) and (window is None or abs(column - j) < window)
                for j in range(max(pad, kept), total)
            )
            slots = torch.arange(k.shape[2])
            shown = torch.ones_like(slots, dtype=torch.bool)
            if causal:
                shown &= slots <= begin + i
            if window is not None:
                shown &= (slots - (begin + i)).abs() < window
            if real is not None:
                shown &= real[row]
            assert int(shown.sum()) == count
    q = torch.randn(len(pads), 2, queries, 4)
    start = start.expand(len(pads)).contiguous() if isinstance(start, torch.Tensor) else start
    moved = attention(
        q, k, v, q_start=start, causal=causal, window=window,
        mask=None if real is None else real[:, None, None, :],
    )  # fmt: skip
    plain = attention(q, keys, 10 * keys, mask=found.dense())
    assert isinstance(moved, torch.Tensor) and isinstance(plain, torch.Tensor)
    last = moved.shape[2] - 1  # a query that is padding in no row
    assert same_bits(moved[:, :, last], plain[:, :, last])
