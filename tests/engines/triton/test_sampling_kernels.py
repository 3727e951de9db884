"""The GPU draws the CPU's tokens."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from interpreter import INTERPRETED
from ops.sampling.test_sampling import make_logits, parameters
from samebits import bits
from samebits.engines.triton import sampling as engine
from samebits.ops.sampling import cpu, cuda

DEVICE = "cpu" if INTERPRETED else "cuda"
SHAPES = [(12, 70), (5, 600)] if INTERPRETED else [(200, 157), (6, 152_064)]


@pytest.mark.parametrize("rows, n", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("filters", ["all", "top_p", "none"])
def test_tokens(
    rows: int, n: int, dtype: torch.dtype, filters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if INTERPRETED:  # which sorts slowly
        monkeypatch.setattr(engine, "cut_rows", partial(engine.cut_rows, room=64))
    logits, given = make_logits(1, rows, n, dtype), parameters(n, rows)
    logits[0, 20], logits[1, 30], logits[2] = math.nan, math.inf, -math.inf
    logits[3, ::2] = -math.inf
    used = [
        given[name] if filters in (name, "all") else None for name in ("top_k", "top_p", "min_p")
    ]
    args = [logits, given["seeds"], given["positions"], given["temperature"], *used]
    want, want_scores = cpu.draw(*args, True)
    there = [None if x is None else x.to(DEVICE) for x in args]
    tokens, scores = cuda.draw(*there, True)
    assert tokens.tolist() == want.tolist()
    scores = scores.cpu()
    assert bool((scores.isnan() == want_scores.isnan()).all())
    assert bits.equal(scores.nan_to_num(), want_scores.nan_to_num())
    assert cuda.draw(*there, False)[0].tolist() == want.tolist()
    wide = torch.zeros(rows, n + 3, dtype=dtype, device=DEVICE)  # other strides, other chunks
    wide[:, :n] = there[0]
    assert cuda.draw(wide[:, :n][4:5], *(None if x is None else x[4:5] for x in there[1:]), False)[
        0
    ].tolist() == [int(want[4])]


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_a_cut_is_the_same_sorted_or_searched(temperature: float) -> None:
    rows = 10
    logits, given = make_logits(4, rows, 120), parameters(5, rows)
    heat = torch.full((rows,), temperature)
    args = [logits, heat, given["top_k"], given["top_p"], given["min_p"]]
    sorted_cut, searched = (
        engine.cut_rows(*(t.to(DEVICE) for t in args), room=room) for room in (128, 2)
    )
    assert bits.equal(sorted_cut.mass, searched.mass)
    z = logits / temperature
    kept = [_kept(z, cut) for cut in (sorted_cut, searched)]
    assert bits.equal(*kept)


def _kept(z: torch.Tensor, cut: engine.Cut) -> torch.Tensor:
    key, last, lowest, top = (t.cpu()[:, None] for t in cut[:4])
    word = bits.view(torch.where(z == 0, 0.0, z))
    own = word ^ ((word >> 31) & 0x7FFFFFFF)
    index = torch.arange(z.shape[1])
    return ((own > key) | ((own == key) & (index <= last))) & (z - top >= lowest)


def test_nucleus_of_equal_tokens() -> None:
    """All masses equal: the first ids stay."""
    logits, p = torch.zeros(3, 1000), torch.tensor([0.5, 0.25, 0.9])
    heat = torch.ones(3)
    cut = engine.cut_rows(logits.to(DEVICE), heat.to(DEVICE), None, p.to(DEVICE), None)
    assert cut.last.tolist() == [499, 249, 899]
