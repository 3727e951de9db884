"""Launches the products of residues of residue.cu."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.launch import WORD, boxes_of, launcher, matrix_boxes
from samebits.engines.cuda.linear import wgmma

_SOURCE = Path(__file__).with_name("residue.cu")
_SHARED, _STAGING = 227 << 10, 2048
#: k of a step: residues are filled up with zeros to a multiple of this.
STEP = 128


def takes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether `product` takes these operands: int8 [J, M, K] and [J, N, K], contiguous."""
    return a.is_cuda and b.shape[1] % 16 == 0 and _hopper(a.get_device())


@functools.cache
def _hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


def product(
    a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, moduli: Sequence[int],
    groups: int = 2, columns: int = 256, band: int = 8,
) -> None:  # fmt: skip
    """y[j] = a[j] @ b[j].T modulo ``moduli[j]``.

    Args:
        a, b: int8 [J, M, K] and [J, N, K], contiguous; K a multiple of `STEP`, N of 16.
        y: uint8 [J, M, N], contiguous.
        groups: warpgroups of 64 rows that share a tile, 1 or 2.
        columns: of a tile; a multiple of 16, at most 256.
        band: rows of tiles that are worked on side by side, for the L2 cache.
    """
    (planes, m, k), n = a.shape, b.shape[1]
    run = _launcher(groups, columns, band, tuple(moduli))
    units = planes * -(-m // (64 * groups)) * -(-n // columns)
    blocks = min(units, _processors(y.get_device()))
    pairs = [t.view(torch.bfloat16).view(planes * t.shape[1], k // 2) for t in (a, b)]
    run(
        (blocks,), matrix_boxes(pairs[0], 64 * groups, planes * m, k // 2, k // 2),
        matrix_boxes(pairs[1], columns, planes * n, k // 2, k // 2), y, m, n, k,
    )  # fmt: skip


@functools.cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _stages(groups: int, columns: int) -> int:
    """Blocks of k in flight: what fits into shared memory."""
    return min(8, (_SHARED - 4 * groups * _STAGING - 128) // ((64 * groups + columns) * 128))


def shared(groups: int, columns: int) -> int:
    """Bytes of shared memory of a block, as in residue.cu."""
    stages = _stages(groups, columns)
    return stages * (64 * groups + columns) * 128 + 4 * groups * _STAGING + 16 * stages


def cubin(groups: int, columns: int, band: int, moduli: tuple[int, ...]) -> bytes:
    """The compiled kernel."""
    values = {"GROUPS": groups, "COLS": columns, "BAND": band,
              "STAGES": _stages(groups, columns)}  # fmt: skip
    headers = {"wgmma.cuh": wgmma.header(columns, "s8"), "moduli.cuh": _header(moduli)}
    return nvrtc.compile_source(_SOURCE, "sm_90a", values, (), headers)


def constants(moduli: Sequence[int]) -> list[tuple[int, int, int]]:
    """p, ceil(2^39 / p), and the least multiple of p that is not below 2^30."""
    return [(p, -(-(1 << 39) // p), -(-(1 << 30) // p) * p) for p in moduli]


def _header(moduli: tuple[int, ...]) -> str:
    names = ("MODULI", "RECIPROCALS", "LIFTS")
    lists = [", ".join(f"{v}u" for v in values) for values in zip(*constants(moduli), strict=True)]
    lines = [f"__constant__ u32 {n}[] = {{{v}}};" for n, v in zip(names, lists, strict=True)]
    return "\n".join(["#pragma once", f"constexpr int PLANES = {len(moduli)};", *lines, ""])


@functools.cache
def _launcher(groups: int, columns: int, band: int, moduli: tuple[int, ...]) -> Any:
    slots = *(boxes_of(torch.bfloat16, r, 2) for r in (64 * groups, columns)), *(WORD,) * 4
    return launcher(
        "residue_product", lambda: cubin(groups, columns, band, moduli), slots,
        threads=128 * (groups + 1), shared=shared(groups, columns),
    )  # fmt: skip
