"""How far apart two results are, counted in bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from samebits import bits

Bits = tuple[torch.Tensor, ...]
"""What one request gives: one tensor or several."""


@dataclass(frozen=True)
class Difference:
    """Elements compared and differing; `ulps` as in `samebits.check.result.Case`."""

    elements: int
    differing: int = 0
    max_ulp: int = 0
    ulps: tuple[int, ...] = ()
    nonfinite: int = 0


def difference(a: Bits, b: Bits) -> Difference:
    """Compares every element of `b` with `a`.

    Raises:
        ValueError: they differ in number, shape or dtype, so there is nothing to compare.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} results against {len(b)}: nothing to compare")
    return add([_tensor(x, y) for x, y in zip(a, b, strict=True)])


def add(parts: Sequence[Difference]) -> Difference:
    """Several differences as one."""
    width = max((len(part.ulps) for part in parts), default=0)
    padded = [(*part.ulps, *([0] * (width - len(part.ulps)))) for part in parts]
    return Difference(
        sum(part.elements for part in parts),
        sum(part.differing for part in parts),
        max((part.max_ulp for part in parts), default=0),
        tuple(map(sum, zip(*padded, strict=True))),
        sum(part.nonfinite for part in parts),
    )


def _tensor(a: torch.Tensor, b: torch.Tensor) -> Difference:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(
            f"a request's result is {tuple(b.shape)} {b.dtype} here and {tuple(a.shape)} {a.dtype} "
            "in the reference, so bits cannot be compared: the target must treat each row of its "
            "inputs as a request of its own"
        )
    x, y = bits.view(a).reshape(-1), bits.view(b).reshape(-1)
    where = (x != y).nonzero().reshape(-1)
    if not len(where):
        return Difference(x.numel())
    x, y = x[where], y[where]
    if not (a.is_floating_point() or a.is_complex()):
        return Difference(bits.view(a).numel(), len(where))
    dtype = torch.view_as_real(a).dtype if a.is_complex() else a.dtype
    finite = x.view(dtype).isfinite() & y.view(dtype).isfinite()
    distance = _distance(x[finite], y[finite])
    return Difference(
        bits.view(a).numel(),
        len(where),
        int(distance.max()) if len(distance) else 0,
        _histogram(distance),
        int((~finite).sum()),
    )


def _distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """How many floats lie between the floats of two bit patterns, plus one; -0 and +0 are 1 apart.

    Of doubles of opposite sign the distance may not fit an integer; it is cut off at 2**62.
    """
    wide = x.element_size() == 8
    x, y = _order(x), _order(y)
    gap = torch.where((x ^ y) < 0, (x >> 1) - (y >> 1), x - y) if wide else x - y
    return gap.abs().clamp(max=2**62)


def _order(x: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floats whose bits they are: neighbours differ by one."""
    if x.dtype is torch.uint8:
        x = x.view(torch.int8)
    lowest = torch.iinfo(x.dtype).min
    wide = x.to(torch.int64)
    return torch.where(wide < 0, lowest - wide - 1, wide)


def _histogram(distance: torch.Tensor) -> tuple[int, ...]:
    """Entry i counts distances in (2**(i-1), 2**i]."""
    counts: list[int] = []
    below = 0
    while below < len(distance):
        within = int((distance <= 2 ** len(counts)).sum())
        counts.append(within - below)
        below = within
    return tuple(counts)
