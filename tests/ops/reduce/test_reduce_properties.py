"""A reduction sees its own elements only: faults F1, O1, O2, L6 and the layout of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits import bits, ops
from samebits.errors import DTypeError, SamebitsError, ShapeError

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": ops.sum,
    "mean": ops.mean,
    "var": ops.var,
    "std": ops.std,
    "prod": ops.prod,
    "nansum": ops.nansum,
    "norm": lambda x, dim, **kw: ops.vector_norm(x, 2, dim, **kw),
    "logsumexp": ops.logsumexp,
}


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_threads_do_not_matter(threads: Callable[[int], None]) -> None:
    x = torch.randn(2**20, generator=torch.Generator().manual_seed(1))
    stock, ours = set(), {name: set() for name in KINDS}
    for n in (1, 2, 3, 4, 8):
        threads(n)
        stock.add(x.sum().item())
        for name, fn in KINDS.items():
            ours[name].add(fn(x, 0).item())
    assert len(stock) > 1, "stock sum of 2**20 depends on threads"
    assert all(len(found) == 1 for found in ours.values()), ours


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 15, 1765, 1766, 1768, 5000])
def test_equal_rows_give_equal_sums_wherever_they_lie(dtype: torch.dtype, n: int) -> None:
    row = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    storage = torch.full((37 * (n + 3),), float("nan"), dtype=dtype)
    rows = storage.as_strided((37, n), (n + 3, 1), 1)  # every row starts at another alignment
    rows.copy_(row.expand(37, n))
    for name, fn in KINDS.items():
        alone = fn(row, 0)
        for x in (rows, row.expand(37, n), rows.contiguous()):
            got = fn(x, 1)
            assert bits.equal(got, alone.expand(37)), name


@given(
    seed=st.integers(0, 10**6),
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_layout_does_not_matter(
    numbers: Callable[..., torch.Tensor],
    seed: int,
    shape: list[int],
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    rank = len(shape)
    shape[data.draw(st.integers(0, rank - 1))] *= data.draw(st.sampled_from([1, 1, 70]))
    x = numbers(seed, tuple(shape), dtype, special=data.draw(st.sampled_from([0.0, 0.01])))
    axes = data.draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True))
    kept = [i for i in range(rank) if i not in axes]
    rows = x.permute(*kept, *sorted(axes)).reshape(*(shape[i] for i in kept), -1).contiguous()
    order = data.draw(st.permutations(range(rank)))
    other = x.permute(order).contiguous().permute([order.index(i) for i in range(rank)])
    wide = torch.full([2 * s + 1 for s in shape], float("nan"), dtype=dtype)
    strided = wide[tuple(slice(1, None, 2) for _ in shape)]
    strided.copy_(x)
    name = data.draw(st.sampled_from(sorted(KINDS)))
    fn = KINDS[name]
    want = fn(rows, -1)
    for y in (x, other, strided):
        assert bits.equal(fn(y, axes), want)
        assert bits.equal(fn(y, axes, keepdim=True).reshape(want.shape), want)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_instruction_sets_agree(numbers: Callable[..., torch.Tensor], isa: str, name: str) -> None:
    from samebits.engines import cpu

    fn = KINDS[name]
    for seed in range(12):
        for dtype in DTYPES:
            x = numbers(seed, (9, 1500 + 97 * seed), dtype, special=0.002 * (seed % 2))
            got = [fn(x, 1), fn(x, 0), fn(x, (0, 1))]
            cpu.set_isa("scalar")
            want = [fn(x, 1), fn(x, 0), fn(x, (0, 1))]
            cpu.set_isa(isa)
            assert all(bits.equal(a, b) for a, b in zip(got, want, strict=True))


def test_capability_of_torch_does_not_matter() -> None:
    program = (
        "import torch; from samebits import bits, ops; import samebits.ops as o;"
        "g = torch.Generator().manual_seed(3);"
        "x = torch.randint(-999, 999, (64, 1765), generator=g) / 256;"
        "h = lambda y: hash(tuple(bits.view(y).reshape(-1).tolist()));"
        "print(h(x.mean(1)), h(x.softmax(1)), h(torch.layer_norm(x, (1765,))));"
        "print(h(o.mean(x, 1)), h(o.softmax(x, 1)), h(o.layer_norm(x, (1765,))))"
    )
    levels = ["default", "avx2", "avx512"]
    here = torch.backends.cpu.get_cpu_capability().lower()
    stock, ours = set(), set()
    for level in levels[: levels.index(here) + 1 if here in levels else 1]:
        env = {**os.environ, "ATEN_CPU_CAPABILITY": level}
        run = [sys.executable, "-c", program]
        first, second = subprocess.check_output(run, env=env, text=True).splitlines()
        stock.add(first)
        ours.add(second)
    assert len(stock) > 1 or here not in levels[1:], "stock depends on ATEN_CPU_CAPABILITY"
    assert len(ours) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_right(dtype: torch.dtype) -> None:
    x = torch.randn(5, 7, 2100, generator=torch.Generator().manual_seed(0)).to(dtype)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    wide = x.double()
    for dim in (0, 2, (0, 2), None):
        all_dims = dim if dim is not None else (0, 1, 2)
        for got, want in [
            (ops.sum(x, dim), wide.sum(dim)),
            (ops.mean(x, dim), wide.mean(dim)),
            (ops.var(x, dim), wide.var(dim)),
            (ops.std(x, dim, correction=0), wide.std(dim, correction=0)),
            (ops.logsumexp(x, all_dims), wide.logsumexp(all_dims)),
            (ops.vector_norm(x, 1, dim), torch.linalg.vector_norm(wide, 1, dim)),
            (ops.vector_norm(x, float("inf"), dim), torch.linalg.vector_norm(wide, torch.inf, dim)),
        ]:
            torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=100 * tolerance)
    assert ops.sum(x, dtype=torch.float32).dtype is torch.float32
    values, means = ops.var_mean(x, 1)
    assert bits.equal(values, ops.var(x, 1)) and bits.equal(means, ops.mean(x, 1))


def test_edges() -> None:
    empty = torch.empty(3, 0)
    assert ops.sum(empty, 1).tolist() == [0, 0, 0] and ops.prod(empty, 1).tolist() == [1, 1, 1]
    assert ops.mean(empty, 1).isnan().all() and ops.var(torch.ones(1)).isnan()
    assert ops.logsumexp(empty, 1).tolist() == [-torch.inf] * 3
    assert ops.sum(empty, 0).shape == (0,) and ops.sum(torch.tensor(2.0)).item() == 2
    assert ops.logsumexp(torch.tensor([torch.inf, 0.0]), 0).item() == torch.inf
    assert bits.view(ops.sum(torch.tensor([-0.0, -0.0]))).item() == 0
    assert ops.nansum(torch.tensor([1.0, torch.nan, 2.0])).item() == 3
    nan = torch.tensor([1.0, -torch.nan])
    assert bits.view(ops.sum(nan)).item() == 0x7FC00000
    imaginary = torch.tensor([1 + 2j, 3 + 4j]).conj().imag  # a lazily negated view
    assert imaginary.is_neg() and ops.sum(imaginary).item() == -6


def test_what_is_not_covered_is_refused() -> None:
    x = torch.ones(2, 3)
    for bad in (x.double(), x.long(), x.to(torch.complex64), x.to("meta"), x.to_sparse()):
        with pytest.raises(DTypeError):
            ops.sum(bad)
    for dim in (2, -3, (0, 5), (0, 0), (1, -1)):
        with pytest.raises(ShapeError):
            ops.sum(x, dim)
    with pytest.raises(DTypeError, match="order 3"):
        ops.vector_norm(x, 3)
    with pytest.raises(DTypeError, match="float64"):
        ops.sum(x, dtype=torch.float64)
    with pytest.raises(ShapeError, match="no elements"):
        ops.vector_norm(torch.empty(2, 0), float("inf"), 1)
    with pytest.raises(SamebitsError, match="backward"):
        ops.sum(x.requires_grad_())


def test_flushing_of_denormals_in_the_caller_does_not_matter() -> None:
    x = torch.full((64, 3000), 1e-42)
    ramp = (torch.arange(3000.0) * -0.03).expand(64, 3000).contiguous()
    calls = [
        lambda: ops.sum(x, 1),
        lambda: ops.sum(x, 0),
        lambda: ops.sum(x),
        lambda: ops.cumsum(x, 0),
        lambda: ops.softmax(ramp),
    ]
    want = [call() for call in calls]
    assert want[0][0] > 0
    torch.set_flush_denormal(True)
    try:
        flushed = (x[0] + x[0]).max()
        got = [call() for call in calls]
    finally:
        torch.set_flush_denormal(False)
    assert flushed == 0, "torch itself flushes"
    assert all(bits.equal(a, b) for a, b in zip(got, want, strict=True))
