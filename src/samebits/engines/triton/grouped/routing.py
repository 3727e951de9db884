"""Rows sorted by the expert that they chose: a stable counting sort without atomics.

One program an expert. It counts the slots of smaller experts, which gives the place of its first
one, then walks all slots again and writes down its own in order. Nothing waits for the host, and
no program waits for another.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch

#: Groups beside the experts: slots without an expert (negative id), and slots with an id too large.
UNUSED_GROUPS = 2


class Groups(NamedTuple):
    """Slots sorted by group: the experts in ascending order, then the two unused groups."""

    order: torch.Tensor  #: [S] int32: the slots, group by group, ascending in each
    edges: torch.Tensor  #: [E + 3] int32: group g holds order[edges[g]:edges[g + 1]]


@triton.jit
def group_slots_kernel(ids, order, edges, slots, EXPERTS: tl.constexpr, BLOCK: tl.constexpr):
    """Program g writes its slots and its first edge; the last one also the end."""
    group = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    smaller = tl.zeros([BLOCK], tl.int32)
    for start in range(0, slots, BLOCK):
        found = _group(ids, start + lane, slots, EXPERTS)
        smaller += (found < group).to(tl.int32)
    place = tl.sum(smaller)
    tl.store(edges + group, place)
    if group == EXPERTS + 1:
        tl.store(edges + group + 1, slots)
    for start in range(0, slots, BLOCK):
        mine = (_group(ids, start + lane, slots, EXPERTS) == group).to(tl.int32)
        count = tl.cumsum(mine)
        tl.store(order + place + count - 1, start + lane, mine != 0)
        place += tl.sum(mine)


@triton.jit
def _group(ids, slot, slots, EXPERTS: tl.constexpr):
    """The group of each slot; slots past the end have one behind all others."""
    expert = tl.load(ids + slot, slot < slots, other=0)
    group = tl.where(expert < 0, EXPERTS, tl.where(expert >= EXPERTS, EXPERTS + 1, expert))
    return tl.where(slot < slots, group.to(tl.int32), EXPERTS + 2)


def group_slots(ids: torch.Tensor, experts: int) -> Groups:
    """Sorts slots by expert, stably.

    Args:
        ids: [S] int32 or int64, contiguous: each slot's expert; negative: none.
        experts: E.
    """
    slots = ids.numel()
    order = torch.empty(slots, dtype=torch.int32, device=ids.device)
    edges = torch.empty(experts + 1 + UNUSED_GROUPS, dtype=torch.int32, device=ids.device)
    block = min(4096, max(128, triton.next_power_of_2(slots)))
    launch(
        group_slots_kernel, (experts + UNUSED_GROUPS,), ids, order, edges, slots,
        num_warps=8 if block > 1024 else 4, EXPERTS=experts, BLOCK=block,
    )  # fmt: skip
    return Groups(order, edges)


def contiguous_groups(offsets: torch.Tensor, rows: int) -> Groups:
    """Groups of rows that lie sorted already: expert e has rows offsets[e] .. offsets[e + 1] - 1.

    Rows from offsets[E] on belong to no expert.

    Args:
        offsets: [E + 1] int32 or int64, ascending from 0.
        rows: how many rows there are.
    """
    edges = torch.nn.functional.pad(offsets.to(torch.int32), (0, UNUSED_GROUPS), value=rows)
    return Groups(torch.empty(rows, dtype=torch.int32, device=offsets.device), edges)
