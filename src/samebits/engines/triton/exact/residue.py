"""Exact products by residues: many rows of bf16, on the integer matrix unit.

Ozaki's scheme II (Ozaki, Uchino and Imamura, arXiv 2504.08009), with a certificate. A row is
brought to whole numbers of at most B bits, X = rint(x * 2^s); for seven moduli p the product of the
residues modulo p is a product of int8 that the matrix unit sums without an error, and the Chinese
remainder theorem gives sum X * W. What the rounding to whole numbers took away is known and bounds
the error: of normal data it is nothing but the last bits of a few small numbers.

The moduli are pairwise coprime and multiply up to 2^55.7, so sums below 2^54.7 are found: B is the
largest number of bits for which K * 2^(2 B) is smaller. Residues are between -128 and 127, and
int32 holds the sum of 65,536 of their products.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from samebits.engines.triton.exact.again import product_again
from samebits.engines.triton.exact.numbers import SLACK, UNIT, certain, power_of_two
from samebits.engines.triton.launch import launch

_MODULI = (256, 255, 253, 251, 247, 241, 239)
_PRODUCT = math.prod(_MODULI)
_COFACTORS = [_PRODUCT // p for p in _MODULI]
#: Times the residue of a sum, modulo p: its share of the sum in units of the cofactor.
_INVERSES = [pow(c, -1, p) for c, p in zip(_COFACTORS, _MODULI, strict=True)]
COUNT = tl.constexpr(len(_MODULI))
MODULI = tl.constexpr(_MODULI)
PRODUCT = tl.constexpr(_PRODUCT)
COFACTORS = tl.constexpr(tuple(_COFACTORS))
INVERSES = tl.constexpr(tuple(_INVERSES))
#: Products that int32 sums.
LONGEST = 1 << 16
#: k is filled up with zeros to a multiple of this.
STEP = 128


def bits_of(k: int) -> int:
    """B for sums of k products: K * 2^(2 B) stays below 0.49 of the moduli's product.

    At most 22: residues are computed in fp32, where X / p then cannot be taken for a half.
    """
    return min(22, int((math.log2(0.49 * _PRODUCT) - math.log2(max(k, 1))) / 2))


@triton.jit
def residue_kernel(
    x, residues, largest, lost, exponents, k, k_padded, row, plane,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row as whole numbers X = rint(x * 2^(BITS - e)), modulo seven numbers.

    Args:
        residues: [7, rows, k_padded] int8, planes `plane` apart.
        largest, lost: [rows] fp64: the largest magnitude, and the sum of |x - X 2^(e - BITS)|; not
            finite if the row is not.
        exponents: [rows] int32, e: all magnitudes are below 2^e.
    """
    r = tl.program_id(0).to(tl.int64)
    x += r * row
    top = tl.zeros([BLOCK], tl.float32)
    for start in range(0, k, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.abs(tl.load(x + i, mask=i < k, other=0.0).to(tl.float32))
        top = tl.maximum(top, tl.where(v == v, v, float("inf")))
    m = tl.max(top, 0)
    e = tl.maximum((m.to(tl.int32, bitcast=True) >> 23) & 255, 1) - 126
    up = power_of_two(BITS - e)
    down = power_of_two(e - BITS)
    gone = tl.zeros([BLOCK], tl.float64)
    for start in range(0, k_padded, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < k, other=0.0).to(tl.float32).to(tl.float64)
        scaled = v * up
        near = (scaled + 6755399441055744.0) - 6755399441055744.0  # 1.5 * 2^52: to nearest
        gone += tl.abs(scaled - near)
        whole = tl.where(m < float("inf"), near, 0.0).to(tl.int32)
        part = residues + r * k_padded + i
        inside = i < k_padded
        tl.store(part, whole.to(tl.int8), mask=inside)  # modulo 256: the low byte
        f = whole.to(tl.float32)
        for j in tl.static_range(1, COUNT):
            quotient = (f * (1.0 / MODULI[j]) + 12582912.0) - 12582912.0  # 1.5 * 2^23: to nearest
            tl.store(part + j * plane, (f - quotient * MODULI[j]).to(tl.int8), mask=inside)
    total = tl.sum(gone, 0) * down
    tl.store(largest + r, m.to(tl.float64))
    tl.store(lost + r, tl.where(m < float("inf"), total, float("inf")))
    tl.store(exponents + r, e)


@triton.jit
def _fold(total, acc, j: tl.constexpr):
    """Adds the share of the sums' residues modulo the j-th number."""
    p: tl.constexpr = MODULI[j]
    share = ((acc % p) * INVERSES[j]) % p
    return total + share.to(tl.int64) * COFACTORS[j]


@triton.jit
def product_kernel(
    x, w, c, y, x_residues, w_residues, x_largest, w_largest, x_lost, w_lost, x_exponents,
    w_exponents, m, n, k, k_padded, x_row, w_row, c_row, c_col, x_plane, w_plane,
    BITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, HAS_C: tl.constexpr,
):  # fmt: skip
    """y = R(x @ w.T + c): x [m, k], w [n, k], y [m, n] contiguous; residues of `residue_kernel`."""
    OUT: tl.constexpr = y.dtype.element_ty
    # Tiles in groups of GROUP rows, so that what is loaded is still in the cache.
    wide, high = tl.cdiv(n, BN), tl.cdiv(m, BM)
    first = tl.program_id(0) // (GROUP * wide) * GROUP
    tall = tl.minimum(high - first, GROUP)
    inner = tl.program_id(0) % (GROUP * wide)
    rows = (first + inner % tall) * BM + tl.arange(0, BM)
    columns = (inner // tall) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    # Rows beyond the end are read again from the start: their results are not stored.
    a_at = x_residues + (rows % m).to(tl.int64)[:, None] * k_padded + depth[None, :]
    b_at = w_residues + (columns % n).to(tl.int64)[None, :] * k_padded + depth[:, None]
    total = tl.zeros([BM, BN], tl.int64)
    for j in range(COUNT):
        acc = tl.zeros([BM, BN], tl.int32)
        a_here, b_here = a_at + j * x_plane, b_at + j * w_plane
        for _ in range(0, k_padded, BK):
            acc = tl.dot(tl.load(a_here), tl.load(b_here), acc, out_dtype=tl.int32)
            a_here += BK
            b_here += BK
        if j == 0:
            total = _fold(total, acc, 0)
        elif j == 1:
            total = _fold(total, acc, 1)
        elif j == 2:
            total = _fold(total, acc, 2)
        elif j == 3:
            total = _fold(total, acc, 3)
        elif j == 4:
            total = _fold(total, acc, 4)
        elif j == 5:
            total = _fold(total, acc, 5)
        else:
            total = _fold(total, acc, 6)
    # total = sum + q * PRODUCT with |sum| < 0.49 PRODUCT: q is the nearest whole number.
    q = total.to(tl.float64) * (1.0 / PRODUCT)
    q = (q + 6755399441055744.0) - 6755399441055744.0
    whole = (total - q.to(tl.int64) * PRODUCT).to(tl.float64)

    here = (rows < m)[:, None] & (columns < n)[None, :]
    x_in, w_in = rows < m, columns < n
    x_top = tl.load(x_largest + rows, mask=x_in, other=0.0)
    w_top = tl.load(w_largest + columns, mask=w_in, other=0.0)
    x_off = tl.load(x_lost + rows, mask=x_in, other=0.0)
    w_off = tl.load(w_lost + columns, mask=w_in, other=0.0)
    x_scale = power_of_two(tl.load(x_exponents + rows, mask=x_in, other=0) - BITS)
    w_scale = power_of_two(tl.load(w_exponents + columns, mask=w_in, other=0) - BITS)
    sums = whole * x_scale[:, None] * w_scale[None, :]
    # sum |x w - X W| <= sum |x - X| max |w| + max |X| sum |w - W|; and `whole` was rounded.
    e = (x_off[:, None] * w_top[None, :] + x_top[:, None] * w_off[None, :]) * SLACK
    e += tl.where(tl.abs(whole) > 4503599627370496.0, tl.abs(sums) * (2.0 * UNIT), 0.0)
    if HAS_C:
        c_at = (rows.to(tl.int64) * c_row)[:, None] + (columns.to(tl.int64) * c_col)[None, :]
        d = tl.load(c + c_at, mask=here, other=0.0).to(tl.float64)
        s = sums + d
        v = s - sums
        e += tl.abs((sums - (s - v)) + (d - v))  # Knuth's TwoSum: exact
        sums = s
    result, sure = certain(sums, e, OUT)
    sure = sure & (e < float("inf"))
    tl.store(y + rows.to(tl.int64)[:, None] * n + columns[None, :], result, mask=here)
    number = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    open_ = tl.min(tl.min(tl.where(here & ~sure, number, BM * BN), 1), 0)
    while open_ < BM * BN:
        r = (first + inner % tall) * BM + open_ // BN
        col = (inner // tall) * BN + open_ % BN
        term = 0.0
        if HAS_C:
            term = tl.load(c + r.to(tl.int64) * c_row + col.to(tl.int64) * c_col)
        exact = product_again(x + r.to(tl.int64) * x_row, w + col.to(tl.int64) * w_row, 1, 1, k,
                              term, OUT)  # fmt: skip
        tl.store(y + r.to(tl.int64) * n + col, exact)
        open_ = tl.min(tl.min(tl.where(here & ~sure & (number > open_), number, BM * BN), 1), 0)


class _Residues:
    """The rows of an operand as `residue_kernel` leaves them."""

    def __init__(self, x: torch.Tensor, bits: int) -> None:
        rows, k = x.shape
        self.k_padded = -(-k // STEP) * STEP
        self.planes = torch.empty((len(_MODULI), rows, self.k_padded), dtype=torch.int8,
                                  device=x.device)  # fmt: skip
        facts = torch.empty((2, rows), dtype=torch.float64, device=x.device)
        self.largest, self.lost = facts.unbind()
        self.exponents = torch.empty(rows, dtype=torch.int32, device=x.device)
        launch(
            residue_kernel, (rows,), x, self.planes, self.largest, self.lost, self.exponents, k,
            self.k_padded, x.stride(0), self.planes.stride(0),
            BITS=bits, BLOCK=1024, num_warps=4,
        )  # fmt: skip


def by_residues(
    x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None, y: torch.Tensor,
    bm: int = 128, bn: int = 128, bk: int = 128, warps: int = 8, stages: int = 3,
) -> None:  # fmt: skip
    """y = R(x @ w.T + c) for bf16 or fp16 x [M, K] and w [N, K], K <= `LONGEST`, y [M, N].

    Columns of x and w are contiguous; c is fp32 and expands to y.
    """
    (m, k), n = x.shape, w.shape[0]
    bits = bits_of(k)
    a, b = _Residues(x, bits), _Residues(w, bits)
    term = (0, 0) if c is None else c.expand(y.shape).stride()
    launch(
        product_kernel, (-(-m // bm) * -(-n // bn),),
        x, w, c, y, a.planes, b.planes, a.largest, b.largest, a.lost, b.lost, a.exponents,
        b.exponents, m, n, k, a.k_padded, x.stride(0), w.stride(0), *term, a.planes.stride(0),
        b.planes.stride(0),
        BITS=bits, BM=bm, BN=bn, BK=bk, GROUP=8, HAS_C=c is not None, num_warps=warps,
        num_stages=stages,
    )  # fmt: skip
