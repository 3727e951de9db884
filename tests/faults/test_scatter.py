"""Group M: additions to repeated places."""

from __future__ import annotations

import pytest
import torch

from faults.properties import FLOATS, Pairs, holds, repeats, stock_fails, threads, values

N = 60_000


@pytest.mark.parametrize("dtype", FLOATS)
def test_m1_index_add_and_scatter_add(dtype: torch.dtype) -> None:
    """Heavy duplicates: repeatable, any number of threads, in the order of the source."""
    source = values(N, 8, dtype=dtype)
    index = torch.randint(0, 5, (N,), generator=torch.Generator().manual_seed(1))
    wide = index[:, None].expand(-1, 8)

    def pairs() -> Pairs:
        zeros = torch.zeros(5, 8, dtype=dtype)
        calls = {
            "index_add": lambda: zeros.index_add(0, index, source),
            "scatter_add": lambda: zeros.scatter_add(0, wide, source),
            "scatter_reduce": lambda: zeros.scatter_reduce(0, wide, source, "sum"),
            "mean": lambda: zeros.scatter_reduce(0, wide, source, "mean", include_self=False),
            "index_put": lambda: zeros.index_put((index,), source, accumulate=True),
        }
        for name, call in calls.items():
            for _, a, b in (*repeats(call, 3), *threads(call)):
                yield name, a, b
        in_place = zeros.clone().index_add_(0, index, source)
        yield "in place", zeros.index_add(0, index, source), in_place
        one = zeros[:, :1].index_add(0, index, source[:, :1])
        yield "one column", in_place[:, :1], one
        twos = [zeros.index_add(0, index[index == i], source[index == i])[i] for i in range(5)]
        yield "one place alone", in_place, torch.stack(twos)

    holds(pairs)


def test_m1_integers_are_exact() -> None:
    source = torch.randint(-9, 9, (N,), generator=torch.Generator().manual_seed(1))
    index = (torch.arange(N) * 7919) % 11

    def pairs() -> Pairs:
        want = torch.tensor([int(source[index == i].sum()) for i in range(11)])
        zeros = torch.zeros(11, dtype=torch.int64)
        yield "index_add", want, zeros.index_add(0, index, source)
        yield "scatter_add", want, zeros.scatter_add(0, index, source)
        yield "index_put", want, zeros.index_put((index,), source, accumulate=True)
        yield (
            "bincount",
            torch.bincount(index),
            torch.tensor([int((index == i).sum()) for i in range(11)]),
        )

    holds(pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_m2_weighted_counts_and_segments(dtype: torch.dtype) -> None:
    weights = values(N, dtype=dtype)
    place = torch.randint(0, 37, (N,), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([0, 1, 17, 30_000, N - 30_018])

    def pairs() -> Pairs:
        calls = {
            "bincount": lambda: place.bincount(weights),
            "histogram": lambda: (
                torch.histogram(
                    values(N, dtype=dtype, seed=2),
                    torch.linspace(-3, 3, 20, dtype=dtype),
                    weight=weights,
                ).hist
            ),
        }
        for name, call in calls.items():
            for _, a, b in (*repeats(call, 3), *threads(call)):
                yield name, a, b
        if dtype is torch.float32:
            for kind in ("sum", "mean", "max"):
                call = lambda: torch.segment_reduce(weights, kind, lengths=lengths)  # noqa: E731, B023
                for _, a, b in (*repeats(call, 3), *threads(call)):
                    yield kind, a, b
                alone = torch.segment_reduce(
                    weights[18:30_018], kind, lengths=torch.tensor([30_000])
                )
                yield f"{kind} of one segment", call()[3:4], alone

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_m4_index_put_accumulate_on_any_threads(dtype: torch.dtype) -> None:
    source = values(N, dtype=dtype)
    index = (torch.arange(N) * 7919) % 256

    def pairs() -> Pairs:
        zeros = torch.zeros(256, dtype=dtype)
        yield from threads(lambda: zeros.index_put((index,), source, accumulate=True))
        yield from repeats(lambda: zeros.index_put((index,), source, accumulate=True), 5)
        row, column = index // 16, index % 16
        square = torch.zeros(16, 16, dtype=dtype)
        yield from threads(lambda: square.index_put((row, column), source, accumulate=True))
        yield from threads(lambda: zeros.put(index, source, accumulate=True))

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_m4_gradients_of_indexing_and_embeddings(dtype: torch.dtype) -> None:
    tokens = (torch.arange(20_000) * 31) % 7

    def gradient(lookup: str) -> torch.Tensor:
        table = values(7, 16, dtype=dtype).requires_grad_()
        rows = table[tokens] if lookup == "index" else torch.nn.functional.embedding(tokens, table)
        (rows * values(20_000, 16, dtype=dtype, seed=4)).sum().backward()
        assert table.grad is not None
        return table.grad

    def pairs() -> Pairs:
        for lookup in ("index", "embedding"):
            yield from threads(lambda: gradient(lookup))  # noqa: B023

    holds(pairs)
