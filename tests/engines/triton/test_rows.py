"""Row kernels against their contracts, byte for byte: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interpreter import INTERPRETED, chips_nan
from samebits import bits
from samebits.contract import RowContract
from samebits.errors import ShapeError
from samebits.plan import contract_of

pytest.importorskip("triton")
from samebits.engines.triton.rows import norm, reduce, softmax
from samebits.engines.triton.rows.schedule import RowSchedule

DEVICE = "cpu" if INTERPRETED else "cuda"
SPECIAL = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 3e38])
BF, HF, FP = torch.bfloat16, torch.float16, torch.float32
#: Lengths and types of rows around every edge: lanes, leaves, alignment.
ROWS = [(1, BF), (3, FP), (128, BF), (1000, HF), (1025, BF), (1765, FP), (1765, BF)]
LONG = [(9001, BF)]
if not INTERPRETED:
    ROWS += [(4096, BF), (5120, HF), (8192, FP)]
    LONG += [(8193, FP), (152064, BF)]


def random(seed: int, *shape: int, dtype: torch.dtype, special: bool = False) -> torch.Tensor:
    """Exponents spread over 2^+-8, with special values strewn in on request."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g) * 2.0 ** torch.randint(-8, 9, shape, generator=g)
    if special:
        strewn = SPECIAL[torch.randint(0, len(SPECIAL), shape, generator=g)]
        x = torch.where(torch.rand(shape, generator=g) < 0.3 / shape[-1], strewn, x)
    return x.to(dtype)


def same(got: torch.Tensor, want: Any) -> bool:
    """Equal bytes, NaN included."""
    return bool(bits.equal(got.cpu(), want))


def contract(op: str, dtype: torch.dtype, out: torch.dtype | None = None) -> RowContract:
    found = contract_of(op, dtype=dtype, out_dtype=out, device="sm_90")
    assert isinstance(found, RowContract)
    return found


@pytest.mark.parametrize(("n", "dtype"), [*ROWS, (8193, BF), (16384, BF)])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_norms(op: str, dtype: torch.dtype, n: int) -> None:
    x, residual = (random(s, 3, n, dtype=dtype, special=True) for s in (n, n + 1))
    w, b = (random(s, n, dtype=dtype) for s in (2, 3))
    b = b if op == "layer_norm" else None
    total = chips_nan(x + residual)
    want = contract(op, dtype).evaluate(total, w, b, eps=1e-6, out_dtype=dtype)
    alone = contract(op, dtype).evaluate(x, eps=1e-6, out_dtype=dtype)
    xd, rd, wd = (t.to(DEVICE) for t in (x, residual, w))
    bd = None if b is None else b.to(DEVICE)
    schedules = [RowSchedule(), RowSchedule(num_warps=8)]
    if n <= 1024:
        schedules += [RowSchedule(rows=2, num_warps=1), RowSchedule(rows=4)]
    for schedule in schedules:
        y, added = norm.norm(
            xd[:, None], rd[:, None], wd, bd, 1e-6, schedule, centred=op == "layer_norm"
        )
        assert same(y[:, 0], want)
        assert added is not None
        assert same(added[:, 0], total)
        y, _ = norm.norm(xd, None, None, None, 1e-6, schedule, centred=op == "layer_norm")
        assert same(y, alone)


@pytest.mark.parametrize("n", [16385, 40000])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_norms_of_long_rows(op: str, n: int) -> None:
    x, w = random(n, 2, n, dtype=torch.bfloat16), random(1, n, dtype=torch.bfloat16)
    want = contract(op, x.dtype).evaluate(x, w, eps=1e-6, out_dtype=x.dtype)
    got, _ = norm.norm(x.to(DEVICE)[None], None, w.to(DEVICE), None, 1e-6, RowSchedule(),
                       centred=op == "layer_norm")  # fmt: skip
    assert same(got[0], want)


@pytest.mark.parametrize(("n", "dtype"), ROWS + LONG)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax(op: str, dtype: torch.dtype, n: int) -> None:
    x = random(n, 2, n, dtype=dtype, special=True)
    x[0] = random(n + 1, n, dtype=dtype)
    schedules = [RowSchedule(), RowSchedule(num_warps=8)]
    if n <= 1024:
        schedules = [RowSchedule(rows=2, num_warps=1), RowSchedule(rows=4)]
    for out in {dtype, FP}:
        want = contract(op, dtype, out).evaluate(x, out_dtype=out)
        for schedule in schedules:
            got = softmax.softmax(x.to(DEVICE), out, schedule, log=op == "log_softmax")
            assert same(got, want)


@pytest.mark.parametrize(("n", "dtype"), ROWS + LONG)
def test_numbers_of_rows(dtype: torch.dtype, n: int) -> None:
    x = random(n, 4, n, dtype=dtype, special=True)
    x[0] = random(n + 1, n, dtype=dtype)
    x[1] = -torch.inf
    x[2, n // 2] = torch.inf
    ids = torch.tensor([n - 1, 0, n // 2, n // 3])
    logs = contract("log_softmax", dtype, torch.float32).evaluate(x)
    for warps in (8,) if INTERPRETED else (4, 8, 16):
        schedule = RowSchedule(num_warps=warps)
        got = softmax.row_numbers(x.to(DEVICE), None, torch.float32, schedule)
        assert same(got, contract("logsumexp", dtype, torch.float32).evaluate(x))
        got = softmax.row_numbers(x.to(DEVICE), ids.to(DEVICE), torch.float32, schedule)
        assert same(got, logs[torch.arange(4), ids])  # type: ignore[index]


@pytest.mark.parametrize(("n", "dtype"), [*ROWS, *LONG, (0, BF)])
def test_sums(dtype: torch.dtype, n: int) -> None:
    x = random(n, 5, n, dtype=dtype, special=n % 2 == 1)
    xd = x.to(DEVICE)
    for op, kind in [("sum", "sum"), ("mean", "mean"), ("norm", "norm2")]:
        want = contract(op, dtype, torch.float32).evaluate(x)
        assert same(reduce.reduce_rows(kind, xd, torch.float32), want)
        if op != "sum":
            continue
        columns = xd.t().contiguous().t()
        assert same(reduce.reduce_rows(kind, columns[None], torch.float32)[0], want)
    mean = reduce.reduce_rows("mean", xd, torch.float32)
    for kind in ("var", "std"):
        got = reduce.reduce_rows(kind, xd, dtype, mean=mean, divisor=max(0, n - 1))
        assert same(got, contract(kind, dtype).evaluate(x, correction=1, out_dtype=dtype))


def test_a_leaf_of_minus_infinity_adds_nothing() -> None:
    x = torch.full((1, 20000), -torch.inf)
    x[0, 19999] = -500.0
    got = softmax.row_numbers(x.to(DEVICE), None, torch.float32, RowSchedule())
    assert same(got, torch.tensor([-500.0]))


def test_numpy_agrees_that_the_tree_is_one() -> None:
    """Lanes that hold nothing change nothing: a short row may be folded from fewer lanes."""
    from samebits.contract import numerics as nx

    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    wide, narrow = (nx.lanes_row(x, "sum", w, nx.fold_neighbours) for w in (1024, 128))
    assert (wide.view(np.uint32) == narrow.view(np.uint32)).all()


def test_a_row_of_more_leaves_than_one_program_folds_is_refused() -> None:
    x = torch.empty(1).expand(1, 8192 * 8192 + 1)
    with pytest.raises(ShapeError, match="67108864"):
        softmax.row_numbers(x, None, torch.float32, RowSchedule())
