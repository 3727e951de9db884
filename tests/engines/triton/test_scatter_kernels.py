"""Scattered sums on the GPU have the CPU's bits (faults I1, M1, M2, M4)."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from interpreter import INTERPRETED
from samebits import bits
from samebits.engines.cpu import order as cpu
from samebits.engines.triton import scatter
from samebits.engines.triton.scatter import bags
from samebits.ops import scatter as ops

DEVICE = "cpu" if INTERPRETED else "cuda"
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    spread = 2.0 ** torch.randint(-8, 8, shape, generator=g)
    return (torch.randn(shape, generator=g) * spread).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
@pytest.mark.parametrize("n, places, inner", [(1, 1, 1), (300, 7, 1), (90, 40, 5), (40, 3, 700)])
@pytest.mark.parametrize("combine", ["add", "mul", "amax", "amin"])
def test_the_cpu_engines_bits(
    dtype: torch.dtype, n: int, places: int, inner: int, combine: str
) -> None:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    g = torch.Generator().manual_seed(n)
    positions = torch.randint(-1, places, (n,), generator=g)
    src = values(n, n, inner, dtype=dtype)
    src[torch.rand(n, inner, generator=g) < 0.01] = float("nan")
    for alpha in (1.0, -0.7) if combine == "add" else (1.0,):
        for source in (src, src[:1].expand(n, inner)):
            want, got = (values(9, places, inner, dtype=wide) for _ in range(2))
            there = got.to(DEVICE)
            cpu.scatter(want, positions, source, combine, alpha)  # type: ignore[arg-type]
            scatter.scatter(there, positions.to(DEVICE), source.to(DEVICE), combine, alpha)
            got = there.cpu()
            assert bool((got.isnan() == want.isnan()).all())
            assert bits.equal(got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("dtype", FLOATS)
def test_narrow(dtype: torch.dtype) -> None:
    acc = values(1, 3000)
    acc[::7] = float("nan")
    acc[::11] = -float("nan")
    assert bits.equal(scatter.narrow(acc.to(DEVICE), dtype).cpu(), cpu.narrow(acc, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags(dtype: torch.dtype, mode: int, weighted: bool) -> None:
    weight = values(1, 20, 40, dtype=dtype)
    weight[3, 5] = float("nan")
    indices = torch.randint(0, 20, (60,), generator=torch.Generator().manual_seed(2))
    edges = torch.tensor([0, 0, 7, 8, 40, 60])
    factors = values(3, 60, dtype=dtype) if weighted and mode == 0 else None
    want = cpu.embedding_bag(weight, indices, edges, mode, factors, 4)
    there = [t if t is None else t.to(DEVICE) for t in (weight, indices, edges, factors)]
    got = bags.embedding_bag(*there[:3], mode, there[3], 4)
    for a, b in zip(got, want, strict=True):
        assert bits.equal(a.cpu(), b)


@pytest.mark.skipif(INTERPRETED, reason="public operations take CUDA tensors")
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_public_functions(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x, index = values(1, 50, 6, dtype=dtype), torch.randint(0, 50, (5000,), generator=g)
    src = values(2, 5000, 6, dtype=dtype)
    grid = index[:4998].view(833, 6)
    for f in (
        lambda x, i, s, m: ops.index_add(x, 0, i, s, 0.3),
        lambda x, i, s, m: ops.scatter_add(x, 0, m, s),
        lambda x, i, s, m: ops.scatter_reduce(x, 0, m, s, "mean"),
        lambda x, i, s, m: ops.scatter_reduce(x, 0, m, s, "prod", include_self=False),
        lambda x, i, s, m: ops.index_reduce(x, 0, i, s, "amax"),
        lambda x, i, s, m: ops.index_put_accumulate(x, [i], s),
        lambda x, i, s, m: ops.index_put_accumulate(x, [i, i % 6], s[:, 0]),
        lambda x, i, s, m: ops.segment_reduce(s, i.new_tensor([3, 0, 4900, 97]), "mean"),
    ):
        want = f(x, index, src, grid)
        for _ in range(3):  # RUN
            got = f(x.cuda(), index.cuda(), src.cuda(), grid.cuda())
            assert bits.equal(got.cpu(), want)
    with pytest.raises(IndexError, match="out of range"):
        ops.index_add(x.cuda(), 0, index.cuda() + 1, src.cuda())
