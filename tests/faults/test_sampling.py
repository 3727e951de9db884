"""Groups J and V: ties and random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import samebits as sb
from faults.properties import (
    FLOATS,
    Pairs,
    holds,
    repeats,
    row,
    stock_fails,
    stock_is_known,
    threads,
    values,
)
from samebits import mode
from samebits.errors import UncoveredError


def lowest_maximum(x: torch.Tensor) -> torch.Tensor:
    """The first index of the maximum of each row, found without torch's ordering kernels."""
    return torch.tensor([row.index(max(row)) for row in x.tolist()])


@pytest.mark.parametrize("dtype", FLOATS)
def test_j4_greedy_takes_the_lowest_of_tied_maxima(dtype: torch.dtype) -> None:
    """argmax, top-1 and temperature 1e-6, alone and in a mixed batch."""
    logits = values(12, 5000, dtype=dtype).clamp(max=1.5)
    logits[3, 4000], logits[3, 17] = 21.375, 21.375
    logits[5] = 0
    logits[6, :3] = torch.tensor([1.0, 1.0, 0.0], dtype=dtype) + 8
    want = lowest_maximum(logits)
    assert want[3] == 17 and want[5] == 0 and want[6] == 0

    def pairs() -> Pairs:
        for name, greedy in GREEDY.items():
            yield name, want, greedy(logits)
            yield from row(greedy, logits, (1, 2, 5))
            yield from threads(lambda g=greedy: g(logits))  # type: ignore[misc]

    stock_fails(pairs)
    holds(pairs)


GREEDY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "argmax": lambda t: t.argmax(-1),
    "max": lambda t: t.max(-1).indices,
    "top_k = 1": lambda t: t.topk(1).indices[:, 0],
    "sort": lambda t: t.sort(-1, descending=True).indices[:, 0],
    "argsort": lambda t: t.argsort(-1, descending=True)[:, 0],
    "temperature 1e-6": lambda t: (t.float() / 1e-6).softmax(-1).argmax(-1),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_j3_filters_keep_the_same_tokens(dtype: torch.dtype) -> None:
    """Temperature, top-k, top-p and min-p together: a row's filtered logits are its own.

    Draws themselves are refused under the switch (J7): they depend on the rest of the batch.
    """
    logits = values(9, 300, dtype=dtype) * 2
    logits[:, 7:60:4] = logits[:, 7:8]  # ties at the edge of every filter

    def filtered(
        t: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
    ) -> torch.Tensor:
        t = t.float() / temperature
        if top_k:
            _, kept = t.topk(top_k)
            t = t.masked_fill(torch.ones_like(t, dtype=torch.bool).scatter(-1, kept, False), -1e30)
        ordered, index = t.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered > top_p
        p = torch.zeros_like(t).scatter(-1, index, ordered.masked_fill(beyond, 0))
        p = p.masked_fill(p < min_p * p.amax(-1, keepdim=True), 0)
        return p / p.sum(-1, keepdim=True)

    def pairs() -> Pairs:
        for temperature in (0.1, 1.0):
            for top_k in (0, 1, 11):
                for top_p in (0.5, 1.0):
                    for min_p in (0.0, 0.1):
                        f = lambda t: filtered(t, temperature, top_k, top_p, min_p)  # noqa: E731, B023
                        yield from row(f, logits, (1, 4))
                        yield from repeats(lambda: f(logits), 2)  # noqa: B023

    holds(pairs)


def test_j7_draws_depend_on_the_size_and_are_refused_or_named() -> None:
    """randn is run-to-run only (its values follow the size); multinomial is refused."""

    def seeded(f: Callable[[], torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(7)
        return f()

    weights = values(8, 50).abs()
    if stock_is_known():
        with mode.stock():
            short, long = (seeded(lambda n=n: torch.randn(n)) for n in (15, 16))
            assert not torch.equal(short, long[:15])
            rows = seeded(lambda: weights.multinomial(3))
            assert not torch.equal(seeded(lambda: weights[3:4].multinomial(3))[0], rows[3])
    with sb.deterministic():
        for draw in (
            lambda: weights.multinomial(3),
            lambda: weights[0].multinomial(1),
            lambda: torch.multinomial(weights, 2, replacement=True),
            lambda: torch.distributions.Categorical(probs=weights).sample(),
        ):
            with pytest.raises(UncoveredError, match="place in the batch"):
                draw()
        for make in (torch.randn, torch.rand, torch.randperm):
            first, second = (seeded(lambda: make(1000)) for _ in range(2))  # noqa: B023
            assert torch.equal(first, second)
    with mode.stock():
        again = seeded(lambda: torch.randn(1000))
    with sb.deterministic():
        assert torch.equal(seeded(lambda: torch.randn(1000)), again)


def test_j7_seeded_draws_are_a_rows_own() -> None:
    """The remedy that the refusal names: a token of a row's seed and position, in any company."""
    logits = values(16, 400)
    seeds, positions = torch.arange(16) * 7, torch.arange(16)

    def draw(rows: torch.Tensor) -> torch.Tensor:
        return sb.ops.sample(
            logits[rows], seeds=seeds[rows], positions=positions[rows], temperature=0.8, top_p=0.95
        ).tokens

    def pairs() -> Pairs:
        batch = draw(torch.arange(16))
        yield "drawn again", batch, draw(torch.arange(16))
        yield "backwards", batch.flip(0), draw(torch.arange(16).flip(0))
        for i in range(16):
            yield f"row {i}", batch[i : i + 1], draw(torch.tensor([i]))

    holds(pairs)


LENGTHS = (1, 2, 3, 15, 16, 17, 64, 1000, 4097, 200_000)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
def test_v1_argmax_takes_the_first(dtype: torch.dtype) -> None:
    def pairs() -> Pairs:
        for n in LENGTHS:
            x = (torch.arange(n) * 7919 % 5).to(dtype)
            first = torch.tensor(x.tolist().index(max(x.tolist())))
            last = torch.tensor(x.tolist().index(min(x.tolist())))
            yield f"argmax of {n}", first, x.argmax()
            yield f"argmin of {n}", last, x.argmin()
            yield f"max of {n}", first, x.max(0).indices
            yield f"constant {n}", torch.tensor(0), torch.ones(n, dtype=dtype).argmax()
            wide = x.repeat(3, 1)
            yield f"rows of {n}", first.expand(3), wide.argmax(-1)
            yield f"columns of {n}", first.expand(3), wide.t().contiguous().argmax(0)
        if dtype.is_floating_point:
            x = torch.zeros(100, dtype=dtype)
            x[[60, 20, 90]] = float("nan")
            yield "NaN counts as largest", torch.tensor(20), x.argmax()

    holds(pairs)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
def test_v2_topk_and_sort_are_stable(dtype: torch.dtype) -> None:
    def pairs() -> Pairs:
        for n in LENGTHS[:-1]:
            x = (torch.arange(n) * 7919 % 7).to(dtype)
            down = torch.tensor(sorted(range(n), key=lambda i: (-float(x[i]), i)))
            up = torch.tensor(sorted(range(n), key=lambda i: (float(x[i]), i)))
            yield f"sort of {n}", up, x.sort().indices
            yield f"descending sort of {n}", down, x.sort(descending=True).indices
            yield f"argsort of {n}", up, x.argsort()
            for k in sorted({1, min(8, n), n // 2, n}):
                yield f"top {k} of {n}", down[:k], x.topk(k).indices
                yield f"bottom {k} of {n}", up[:k], x.topk(k, largest=False).indices
        zeros = torch.zeros(16, dtype=dtype)
        yield "zeros(16)", torch.arange(8), zeros.topk(8).indices
        yield "a row of many", torch.arange(8).expand(5, 8), zeros.expand(5, 16).topk(8).indices

    stock_fails(pairs)
    holds(pairs)


def test_v2_the_reported_input() -> None:
    x = torch.tensor([-0.1944, -0.1944, -0.1945, -0.1945, -0.1945])
    holds(lambda: iter([("k = 1", torch.tensor([0]), x.topk(1).indices)]))
