"""Exact sums and products on a GPU: see `samebits.contract.exact` for what they are.

Every kernel has two steps. The first computes a sum in fp64, or from residues in integers, with a
bound of its error, and rounds it where that bound decides the rounding. The second adds the terms
of the other sums again without any rounding, in the same program. Bits cannot depend on tiles,
warps, splits or chips.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from samebits.engines.triton.exact import residue
from samebits.engines.triton.exact.rowwise import (
    column_kernel,
    exp_kernel,
    join_kernel,
    norm_kernel,
    row_kernel,
    softmax_kernel,
)
from samebits.engines.triton.exact.wide import join_wide_kernel, partial_kernel, wide_kernel
from samebits.engines.triton.launch import launch

#: Rows and columns from which residues are faster: fp64 costs many times as much a product, but
#: needs no preparation of the operands.
_MANY = 96
#: Rows that do not fill the chip.
_FEW_ROWS = 264
#: Rows, or items of a batch, that a grid's second and third axes take.
_MOST = 65535
#: Bytes of sums in fp64 that are held at a time.
_HELD = 1 << 31
#: Parts of k that are joined at a time.
_MOST_PARTS = 32


def product(
    x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None, out_dtype: torch.dtype
) -> tuple[torch.Tensor, None]:
    """``x @ w.mT + c``, exact and rounded once: as `samebits.engines.cpu.exact.product`."""
    if _by_residues(x, w, out_dtype):
        x, w = _contiguous(x), _contiguous(w)
        y = torch.empty((x.shape[0], w.shape[0]), dtype=out_dtype, device=x.device)
        residue.by_residues(x, w, c, y)
        return y, None
    x, w = _words(x), _words(w)
    m, n, k = x.shape[-2], w.shape[-2], x.shape[-1]
    y = torch.empty((*x.shape[:-1], n), dtype=out_dtype, device=x.device)
    if y.numel() == 0:
        return y, None
    items = x.shape[0] if x.dim() == 3 else 1
    many, high = (min(_MOST, max(1, _HELD // (8 * size))) for size in (m * n, n))
    if items > many or m > high:
        axis, most = (0, many) if items > many else (-2, high)
        term = None if c is None else c.expand(y.shape).split(most, axis)
        done = [
            product(part, w.split(most)[i] if axis == 0 else w, term and term[i], out_dtype)[0]
            for i, part in enumerate(x.split(most, axis))
        ]
        return torch.cat(done, axis), None
    wide(x, w, c, y, m, n, k, items)
    return y, None


def wide(
    x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None, y: torch.Tensor,
    m: int, n: int, k: int, items: int,
) -> None:  # fmt: skip
    """By way of fp64, in parts of k."""
    *made, terms = _parts(x, w, m, n, k, items)
    term = (0, 0, 0) if c is None else _strides(c.expand(y.shape))
    grid, parts, tile = _join(made[0])
    launch(
        join_wide_kernel, grid, *made, x, w, c, y, m, n, k, terms, parts,
        *_strides(x)[:2], *_strides(w)[:2], *term, HAS_C=c is not None, **tile,
    )  # fmt: skip


def _join(sums: torch.Tensor) -> tuple[tuple[int, int, int], int, dict[str, Any]]:
    """Grid, number of parts and tile of what joins `sums` [S, B, m, n]."""
    parts, items, m, n = sums.shape
    block = min(128, _block(n))
    tile = {"BLOCK": block, "PARTS": 1 << (parts - 1).bit_length(), "num_warps": 4}
    return (-(-n // block), m, items), parts, tile


def _parts(
    x: torch.Tensor, w: torch.Tensor, m: int, n: int, k: int, items: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """What `wide_kernel` leaves of x and w, and the terms of a part."""
    few = m <= 16
    bm, bn, bk = (16 if few else 32), 64, 16
    tiles = -(-n // bn) * -(-m // bm) * items
    words = k // 2 if x.element_size() == 2 else k
    steps = max(1, -(-words // bk))
    # As many parts as fill the chip, of four steps at least.
    blocks = 640 if few else 1024
    parts = max(1, min(blocks // tiles, steps // 4, _MOST // items, _MOST_PARTS))
    span = -(-steps // parts) * bk
    kinds = ((m, n), torch.float64), ((m,), torch.float32), ((n,), torch.float32)
    made = [torch.empty((parts, items, *s), dtype=d, device=x.device) for s, d in kinds]
    launch(
        wide_kernel, (-(-n // bn), -(-m // bm), items * parts), x, w, *made, m, n, k, span, items,
        *_strides(x)[:2], *_strides(w)[:2],
        BM=bm, BN=bn, BK=bk, num_warps=2 if few else 4, num_stages=4 if few else 3,
    )  # fmt: skip
    return made[0], made[1], made[2], span * k // max(words, 1)


def partial(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x @ w.T`` in fp64 and what each sum may be wrong by: as `cpu.exact.partial`."""
    x, w = _words(x), _words(w)
    (m, k), n = x.shape, w.shape[0]
    y = torch.empty((m, n), dtype=torch.float64, device=x.device)
    e = torch.empty_like(y)
    for at in range(0, m if n else 0, _MOST):
        some, rows = x[at : at + _MOST], min(_MOST, m - at)
        *made, terms = _parts(some, w, rows, n, k, 1)
        grid, parts, tile = _join(made[0])
        launch(partial_kernel, grid, *made, y[at:], e[at:], rows, n, terms, parts, **tile)
    return y, e


def join(
    y: torch.Tensor, e: torch.Tensor, out_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of parts [P, n], rounded once, and what is left open: as `cpu.exact.join`."""
    parts, n = y.shape
    out = torch.empty(n, dtype=out_dtype, device=y.device)
    left = torch.empty(n, dtype=torch.bool, device=y.device)
    if n:
        launch(join_kernel, (-(-n // 1024),), y, e, out, left, parts, n, BLOCK=1024)
    return out, left


def rows(
    x: torch.Tensor, out_dtype: torch.dtype, *, squares: bool = False
) -> tuple[torch.Tensor, None]:
    """The exact sum (of squares) along the last axis of x [R, n], rounded once."""
    return row_values("squares" if squares else "sum", x, out_dtype)


def row_values(value: str, x: torch.Tensor, out_dtype: torch.dtype) -> tuple[torch.Tensor, None]:
    """ "sum", "squares", "mean" or "norm" along the last axis of x [R, n]: as `cpu.row_values`."""
    x = _contiguous(x)
    count, n = x.shape
    y = torch.empty(count, dtype=out_dtype, device=x.device)
    if count:
        block = min(512, _block(n))
        share = max(1, 512 // block)
        launch(
            row_kernel, (-(-count // share),), x, y, count, n, x.stride(0), float(n),
            ROWS=share, BLOCK=block, VALUE=value, num_warps=4,
        )  # fmt: skip
    return y, None


def columns(x: torch.Tensor, out_dtype: torch.dtype) -> tuple[torch.Tensor, None]:
    """The exact sum along the first axis of x [T, n], rounded once: for few terms."""
    x = _contiguous(x)
    terms, n = x.shape
    y = torch.empty(n, dtype=out_dtype, device=x.device)
    if n:
        launch(column_kernel, (-(-n // 1024),), x, y, terms, n, x.stride(0), BLOCK=1024)
    return y, None


def norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, layer: bool
) -> torch.Tensor:
    """Rows x [R, n] normalised with exact sums: `ops.exact.layer_norm`, or `rms_norm`."""
    x = _contiguous(x)
    (count, n), y = x.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        weight = None if weight is None else weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        launch(
            norm_kernel, (count,), x, weight, bias, y, n, x.stride(0), float(n), eps,
            LAYER=layer, HAS_W=weight is not None, HAS_B=bias is not None, **_row(count, n),
        )  # fmt: skip
    return y


def softmax(kind: str, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """ "softmax", "log_softmax" or "logsumexp" of rows x [R, n] -> [R, n] or [R]; n > 0."""
    x = _contiguous(x)
    count, n = x.shape
    shape = (count,) if kind == "logsumexp" else (count, n)
    y = torch.empty(shape, dtype=out_dtype, device=x.device)
    launch(softmax_kernel, (count,), x, y, n, x.stride(0), KIND=kind, **_row(count, n))
    return y


def exp(x: torch.Tensor) -> torch.Tensor:
    """e^x of fp32 numbers, with the bits of `contract.functions.exp` (but for a NaN's)."""
    x = x.contiguous()
    y = torch.empty_like(x)
    count = x.numel()
    launch(exp_kernel, (-(-count // 1024),), x, y, count, BLOCK=1024)
    return y


def _block(n: int) -> int:
    """Elements of a row that a program holds at a time."""
    return min(4096, max(16, 1 << max(n - 1, 0).bit_length()))


def _row(count: int, n: int) -> dict[str, Any]:
    """How a program takes one of `count` rows: many warps where there are few programs."""
    if count <= _FEW_ROWS:
        return {"BLOCK": _block(n), "num_warps": 4 if n <= 1024 else 16}
    return {"BLOCK": min(1024, _block(n)), "num_warps": 4}


def _by_residues(x: torch.Tensor, w: torch.Tensor, out_dtype: torch.dtype) -> bool:
    """Whether integers are faster than fp64, and certain often enough: results of 16 bits."""
    narrow = x.element_size() == 2 and out_dtype is not torch.float32
    many = x.dim() == 2 and x.shape[0] >= _MANY and w.shape[0] >= _MANY
    return narrow and many and 0 < x.shape[1] <= residue.LONGEST


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def _words(x: torch.Tensor) -> torch.Tensor:
    """`x` with contiguous columns that a kernel can read: fp32, or bf16 in aligned words of two."""
    if x.dtype is torch.float16:  # exact
        return _contiguous(x.to(torch.float32))
    x = _contiguous(x)
    if x.dtype is torch.bfloat16:
        even = all(s % 2 == 0 for s in x.stride()[:-1]) and x.shape[-1] % 2 == 0
        if not even or x.data_ptr() % 4:
            x = F.pad(x, (0, x.shape[-1] % 2)).contiguous()
            return x.clone() if x.data_ptr() % 4 else x
    return x


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Of batch, row and column."""
    row, column = x.stride()[-2:]
    return (x.stride(0) if x.dim() == 3 else 0), row, column
