"""A trainer's log-probabilities are the engine's, bit for bit, in any micro-batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import samebits
from samebits.bits import equal
from samebits.errors import DTypeError, ShapeError
from samebits.models import tiny
from samebits.ops import token_logprob, token_logprobs

LENGTHS = (9, 3, 17, 1)


@pytest.fixture
def switch() -> Iterator[None]:
    with samebits.deterministic():
        yield


@pytest.fixture(scope="module")
def model() -> tiny.TinyLM:
    return tiny.load().to(torch.bfloat16).requires_grad_(True)


def texts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(32, 120, (n,), generator=generator) for n in LENGTHS]


def by_decoding(model: tiny.TinyLM, ids: torch.Tensor) -> torch.Tensor:
    """What an engine records: one token after another, from a cache."""
    cache = tiny.KVCache(model.config, 1, len(ids), torch.bfloat16)
    found = []
    with torch.no_grad():
        for now, then in itertools.pairwise(ids):
            logits = model(now.view(1, 1), cache)[0]
            found.append(token_logprob(logits, then.view(1), dtype=torch.float32))
    return torch.cat(found) if found else torch.empty(0)


def padded(rows: list[torch.Tensor], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids, mask = (torch.zeros(len(rows), longest, dtype=torch.int64) for _ in range(2))
    for i, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def test_stock_disagrees_with_itself(model: tiny.TinyLM) -> None:
    row = texts()[2]
    with samebits.mode.stock():
        recorded = torch.cat(
            [model(row[None, : i + 1])[0, -1:].float().log_softmax(-1)[:, row[i + 1]]
             for i in range(len(row) - 1)]
        )  # fmt: skip
        again = model(row[None].expand(8, -1))[0, :-1].float().log_softmax(-1)
        again = again.gather(1, row[1:, None])[:, 0]
    assert not equal(recorded.detach(), again.detach())


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_padded_micro_batches(model: tiny.TinyLM, left: bool, grad: bool, switch: None) -> None:
    expected = [by_decoding(model, row) for row in texts()]
    with torch.set_grad_enabled(grad):
        for size in (1, 3, 4):
            ids, mask = padded(texts()[:size], left)
            found = token_logprobs(model, ids, mask=mask)
            assert found.requires_grad == grad
            known = mask[:, 1:].bool() & mask[:, :-1].bool()
            assert equal(found[known].detach(), torch.cat(expected[:size]))
            assert not found[~known].any()


def test_packed_rows(model: tiny.TinyLM, switch: None) -> None:
    ids = torch.cat(texts())[None]
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    found = token_logprobs(model, ids, positions=positions)[0]
    inside = positions[0, 1:] != 0
    assert equal(found[inside].detach(), torch.cat([by_decoding(model, t) for t in texts()]))
    assert not found[~inside].any()


class Deaf(torch.nn.Module):
    """Takes positions, as models of transformers do, and does not look at them."""

    def __init__(self, model: tiny.TinyLM) -> None:
        super().__init__()
        self.model, self.packed = model, 0

    def forward(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, use_cache: bool
    ) -> Any:
        self.packed += attention_mask is None
        seen = None if attention_mask is None else attention_mask.bool()
        return self.model(input_ids, attention_mask=seen)


def test_packed_rows_of_a_model_that_runs_them_together(model: tiny.TinyLM, switch: None) -> None:
    ids = torch.cat(texts())[None]
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    expected, deaf = token_logprobs(model, ids, positions=positions), Deaf(model)
    for _ in range(2):
        assert equal(token_logprobs(deaf, ids, positions=positions).detach(), expected.detach())
    assert deaf.packed == 1  # the second time it is known


def test_the_gradient_is_that_of_log_softmax(switch: None) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 6, 11, requires_grad=True)
    ids = torch.randint(0, 11, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])

    def model(ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = torch.where(mask[..., None] == 0, float("nan"), logits)
        return hidden if attention_mask is not None else logits

    found = token_logprobs(model, ids, mask=mask, temperature=0.7)
    weights = torch.randn(2, 5)
    (gradient,) = torch.autograd.grad((found * weights).sum(), logits)
    rows = (logits[:, :-1] / 0.7).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    known = mask[:, 1:].bool() & mask[:, :-1].bool()
    (expected,) = torch.autograd.grad((rows * weights * known).sum(), logits)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(found, torch.where(known, rows, 0.0))


def test_bad_input(model: tiny.TinyLM) -> None:
    ids = torch.ones(2, 4, dtype=torch.int64)
    with pytest.raises(DTypeError, match="ids are integers"):
        token_logprobs(model, ids.float())
    with pytest.raises(ShapeError, match=r"\[B, T >= 1\]"):
        token_logprobs(model, ids[0])
    with pytest.raises(ShapeError, match="mask"):
        token_logprobs(model, ids, mask=ids[:, :2])
    with pytest.raises(ShapeError, match="not both"):
        token_logprobs(model, ids, mask=ids, positions=ids)
    with pytest.raises(ShapeError, match="temperature"):
        token_logprobs(model, ids, temperature=0.0)
