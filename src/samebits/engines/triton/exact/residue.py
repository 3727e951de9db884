"""Exact products by residues: many rows of bf16 and fp16, on the integer matrix unit.

Ozaki's scheme II (Ozaki, Uchino and Imamura, arXiv 2504.08009), with a certificate. A row is
brought to whole numbers, X = rint(x * 2^s); for some moduli p the product of the residues modulo p
is a product of int8 that the matrix unit sums without an error, and the Chinese remainder theorem
gives sum X * W. What the rounding to whole numbers took away is known and bounds the error: of
normal data it is nothing but the last bits of a few small numbers.

Three steps: residues of both operands; a product for each modulus, of which one byte a sum is kept;
sums, and their rounding. By Cauchy and Schwarz |sum X * W| is at most |X| |W|, so each row has the
largest s with which its norm stays below the square root of half the moduli's product.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from samebits.engines.cuda.exact import residue as cuda
from samebits.engines.triton.exact.again import product_again
from samebits.engines.triton.exact.numbers import SLACK, UNIT, certain, power_of_two, two_sum
from samebits.engines.triton.launch import launch

_MODULI = (256, 253, 251, 247, 241, 239, 233)
MODULI = tl.constexpr(_MODULI)
#: Products that int32 sums.
LONGEST = 1 << 16
#: Rows of x at a time: what a grid's second axis takes.
_ROWS = 65535
#: Bytes of residues of sums that are held at a time.
_HELD = 1 << 31
#: k is filled up with zeros to a multiple of this.
STEP = 128
#: Whole numbers are below 2^MOST: their quotients are found in fp32.
MOST = tl.constexpr(22)
#: Of a row: numbers that are not whole, of which it is known what they lost. Normal rows have 2
#: (k = 4096) or 15 (14336); beside an outlier of 2^b times the rest some 2^b times as many.
_LISTED = 256
#: Open results of a block from which fp64 is tried for all of it at a time.
_SEVERAL = tl.constexpr(16)
LISTED = tl.constexpr(_LISTED)
#: So many fit into a warp, which adds them without waiting for others.
_FEW = tl.constexpr(32)
_MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number


def moduli_of(dtype: torch.dtype) -> tuple[int, ...]:
    """As many as random numbers of the type, and results of the type, are worth."""
    return _MODULI[: 6 if dtype is torch.bfloat16 else 7]


class _Sums:
    """What finds a sum from its residues r modulo each of `moduli`: sum r * E - q * P.

    Attributes:
        product: P.
        shares: E, which is 1 modulo one of them and 0 modulo the others.
        parts: E / P in units of 2^-20: q is the nearest whole number to sum r * E / P.
        high, low: E / P in units of 2^-32, as int32, and what is left in units of 2^-52.
    """

    def __init__(self, moduli: tuple[int, ...]) -> None:
        self.product = math.prod(moduli)
        self.shares = [self.product // p * pow(self.product // p, -1, p) for p in moduli]
        self.parts = [(share << 20) // self.product for share in self.shares]
        fractions = [(share << 52) // self.product for share in self.shares]
        self.high = [(f >> 20) - (f >> 51 << 32) for f in fractions]
        self.low = [f & 0xFFFFF for f in fractions]


_SUMS = {n: _Sums(_MODULI[:n]) for n in (6, 7)}
PRODUCTS = tl.constexpr(tuple(_SUMS[max(n, 6)].product for n in range(8)))
SHARES = tl.constexpr(tuple(tuple(_SUMS[max(n, 6)].shares) for n in range(8)))
PARTS = tl.constexpr(tuple(tuple(_SUMS[max(n, 6)].parts) for n in range(8)))
HIGH = tl.constexpr(tuple(tuple(_SUMS[max(n, 6)].high) for n in range(8)))
LOW = tl.constexpr(tuple(tuple(_SUMS[max(n, 6)].low) for n in range(8)))


@triton.jit
def residue_kernel(
    x, residues, largest, lost, shifts, counts, places, losses, k, k_padded, row, plane,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row as whole numbers X = rint(x * 2^s), modulo COUNT numbers.

    Args:
        residues: [COUNT, rows, k_padded] int8, planes `plane` apart.
        largest, lost: [rows] fp32: the largest magnitude, and the sum of |x - X 2^-s|; that is Inf
            if the row is not finite.
        shifts: [rows] int32, s.
        counts: [rows] int32, how many x 2^s are not whole.
        places, losses: [rows, LISTED] int32 and fp32, where they are, in no order, and x 2^s - X.
    """
    r = tl.program_id(0).to(tl.int64)
    plane = tl.cast(plane, tl.int64)  # several of them may be more than 2^31
    x += r * row
    top = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, k, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < k, other=0.0).to(tl.float32)
        top = tl.maximum(top, tl.abs(v))  # passes over NaN, which reaches the squares
        squares = tl.fma(v, v, squares)
    m = tl.max(top, 0)
    square = tl.sum(squares, 0)
    e = tl.maximum((m.to(tl.int32, bitcast=True) >> 23) & 255, 1) - 126  # magnitudes are below 2^e
    unit = 0
    if ~((square > 2.0**-60) & (square < 2.0**100)):  # squares of fractions of the largest number
        unit = e
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, k, BLOCK):
            i = start + tl.arange(0, BLOCK)
            v = tl.load(x + i, mask=i < k, other=0.0).to(tl.float32)
            u = (v.to(tl.float64) * power_of_two(-e)).to(tl.float32)
            squares = tl.fma(u, u, squares)
        square = tl.sum(squares, 0)
    finite = square < float("inf")
    # Of half the moduli's product: roundings of the squares' sum, and of x to whole numbers.
    ratio = 0.45 * PRODUCTS[COUNT] / tl.where(square > 0.0, square, 1.0)
    free = ((ratio.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    shift = tl.minimum(tl.minimum((free >> 1) - unit, MOST - e), 126)
    up = power_of_two(shift).to(tl.float32)
    gone = tl.zeros([BLOCK], tl.float32)
    tl.store(counts + r, 0)
    tl.debug_barrier()
    for start in range(0, k_padded, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < k, other=0.0).to(tl.float32)
        scaled = v * up
        word = scaled + _MAGIC  # its last bits are those of the whole number
        whole = word - _MAGIC
        rest = scaled - whole
        gone += tl.abs(rest)
        slot = tl.atomic_add(counts + r + i * 0, 1, mask=rest != 0.0, sem="relaxed")
        listed = (rest != 0.0) & (slot < LISTED)
        tl.store(places + r * LISTED + slot, i, mask=listed)
        tl.store(losses + r * LISTED + slot, rest, mask=listed)
        bits = word.to(tl.int32, bitcast=True)
        part = residues + r * k_padded + i
        inside = i < k_padded
        tl.store(part, bits.to(tl.int8), mask=inside)  # modulo 256: the low byte
        for j in tl.static_range(1, COUNT):
            quotient = tl.fma(whole, 1.0 / MODULI[j], _MAGIC).to(tl.int32, bitcast=True)
            tl.store(part + j * plane, (bits - quotient * MODULI[j]).to(tl.int8), mask=inside)
    total = tl.sum(gone, 0).to(tl.float64) * (1.0 + k * 2.0**-23)
    # A number that is brought down may fall below the smallest one.
    total += tl.where(shift < 0, k * 2.0**-140, 0.0)
    tl.store(largest + r, m)
    total = (total * power_of_two(-shift)).to(tl.float32)
    tl.store(lost + r, tl.where(finite, total, float("inf")))
    tl.store(shifts + r, shift)


@triton.jit
def _chosen(j, VALUES: tl.constexpr, COUNT: tl.constexpr):
    value = VALUES[0]
    for i in tl.static_range(1, COUNT):
        value = tl.where(j == i, VALUES[i], value)
    return value


@triton.jit
def product_kernel(
    x_residues, w_residues, kept, m, n, k_padded, x_plane, w_plane,
    COUNT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """kept[j] = x_residues[j] @ w_residues[j].T modulo the j-th number: uint8 [COUNT, m, n]."""
    wide, high = tl.cdiv(n, BN), tl.cdiv(m, BM)
    j = (tl.program_id(0) // (wide * high)).to(tl.int64)
    tile = tl.program_id(0) % (wide * high)
    # Tiles in groups of GROUP rows, so that what is loaded is still in the cache.
    first = tile // (GROUP * wide) * GROUP
    tall = tl.minimum(high - first, GROUP)
    inner = tile % (GROUP * wide)
    rows = (first + inner % tall) * BM + tl.arange(0, BM)
    columns = (inner // tall) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    # Rows beyond the end are read again from the start: their results are not stored.
    a_at = x_residues + j * x_plane + (rows % m).to(tl.int64)[:, None] * k_padded + depth[None, :]
    b_at = (
        w_residues + j * w_plane + (columns % n).to(tl.int64)[None, :] * k_padded + depth[:, None]
    )
    acc = tl.zeros([BM, BN], tl.int32)
    for _ in range(0, k_padded, BK):
        acc = tl.dot(tl.load(a_at), tl.load(b_at), acc, out_dtype=tl.int32)
        a_at += BK
        b_at += BK
    rest = acc % _chosen(j, MODULI, COUNT)
    here = (rows < m)[:, None] & (columns < n)[None, :]
    rest = tl.where(rest < 0, rest + _chosen(j, MODULI, COUNT), rest).to(tl.uint8)
    tl.store(kept + (j * m + rows)[:, None] * n + columns[None, :], rest, mask=here)


@triton.jit
def _rough(
    at, plane, c, x_largest, x_lost, tops, losses, exponents, columns, here, c_col,
    OUT: tl.constexpr, COUNT: tl.constexpr, HAS_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Results by way of fp32, and which of them are certain."""
    high = tl.zeros([BLOCK], tl.int32)
    low = tl.zeros([BLOCK], tl.int32)
    for j in tl.static_range(COUNT):
        rest = tl.load(at + j * plane, mask=here, other=0).to(tl.int32)
        high += rest * HIGH[COUNT][j]  # its whole part is lost on purpose
        low += rest * LOW[COUNT][j]
    # Sums in units of P * 2^-32, short of less than two of them.
    value = (high + (low >> 20)).to(tl.float32)
    normal = (exponents > -70) & (exponents < 100)
    power = ((127 - tl.where(normal, exponents, 0)) << 23).to(tl.float32, bitcast=True)
    unit = power * (PRODUCTS[COUNT] * 2.0**-32)
    sums = value * unit
    # Of fp32: four roundings, and what is less than its least normal number.
    e = (x_lost * tops + x_largest * losses) * SLACK
    e += tl.abs(sums) * 2.0**-22 + 2.0 * unit + 2.0**-120
    if HAS_C:
        sums += tl.load(c + columns.to(tl.int64) * c_col, mask=here, other=0.0)
        e += tl.abs(sums) * 2.0**-23
    low_end, high_end = (sums - e).to(OUT), (sums + e).to(OUT)
    same = low_end.to(tl.int16, bitcast=True) == high_end.to(tl.int16, bitcast=True)
    return high_end, same & normal & (e < float("inf"))


@triton.jit
def _sums(at, plane, x_shift, w_shifts, here, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The sums in fp64, and what that has rounded."""
    whole = tl.zeros([BLOCK], tl.int64)
    quotient = tl.full([BLOCK], 1 << 19, tl.int32)
    for j in tl.static_range(COUNT):
        rest = tl.load(at + j * plane, mask=here, other=0).to(tl.int32)
        whole += rest.to(tl.int64) * SHARES[COUNT][j]
        quotient += rest * PARTS[COUNT][j]
    whole -= (quotient >> 20).to(tl.int64) * PRODUCTS[COUNT]
    return _scaled(whole, x_shift, w_shifts)


@triton.jit
def _sum(at, plane, x_shift, w_shift, COUNT: tl.constexpr):
    """As `_sums`, of the one sum whose residues begin at `at`."""
    lane = tl.arange(0, 8)
    share = tl.zeros([8], tl.int64)
    part = tl.zeros([8], tl.int32)
    for j in tl.static_range(COUNT):
        share = tl.where(lane == j, SHARES[COUNT][j], share)
        part = tl.where(lane == j, PARTS[COUNT][j], part)
    rest = tl.load(at + lane * plane, mask=lane < COUNT, other=0).to(tl.int32)
    quotient = tl.sum(rest * part, 0) + (1 << 19)
    whole = tl.sum(rest.to(tl.int64) * share, 0) - (quotient >> 20).to(tl.int64) * PRODUCTS[COUNT]
    return _scaled(whole, x_shift, w_shift)


@triton.jit
def _scaled(whole, x_shift, w_shift):
    """whole * 2^-(x_shift + w_shift) in fp64, and what that has rounded."""
    value = whole.to(tl.float64)
    sums = value * power_of_two(-x_shift) * power_of_two(-w_shift)
    return sums, tl.where(tl.abs(value) > 4503599627370496.0, tl.abs(sums) * (2.0 * UNIT), 0.0)


@triton.jit
def _lost(x_top, x_loss, w_top, w_loss):
    """sum |x w - X W| <= sum |x - X| max |w| + max |X| sum |w - W|, in fp64."""
    e = x_loss.to(tl.float64) * w_top.to(tl.float64)
    return (e + x_top.to(tl.float64) * w_loss.to(tl.float64)) * SLACK


@triton.jit
def _listed(places, losses, row, count, shift, LANES: tl.constexpr):
    """The first LANES numbers that a row lost, in fp64; where that was; and which there are."""
    lane = tl.arange(0, LANES)
    there = lane < count
    at = tl.load(places + row * LISTED + lane, mask=there, other=0)
    loss = tl.load(losses + row * LISTED + lane, mask=there, other=0.0).to(tl.float64)
    return loss * power_of_two(-shift), at, there


@triton.jit
def _of_lists(x, w, x_shift, x_rests, x_at, x_there, w_rests, w_at, w_there):
    """(x - X) w + X (w - W), in units of the data: all of it exact in fp64 but the sum."""
    up = power_of_two(x_shift).to(tl.float32)
    by = tl.load(w + x_at, mask=x_there, other=0.0).to(tl.float64)
    of = tl.load(x + w_at, mask=w_there, other=0.0).to(tl.float32) * up
    whole = ((of + _MAGIC) - _MAGIC).to(tl.float64) * power_of_two(-x_shift)
    return tl.sum(x_rests * by + whole * w_rests, 0)


@triton.jit
def sum_kernel(
    kept, x, w, c, y, x_largest, x_lost, x_shifts, x_counts, x_places, x_losses,
    w_largest, w_lost, w_shifts, w_counts, w_places, w_losses, m, n, k, x_row, w_row, c_row, c_col,
    COUNT: tl.constexpr, HAS_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = R(x @ w.T + c) from the residues of the sums: x [m, k], w [n, k], y [m, n] contiguous.

    In fp32, where that is certain; what is not, one by one: with what the whole numbers lost, and
    if that is not certain either, from all terms.
    """
    OUT: tl.constexpr = y.dtype.element_ty
    r = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = columns < n
    at = kept + r * n + columns
    plane = tl.cast(m, tl.int64) * n
    x_shift, shifts = tl.load(x_shifts + r), tl.load(w_shifts + columns, mask=here, other=0)
    top, tops = tl.load(x_largest + r), tl.load(w_largest + columns, mask=here, other=0.0)
    loss, losses = tl.load(x_lost + r), tl.load(w_lost + columns, mask=here, other=0.0)
    x += r * x_row
    y += r * n
    if HAS_C:
        c += r * c_row
    result, sure = _rough(at, plane, c, top, loss, tops, losses, x_shift + shifts, columns, here,
                          c_col, OUT, COUNT, HAS_C, BLOCK)  # fmt: skip
    tl.store(y + columns, result, mask=here)
    number = tl.arange(0, BLOCK)
    open_ = tl.min(tl.where(here & ~sure, number, BLOCK), 0)
    if tl.sum((here & ~sure).to(tl.int32), 0) > _SEVERAL:
        sums, e = _sums(at, plane, x_shift, shifts, here, COUNT, BLOCK)
        if HAS_C:
            d = tl.load(c + columns.to(tl.int64) * c_col, mask=here, other=0.0)
            sums, rest = two_sum(sums, d.to(tl.float64))
            e += tl.abs(rest)
        e += _lost(top, loss, tops, losses)
        # A row that is not finite has no residues: its sums are nothing, whatever c makes of them.
        result, sure = certain(sums, tl.where(e < float("inf"), e, float("inf")), OUT)
        sure &= e < float("inf")
        tl.store(y + columns, result, mask=here)
        open_ = tl.min(tl.where(here & ~sure, number, BLOCK), 0)
    if open_ < BLOCK:
        x_count = tl.load(x_counts + r)
        x_rests, x_at, x_there = _listed(x_places, x_losses, r, x_count, x_shift, _FEW)
        while open_ < BLOCK:
            column = (tl.program_id(0) * BLOCK + open_).to(tl.int64)
            term = 0.0
            if HAS_C:
                term = tl.load(c + column * c_col)
            w_shift = tl.load(w_shifts + column)
            total, bound = _sum(kept + r * n + column, plane, x_shift, w_shift, COUNT)
            if HAS_C:
                total, rest = two_sum(total, term)
                bound += tl.abs(rest)
            w_count = tl.load(w_counts + column)
            other, most = w + column * w_row, tl.maximum(x_count, w_count)
            # x w = X W + (x - X) w + X (w - W)
            if most <= _FEW:
                w_rests, w_at, w_there = _listed(w_places, w_losses, column, w_count, w_shift, _FEW)
                total += _of_lists(
                    x, other, x_shift, x_rests, x_at, x_there, w_rests, w_at, w_there
                )
            else:
                x_all, x_all_at, x_all_there = _listed(
                    x_places, x_losses, r, x_count, x_shift, LISTED
                )
                w_all, w_all_at, w_all_there = _listed(
                    w_places, w_losses, column, w_count, w_shift, LISTED
                )
                total += _of_lists(
                    x, other, x_shift, x_all, x_all_at, x_all_there, w_all, w_all_at, w_all_there
                )
            lost = _lost(top, loss, tl.load(w_largest + column), tl.load(w_lost + column))
            # Of numbers that were brought down something may be gone that no list has.
            complete = (most <= LISTED) & (x_shift >= 0) & (w_shift >= 0)
            bound += tl.where(complete, lost * 2.0**-40, lost)
            one, known = certain(total, bound, OUT)
            if ~(known & (bound < float("inf"))):
                one = product_again(x, other, 1, 1, k, term, OUT)
            tl.store(y + column, one)
            open_ = tl.min(tl.where(here & ~sure & (number > open_), number, BLOCK), 0)


class Residues:
    """The rows of an operand as `residue_kernel` leaves them."""

    def __init__(self, x: torch.Tensor, moduli: tuple[int, ...]) -> None:
        rows, k = x.shape
        self.k_padded = -(-k // STEP) * STEP
        self.planes = torch.empty((len(moduli), rows, self.k_padded), dtype=torch.int8,
                                  device=x.device)  # fmt: skip
        facts = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        self.largest, self.lost = facts.unbind()
        numbers = torch.empty((2, rows), dtype=torch.int32, device=x.device)
        self.shifts, self.counts = numbers.unbind()
        self.places = torch.empty((rows, _LISTED), dtype=torch.int32, device=x.device)
        self.losses = torch.empty((rows, _LISTED), dtype=torch.float32, device=x.device)
        launch(
            residue_kernel, (rows,), x, self.planes, *self.facts, k, self.k_padded, x.stride(0),
            self.planes.stride(0), COUNT=len(moduli), num_warps=4,
            BLOCK=min(1024, max(128, triton.next_power_of_2(k))),
        )  # fmt: skip

    @property
    def facts(self) -> tuple[torch.Tensor, ...]:
        """What a kernel has to know of the rows, in the order of its parameters."""
        return self.largest, self.lost, self.shifts, self.counts, self.places, self.losses


def products(a: Residues, b: Residues, **tile: int) -> torch.Tensor:
    """Residues of the sums, uint8 [J, M, N]; `tile`: of the Triton kernel, which is taken then."""
    (count, m, _), n = a.planes.shape, b.planes.shape[1]
    kept = torch.empty((count, m, n), dtype=torch.uint8, device=a.planes.device)
    if not tile and cuda.takes(a.planes, b.planes):
        cuda.product(a.planes, b.planes, kept, _MODULI[:count])
    else:
        by_triton(a, b, kept, **tile)
    return kept


def by_triton(
    a: Residues, b: Residues, kept: torch.Tensor, bm: int = 128, bn: int = 128, bk: int = 128,
    warps: int = 8, stages: int = 3,
) -> None:  # fmt: skip
    """As `products`, on any device and for any N."""
    count, m, n = kept.shape
    launch(
        product_kernel, (count * -(-m // bm) * -(-n // bn),), a.planes, b.planes, kept, m, n,
        a.k_padded, a.planes.stride(0), b.planes.stride(0),
        COUNT=count, BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def settle_sums(
    kept: torch.Tensor, a: Residues, b: Residues, x: torch.Tensor, w: torch.Tensor,
    c: torch.Tensor | None, y: torch.Tensor,
) -> None:  # fmt: skip
    """y = R(x @ w.T + c) from the residues of the sums."""
    (m, k), n = x.shape, w.shape[0]
    term = (0, 0) if c is None else c.expand(y.shape).stride()
    block = min(256, max(128, triton.next_power_of_2(n)))
    launch(
        sum_kernel, (-(-n // block), m), kept, x, w, c, y, *a.facts, *b.facts, m, n, k,
        x.stride(0), w.stride(0), *term,
        COUNT=len(kept), HAS_C=c is not None, BLOCK=block, num_warps=2, maxnreg=128,
    )  # fmt: skip


def by_residues(
    x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None, y: torch.Tensor, **tile: int
) -> None:
    """y = R(x @ w.T + c) for bf16 or fp16 x [M, K] and w [N, K], K <= `LONGEST`, y [M, N].

    Columns of x and w are contiguous; c is fp32 and expands to y.
    """
    moduli = moduli_of(x.dtype)
    b, term = Residues(w, moduli), None if c is None else c.expand(y.shape)
    most = min(_ROWS, max(1, _HELD // (len(moduli) * len(w))))
    for at in range(0, len(x), most):
        rows = slice(at, at + most)
        a = Residues(x[rows], moduli)
        of = None if term is None else term[rows]
        settle_sums(products(a, b, **tile), a, b, x[rows], w, of, y[rows])
