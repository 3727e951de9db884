"""Exact kernels against integers, byte for byte: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from exact_samples import DTYPES, special, spread
from interpreter import INTERPRETED
from samebits import bits
from samebits.ops import pointwise
from samebits.plan import contract_of

pytest.importorskip("triton")
from samebits.engines.cpu import exact as cpu
from samebits.engines.triton import exact as gpu
from samebits.engines.triton.exact import residue
from samebits.engines.triton.launch import launch

DEVICE = "cpu" if INTERPRETED else "cuda"
OUTPUTS = [(name, out) for name in DTYPES for out in sorted({name, "fp32"})]


def compare(
    x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None, out: torch.dtype
) -> torch.Tensor:
    want, _ = cpu.product(x, w, c, out)
    got, _ = gpu.product(x.to(DEVICE), w.to(DEVICE), None if c is None else c.to(DEVICE), out)
    assert bits.equal(got.cpu(), want), (got.cpu() != want).nonzero()[:3]
    return want


@pytest.mark.parametrize(("name", "out"), OUTPUTS)
@pytest.mark.parametrize("octaves", [0, 8, 60])
def test_products(name: str, out: str, octaves: int) -> None:
    for seed, (m, n, k) in enumerate([(1, 1, 1), (3, 9, 130), (18, 3, 33), (2, 3, 0)]):
        x, w = (spread(r, k, dtype=DTYPES[name], octaves=octaves, seed=s + seed) for s, r in
                ((0, m), (9, n)))  # fmt: skip
        c = spread(n, dtype=torch.float32, octaves=octaves, seed=3)
        for term in (None, c):
            y = compare(x, w, term, DTYPES[out])
            want = contract_of("linear", dtype=name, out_dtype=out, device="exact").evaluate(
                x, w, term, engine="integers"
            )
            assert bits.equal(y, want)


@pytest.mark.parametrize("name", DTYPES)
def test_inf_nan_and_batches(name: str) -> None:
    x = special(spread(2, 5, 36, dtype=DTYPES[name], octaves=3, seed=0), 0)
    w = special(spread(2, 7, 36, dtype=DTYPES[name], octaves=3, seed=1), 1)
    compare(x, w, torch.randn(2, 5, 7), DTYPES[name])
    compare(x[:, :, ::2], w[:, :, 1::2], None, torch.float32)
    compare(x[:, 1:, 1:], w[:1, :, 1:].expand(2, 7, 35), torch.randn(7), DTYPES[name])
    columns = x.mT.contiguous().mT  # nothing to lie side by side along k
    compare(columns, w, None, torch.float32)
    compare(w[0], columns[0], None, DTYPES[name])


def test_the_second_step_of_products() -> None:
    ones = torch.ones(1, 4).bfloat16()
    rows = [[256.0, 1.0, 2.0**-60, -(2.0**-60)], [256, 1, 2.0**-60, 0],
            [2.0**100, 1, -(2.0**100), 0],
            [2.0**127, 2.0**127, 0, 0], [2.0**-130, 2.0**-133, 0, 0], [1, -1, 0, 0]]  # fmt: skip
    w = torch.tensor(rows).bfloat16()
    y = compare(ones, w, None, torch.bfloat16)
    assert y.tolist()[0][:4] == [256.0, 258.0, 1.0, torch.inf]
    compare(ones, w, None, torch.float32)
    compare(ones, w, torch.full((6,), 2.0**-149), torch.float32)
    x = torch.tensor([[2.0**-74, 1.0, -1.0]])  # products between subnormals
    compare(x, torch.tensor([[2.0**-75, 2.0**-90, 0], [2.0**-76, 0, 0]]), None, torch.float32)
    g = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**15), 2**15, (2, 6, 80), generator=g).to(torch.int16)
    x, w = words.view(torch.bfloat16).nan_to_num(0, 1, 1).unbind()
    compare(x, w, None, torch.bfloat16)
    compare(x, w, None, torch.float32)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("m", "n", "k", "octaves"),
    [(33, 40, 128, 2), (5, 3, 257, 60), (4, 6, 130, 0), (2, 2, 1, 3), (1, 20, 40, 1)],
)
def test_residues(m: int, n: int, k: int, octaves: int, name: str) -> None:
    """Tiles with and without rows beyond the end; k that fills its last step, and that does not.

    In the interpreter a sum that is added again takes a tenth of a second: few are spread widely.
    """
    dtype = DTYPES[name]
    tile = {"bm": 32, "bn": 32, "bk": 64, "warps": 4} if INTERPRETED else {}
    n = n if INTERPRETED else 30 * n  # several blocks of columns
    x, w = (spread(r, k, dtype=dtype, octaves=octaves, seed=r) for r in (m, n))
    if m == 33:
        x = special(x, 0, 0.0002)
        x[0], w[1] = 0, 0
        x[5, 3], w[2, 4] = torch.inf, -torch.inf
    c = spread(n, dtype=torch.float32, octaves=octaves, seed=3)
    for term in (None, c):
        want, _ = cpu.product(x, w, term, dtype)
        y = torch.empty(m, n, dtype=dtype, device=DEVICE)
        on_chip = None if term is None else term.to(DEVICE)
        residue.by_residues(x.to(DEVICE), w.to(DEVICE), on_chip, y, **tile)
        assert bits.equal(y.cpu(), want)


@pytest.mark.parametrize("lost", [1, 32, 33, 256, 257, 500])
def test_what_whole_numbers_lose_decides(lost: int) -> None:
    """257 lies between 256 and 258, and 2^-12 beyond it is a whole number; quarters of the unit are
    not: eight and more of them turn the result. They are in a short list, a long one, or none.
    """
    row, ones = torch.zeros(600), torch.zeros(600)
    row[:3], row[3 : 3 + lost] = torch.tensor([256.0, 1.0, 2.0**-12]), -(2.0**-15)
    less, ones[: 3 + lost] = row.clone(), 1
    less[2:] *= -1
    x, w = (torch.stack(rows).bfloat16() for rows in ((row, less, ones), (ones, row, less)))
    a = residue.Residues(x.to(DEVICE), residue.moduli_of(x.dtype))
    assert a.counts.tolist() == [lost, lost, 0]
    tile = {"bm": 32, "bn": 32, "bk": 64, "warps": 4} if INTERPRETED else {}
    y = torch.empty(3, 3, dtype=x.dtype, device=DEVICE)
    residue.by_residues(x.to(DEVICE), w.to(DEVICE), None, y, **tile)
    found = [258, 256] if lost < 8 else [256, 258]
    assert y[:2, 0].tolist() == found and y[2, 1:].tolist() == found
    assert bits.equal(y.cpu(), cpu.product(x, w, None, x.dtype)[0])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_residues_of_rows_that_are_not_finite_beside_an_infinite_term(name: str) -> None:
    """Many results of a block are open at a time: they go through fp64 together."""
    dtype = DTYPES[name]
    x, w = (spread(r, 40, dtype=dtype, octaves=2, seed=r) for r in (4, 40))
    x[0, 3], x[1, 4], x[2, 5] = torch.nan, -torch.inf, torch.inf
    c = torch.full((40,), torch.inf)
    c[::2] = -torch.inf
    want, _ = cpu.product(x, w, c, dtype)
    assert want[0].isnan().all() and want[1].isnan().any() and want[3].isinf().all()
    y = torch.empty(4, 40, dtype=dtype, device=DEVICE)
    tile = {"bm": 32, "bn": 32, "bk": 64, "warps": 4} if INTERPRETED else {}
    residue.by_residues(x.to(DEVICE), w.to(DEVICE), c.to(DEVICE), y, **tile)
    assert bits.equal(y.cpu(), want)


@pytest.mark.parametrize(("name", "out"), OUTPUTS)
def test_a_sum_that_underflows_keeps_its_sign(name: str, out: str) -> None:
    """Terms that cancel leave so little that neither fp64 nor two of its numbers are certain."""
    x = torch.tensor([[1.0, 1.0, 1.0]]).to(DTYPES[name])
    w = torch.tensor([[2.0**-10, -(2.0**-10), 0.0]] * 2).to(DTYPES[name])
    c = torch.tensor([2.0**-149, -(2.0**-149)])
    y = compare(x, w, c, DTYPES[out])
    assert y.signbit().tolist() == [[False, True]]
    least = torch.tensor([[2.0**-140, 1.0, -1.0]]).to(torch.bfloat16).float()
    y = compare(least, -least * torch.tensor([2.0**-20, 1, 1]), None, torch.float32)
    assert y.signbit().all()


def test_grids_that_a_chip_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second and third axes of a grid are at most 65,535 long."""
    grids: list[tuple[int, ...]] = []

    def started(kernel: Any, grid: tuple[int, ...], *_: Any, **__: Any) -> None:
        grids.append(grid)

    monkeypatch.setattr(gpu, "launch", started)
    monkeypatch.setattr(residue, "launch", started)
    monkeypatch.setattr(residue.cuda, "takes", lambda *_: False)
    many, w = torch.zeros(140_000, 2, device=DEVICE), torch.zeros(96, 2, device=DEVICE)
    assert gpu.product(many, w, torch.zeros(96, device=DEVICE), torch.float32)[0].shape == (
        140_000,
        96,
    )
    assert gpu.partial(many, w)[0].shape == (140_000, 96)
    gpu.product(many.bfloat16(), w.bfloat16(), None, torch.bfloat16)
    gpu.product(many[:, None], many[:, None], None, torch.float32)
    assert len(grids) > 20 and max(max(g[1:], default=1) for g in grids) <= 65535


@pytest.mark.parametrize("most", ["_MOST", "_HELD"])
def test_rows_and_items_in_portions(monkeypatch: pytest.MonkeyPatch, most: str) -> None:
    monkeypatch.setattr(gpu, most, {"_MOST": 2, "_HELD": 8 * 9}[most])  # two rows, or three
    monkeypatch.setattr(residue, *{"_MOST": ("_ROWS", 2), "_HELD": ("_HELD", 40)}[most])
    x, w = spread(5, 40, dtype=torch.float32, octaves=3, seed=0), torch.randn(3, 40)
    compare(x, w, torch.randn(3), torch.float32)
    compare(x, w, torch.randn(5, 1), torch.float32)
    compare(x[:, None], torch.randn(5, 3, 40), torch.randn(5, 1, 3), torch.float32)
    compare(x[None].expand(3, 5, 40), torch.randn(3, 3, 40), None, torch.float32)
    y, e = gpu.partial(x.to(DEVICE), w.to(DEVICE))
    exact, _ = cpu.partial(x, w)
    assert ((y.cpu() - exact).abs() <= 2 * e.cpu()).all()
    few = torch.empty(5, 3, dtype=torch.bfloat16, device=DEVICE)
    a, b, c = x.bfloat16(), w.bfloat16(), torch.randn(5, 3)
    tile = {"bm": 32, "bn": 32, "bk": 64, "warps": 4} if INTERPRETED else {}
    residue.by_residues(a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), few, **tile)
    assert bits.equal(few.cpu(), cpu.product(a, b, c, torch.bfloat16)[0])


def test_planes_of_residues_that_are_far_apart() -> None:
    """As those of a vocabulary's weights: the last one begins beyond what 32 bits count."""
    count, plane, k = 3, 2**30 + 128, residue.STEP
    x = spread(3, k, dtype=torch.bfloat16, octaves=2, seed=0).to(DEVICE)
    near = residue.Residues(x, residue._MODULI[:count])
    far = residue.Residues(x, residue._MODULI[:count])
    # Only pages that are written take memory on a CPU.
    planes = torch.empty((count - 1) * plane + 3 * k, dtype=torch.int8, device=DEVICE)
    far.planes = planes.as_strided((count, 3, k), (plane, k, 1))
    launch(
        residue.residue_kernel, (3,), x, far.planes, *far.facts, k, k, k, plane,
        COUNT=count, BLOCK=128, num_warps=4,
    )  # fmt: skip
    assert torch.equal(far.planes, near.planes)
    tile = {"bm": 32, "bn": 32, "bk": 64, "warps": 4}
    assert torch.equal(residue.products(far, far, **tile), residue.products(near, near, **tile))


def test_moduli() -> None:
    """Sums of any whole numbers that the norms allow are found; residues are int8."""
    for a, b in itertools.combinations(residue._MODULI, 2):
        assert math.gcd(a, b) == 1
    assert residue.LONGEST * 128 * 128 <= 2**30
    for p in residue._MODULI[1:]:
        wrong = abs(Fraction(float(torch.tensor(1 / p))) - Fraction(1, p)) * 2**22
        assert p * (Fraction(1, 2) + wrong) < 128
    for sums in residue._SUMS.values():
        for share, p in zip(sums.shares, residue._MODULI, strict=False):
            assert share % p == 1 and share * p % sums.product == 0
        # What `parts` are short of, and sums up to 0.49 of the product, leave q certain.
        assert 255 * len(sums.parts) / 2**20 < 0.01
        assert 255 * sum(sums.parts) + 2**19 < 2**31


@pytest.mark.parametrize("value", ["sum", "squares", "mean", "norm"])
@pytest.mark.parametrize(("name", "out"), OUTPUTS)
def test_rows(name: str, out: str, value: str) -> None:
    for n in (0, 1, 7, 300, 5000):
        for octaves in (0, 3, 60):
            x = special(spread(5, n, dtype=DTYPES[name], octaves=octaves, seed=n), n, 0.1 / (n + 1))
            want, _ = cpu.row_values(value, x, DTYPES[out])
            got, _ = gpu.row_values(value, x.to(DEVICE), DTYPES[out])
            assert bits.equal(got.cpu(), want)


@pytest.mark.parametrize("name", DTYPES)
def test_columns(name: str) -> None:
    for octaves in (0, 3, 60):
        x = special(spread(5, 1100, dtype=DTYPES[name], octaves=octaves, seed=octaves), 1)
        want, _ = cpu.columns(x, DTYPES[name])
        got, _ = gpu.columns(x.to(DEVICE), DTYPES[name])
        assert bits.equal(got.cpu(), want)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("kind", ["softmax", "log_softmax", "logsumexp"])
def test_softmax(kind: str, name: str) -> None:
    contract = contract_of(kind, dtype=name, device="exact")
    for n, octaves in ((1, 2), (7, 2), (300, 0), (5000, 2)):
        x = special(spread(5, n, dtype=DTYPES[name], octaves=octaves, seed=n), n, 0.3 / n)
        got = gpu.softmax(kind, x.to(DEVICE), DTYPES[name])
        assert bits.equal(got.cpu(), contract.evaluate(x))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_norms(op: str, name: str) -> None:
    contract = contract_of(op, dtype=name, device="exact")
    dtype, layer = DTYPES[name], op == "layer_norm"
    for n, octaves in ((1, 2), (7, 0), (300, 2), (5000, 2)):
        x = special(spread(4, n, dtype=dtype, octaves=octaves, seed=n), n, 0.2 / n)
        w, b = (spread(n, dtype=dtype, octaves=2, seed=n + i) for i in (1, 2))
        for parameters in ((), (w,), (w, b)) if layer else ((), (w,)):
            weight, bias = (*parameters, None, None)[:2]
            on_chip = [None if p is None else p.to(DEVICE) for p in (weight, bias)]
            got = gpu.norm(x.to(DEVICE), *on_chip, 1e-5, layer)
            assert bits.equal(got.cpu(), contract.evaluate(x, *parameters, eps=1e-5))


def test_exp() -> None:
    x = torch.randn(3000) * 40
    assert bits.equal(gpu.exp(x.to(DEVICE)).cpu(), pointwise.exp(x))


@pytest.mark.parametrize("name", DTYPES)
def test_parts(name: str) -> None:
    x, w = (spread(r, 36, dtype=DTYPES[name], octaves=3, seed=r) for r in (5, 40))
    y, e = gpu.partial(x.to(DEVICE), w.to(DEVICE))
    exact, _ = cpu.partial(x, w)
    assert ((y.cpu() - exact).abs() <= 2 * e.cpu()).all()
    parts = torch.stack((y, torch.full_like(y, 0.25))).view(2, -1)
    bounds = torch.stack((e, torch.zeros_like(e))).view(2, -1)
    got, left = gpu.join(parts, bounds, DTYPES[name])
    want, open_ = cpu.join(parts.cpu(), bounds.cpu(), DTYPES[name])
    assert bits.equal(got.cpu(), want) and torch.equal(left.cpu(), open_)
    full = cpu.product(x, w, torch.full((40,), 0.25), DTYPES[name])[0].view(-1)
    assert bits.equal(got.cpu()[~left.cpu()], full[~left.cpu()])
