"""Exact all-reduce: the exact sum, for every number of ranks and whoever holds what.

Over gloo on a CPU; over NCCL where there is a GPU, which ranks share if there are too few.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from exact_samples import special, spread
from samebits import bits, ops
from samebits.engines.cpu import exact as engine
from samebits.errors import SamebitsError
from samebits.ops.exact import collective

#: Short messages are gathered, long ones exchanged; 9001 does not divide among the ranks.
LENGTHS = (1, 1000, 9001)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def terms(ranks: int, dtype: torch.dtype, n: int) -> torch.Tensor:
    """[ranks, n] numbers of very different size, a few of them Inf or NaN."""
    return special(spread(ranks, n, dtype=dtype, octaves=12, seed=n), n, 0.01)


#: Where the columns of the ranks begin; one of four has none.
SHARES = {1: (0, 200), 2: (0, 73, 200), 4: (0, 64, 64, 131, 200)}


def operands(dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Sums that fp64 decides, and sums that only integers do."""
    found = {}
    for name, octaves in (("usual", 2), ("whole", 0), ("wide", 60)):
        x, w = (spread(r, 200, dtype=dtype, octaves=octaves, seed=r) for r in (7, 9))
        found[name] = (special(x, 1, 0.001), w, spread(9, dtype=dtype, octaves=octaves, seed=3))
    return found


def rank(index: int, ranks: int, folder: str, device: str) -> None:
    torch.set_num_threads(1)
    backend, place = "gloo", torch.device(device)
    if device == "cuda":
        gpus = torch.cuda.device_count()
        backend, place = "nccl", torch.device(device, index % gpus)
        torch.cuda.set_device(place)
        if gpus < ranks:  # NCCL refuses two ranks of one host on a GPU
            os.environ["NCCL_HOSTID"] = f"rank {index}"
    dist.init_process_group(backend, init_method=f"file://{folder}/meet{ranks}", rank=index,
                            world_size=ranks)  # fmt: skip
    found: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        for n in LENGTHS:
            x = terms(ranks, dtype, n).to(place)
            found[f"{dtype} {n}"] = ops.exact.all_reduce(x[index])
            whole, collective._PIECE = collective._PIECE, 700  # the last piece is a short one
            found[f"{dtype} {n} turned"] = ops.exact.all_reduce(x[index - 1])
            collective._PIECE = whole
            two = terms(2, dtype, n).to(place)
            if ranks > 1:  # two terms, and nothing on further ranks
                held = torch.zeros_like(two[0])
                if index % (ranks // 2) == 0:
                    held = two[index // (ranks // 2)]
                found[f"{dtype} {n} two"] = ops.exact.all_reduce(held)
            stock = x[index].clone()
            dist.all_reduce(stock)
            found[f"{dtype} {n} stock"] = stock
        for name, operand in operands(dtype).items():
            x, w, b = (t.to(place) for t in operand)
            edges = SHARES[ranks]
            at = slice(edges[index], edges[index + 1])
            y = ops.exact.row_parallel_linear(x[:, at], w[:, at], b)
            found[f"{dtype} {name}"] = y
    if ranks == 4:
        pair = dist.new_group([0, 1])
        if index < 2:
            found["pair"] = ops.exact.all_reduce(torch.ones(3, device=place), pair)
        else:
            with pytest.raises(SamebitsError, match="not among the ranks"):
                ops.exact.all_reduce(torch.ones(3, device=place), pair)
    torch.save({name: y.cpu() for name, y in found.items()}, f"{folder}/{ranks}-{index}.pt")
    dist.destroy_process_group()


def spawned(folder: Path, device: str) -> dict[int, list[dict[str, torch.Tensor]]]:
    """By number of ranks, what each rank computed."""
    found = {}
    for ranks in (1, 2, 4):
        args = (ranks, str(folder), device)
        mp.spawn(rank, args=args, nprocs=ranks)  # type: ignore[no-untyped-call]
        found[ranks] = [torch.load(folder / f"{ranks}-{i}.pt") for i in range(ranks)]
    return found


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def results(
    request: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[dict[str, torch.Tensor]]]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU: none is visible")
    return spawned(tmp_path_factory.mktemp("ranks"), request.param)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_is_exact(
    results: dict[int, list[dict[str, torch.Tensor]]], dtype: torch.dtype, n: int
) -> None:
    for ranks, found in results.items():
        want = ops.exact.sum(terms(ranks, dtype, n), 0)
        for of_rank in found:
            assert bits.equal(of_rank[f"{dtype} {n}"], want)
            assert bits.equal(of_rank[f"{dtype} {n} turned"], want)
            if ranks > 1:
                two = ops.exact.sum(terms(2, dtype, n), 0)
                assert bits.equal(of_rank[f"{dtype} {n} two"], two)


@pytest.mark.parametrize("name", ["usual", "whole", "wide"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_terms_of_one_sum_on_several_ranks(
    results: dict[int, list[dict[str, torch.Tensor]]], dtype: torch.dtype, name: str
) -> None:
    x, w, b = operands(dtype)[name]
    want = ops.exact.linear(x, w, b)
    for found in results.values():
        for of_rank in found:
            assert bits.equal(of_rank[f"{dtype} {name}"], want)


def test_integers_decide_what_bounds_leave_open() -> None:
    x, w, _ = operands(torch.float32)["wide"]
    y, e = engine.partial(x, w)
    _, left = engine.join(y.view(1, -1), e.view(1, -1), torch.float32)
    assert left.any()
    assert bits.equal(ops.exact.row_parallel_linear(x, w), ops.exact.linear(x, w))
    z = ops.exact.row_parallel_linear(x[:, :0], w[:, :0], torch.ones(9))
    assert bits.equal(z, torch.ones(7, 9))


def test_a_group_that_not_all_are_in(
    results: dict[int, list[dict[str, torch.Tensor]]],
) -> None:
    assert [found["pair"].tolist() for found in results[4][:2]] == [[2.0] * 3] * 2


def test_stock_is_not_exact(results: dict[int, list[dict[str, torch.Tensor]]]) -> None:
    name = f"{torch.float32} 9001"
    assert bits.count_different(results[4][0][f"{name} stock"], results[4][0][name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("octaves", [0, 3, 60])
def test_few_terms_against_rows(dtype: torch.dtype, octaves: int, isa: str) -> None:
    x = special(spread(5, 4003, dtype=dtype, octaves=octaves, seed=octaves), 1)
    for terms in (x, x[:2], x[:, 1:]):
        for out in {dtype, torch.float32}:
            assert bits.equal(engine.columns(terms, out)[0], ops.exact.sum(terms, 0, dtype=out))


def test_few_terms_that_one_rounding_does_not_finish(isa: str) -> None:
    """Ties that a rounding on the way would make, sums that fp64 does not hold, and overflow."""
    rows = [
        [256.0, 256.0, 2.0**127, -(2.0**-133), 2.0**100, 2.0**127],
        [1.0, 1.0, 2.0**127, 0.0, 2.0**-30, -(2.0**127)],
        [2.0**-60, -(2.0**-60), 0.0, 0.0, -(2.0**100), -(2.0**-133)],
    ]
    x = torch.tensor(rows).bfloat16()
    y, again = engine.columns(x, torch.bfloat16)
    want = [258.0, 256.0, torch.inf, -(2.0**-133), 2.0**-30, -(2.0**-133)]
    assert y.tolist() == want and again >= 2
    assert bits.equal(y, ops.exact.sum(x, 0))
    assert engine.columns(torch.zeros(3, 4) * -1.0, torch.float32)[0].signbit().sum() == 0


def test_alone() -> None:
    x = torch.randn(3, 4)
    y = ops.exact.all_reduce(x)
    assert bits.equal(y, x) and y.data_ptr() != x.data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_open_sums_are_looked_at_so_there_is_no_capture() -> None:
    x = torch.randn(4, 64, device="cuda")
    ops.exact.row_parallel_linear(x, x, group="alone")
    with (
        pytest.raises(SamebitsError, match="outside of the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        ops.exact.row_parallel_linear(x, x, group="alone")
