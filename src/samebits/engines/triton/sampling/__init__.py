"""Sampling on the GPU: a row's filters, then Gumbel noise and a maximum; see `ops.sampling`.

Counts and probability masses are integers and maxima are those of integer keys, so no result
depends on the order in which threads arrive or on how a row is cut among programs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from samebits.engines.triton.launch import launch
from samebits.engines.triton.sampling.draw import draw_kernel, finish_kernel
from samebits.engines.triton.sampling.filter import filter_kernel

#: Programs that fill the chip.
_PROGRAMS = 264


class Cut(NamedTuple):
    """What the filters leave of each row: larger keys than `key`, and those of it up to `last`."""

    key: torch.Tensor  #: [R] int32
    last: torch.Tensor  #: [R] int32
    lowest: torch.Tensor  #: [R] float32: smallest z - top that is left
    top: torch.Tensor  #: [R] float32: max z
    mass: torch.Tensor  #: [R] int64: sum of the masses of what is left, in units of 2^-40


def cut_rows(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    room: int = 2048,
) -> Cut:
    """The cut of every row of logits [R, V], unit stride along V; parameters [R].

    `room`, a power of two, is how many tokens of a row may be sorted; it decides the speed alone.
    """
    rows, n = logits.shape
    # All aligned, whatever R is: another alignment would be another compiled kernel.
    places = 4 * triton.cdiv(rows, 4)
    words = torch.empty(2, places, dtype=torch.int32, device=logits.device)[:, :rows]
    reals = torch.empty(2, places, dtype=torch.float32, device=logits.device)[:, :rows]
    mass = torch.empty(rows, dtype=torch.int64, device=logits.device)
    cut = Cut(words[0], words[1], reals[0], reals[1], mass)
    room = min(room, _block(n, room))
    moved = torch.empty(rows, room, dtype=torch.int64, device=logits.device)
    launch(
        filter_kernel, (rows,), logits, temperature, top_k, top_p, min_p, *cut, moved, n,
        logits.stride(0), num_warps=16, ROOM=room, TOP_K=top_k is not None, TOP_P=top_p is not None,
        MIN_P=min_p is not None, BLOCK=_block(n, 8192),
    )  # fmt: skip
    return cut


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    cut: Cut | None,
    logprobs: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Tokens [R] int64, and their logarithmic probability under what `cut` leaves (needs one)."""
    rows, n = logits.shape
    block = _block(n, 4096)
    blocks = triton.cdiv(n, block)
    chunk = triton.cdiv(blocks, max(1, min(blocks, _PROGRAMS // rows))) * block
    chunks = triton.cdiv(n, chunk)
    best = torch.empty(rows, chunks, dtype=torch.int64, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    scores = torch.empty(rows, dtype=torch.float32, device=logits.device) if logprobs else None
    parts = (None,) * 5 if cut is None else cut
    launch(
        draw_kernel, (rows, chunks), logits, temperature, top_k, seeds, positions, *parts[:4],
        best, n, chunk, logits.stride(0), num_warps=8, TOP_K=top_k is not None,
        FILTERED=cut is not None, BLOCK=block,
    )  # fmt: skip
    launch(
        finish_kernel, (rows,), logits, temperature, top_k, *parts[3:], best, tokens, scores,
        chunks, logits.stride(0), num_warps=4, TOP_K=top_k is not None, LOGPROBS=logprobs,
        BLOCK=_block(chunks, 4096),
    )  # fmt: skip
    return tokens, scores


def _block(n: int, most: int) -> int:
    return min(most, max(128, int(triton.next_power_of_2(n))))
