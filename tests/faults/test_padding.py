"""Group E: padding. U1: what masked positions hold."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from faults.models import Decoder, built
from faults.properties import FLOATS, Pairs, holds, stock_fails, values
from samebits import bits

WIDTHS = (1, 7, 32, 100)
TEXT = torch.randint(0, 211, (1, 23), generator=torch.Generator().manual_seed(5))


def padded(tokens: torch.Tensor, left: int, right: int, fill: int) -> tuple[torch.Tensor, ...]:
    """Tokens, validity and positions with padding on both sides."""
    count, length = tokens.shape
    text = F.pad(tokens, (left, right), value=fill)
    place = torch.arange(left + length + right) - left
    valid = ((place >= 0) & (place < length)).expand(count, -1)
    return text, valid, place.clamp(0, 511).expand(count, -1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_e1_padding_left_and_right(dtype: torch.dtype) -> None:
    model = built(Decoder, dtype)

    def pairs() -> Pairs:
        bare = model.logits(TEXT)
        for width in WIDTHS:
            for left, right in ((width, 0), (0, width), (width, width)):
                text, valid, places = padded(TEXT, left, right, fill=0)
                logits = model(text, None, valid, places)[0]
                yield f"{left} left, {right} right", bare, logits[:, left : left + 23]

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_e1_padded_batch_of_several_lengths_and_decode(dtype: torch.dtype) -> None:
    """Left padding to the longest prompt, then decode steps: as each request alone."""
    model = built(Decoder, dtype)
    lengths = (23, 9, 1, 16)

    def steps(text: torch.Tensor, valid: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        logits, cache = model(text, None, valid, places)
        out = [logits[:, -1]]
        for t in range(6):
            valid = F.pad(valid, (0, 1), value=True)
            here = places[:, -1:] + t + 1
            logits, cache = model(out[-1].argmax(-1, keepdim=True), cache, valid, here)
            out.append(logits[:, -1])
        return torch.stack(out, 1)

    def pairs() -> Pairs:
        parts = [padded(TEXT[:, :n], 23 - n, 0, fill=3) for n in lengths]
        batch = steps(*(torch.cat(p) for p in zip(*parts, strict=True)))
        for i, n in enumerate(lengths):
            yield f"length {n}", steps(*padded(TEXT[:, :n], 0, 0, fill=0)), batch[i : i + 1]

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_e3_the_padding_token_does_not_matter(dtype: torch.dtype) -> None:
    model = built(Decoder, dtype)

    def pairs() -> Pairs:
        for left, right in ((7, 0), (0, 7), (100, 32)):
            runs = []
            for fill in (0, 1, 210):
                text, valid, places = padded(TEXT, left, right, fill)
                runs.append(model(text, None, valid, places)[0][:, left : left + 23])
            yield f"{left} left, {right} right", runs[0], runs[1]
            yield f"{left} left, {right} right", runs[0], runs[2]

    holds(pairs)


POISONS = (math.nan, math.inf, -math.inf, 1e30, -0.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("keys", [5, 64, 700])
def test_u1_masked_keys_may_hold_anything(dtype: torch.dtype, keys: int) -> None:
    q, k, v = (values(2, 4, n, 32, dtype=dtype, seed=n) for n in (9, keys, keys + 1))
    v = v[:, :, :keys]
    hidden = torch.zeros(2, 1, 1, keys, dtype=torch.bool)
    hidden[0, ..., keys // 2 :] = True
    hidden[1, ..., : keys // 3] = True
    additive = torch.zeros(2, 1, 1, keys, dtype=dtype).masked_fill(hidden, -math.inf)

    def pairs() -> Pairs:
        for name, mask in (("boolean", ~hidden), ("additive", additive)):
            want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            for poison in POISONS:
                bad = hidden.view(2, 1, keys, 1)
                fill = torch.tensor(poison).to(dtype)
                k2, v2 = k.masked_fill(bad, fill), v.masked_fill(bad, fill)
                got = F.scaled_dot_product_attention(q, k2, v2, attn_mask=mask)
                yield f"{name} mask over {poison}", want, got

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_u1_future_keys_may_hold_anything(dtype: torch.dtype) -> None:
    q, k, v = (values(2, 2, 33, 16, dtype=dtype, seed=n) for n in range(3))

    def pairs() -> Pairs:
        want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        for cut in (1, 16, 32):
            for poison in POISONS:
                k2, v2 = k.clone(), v.clone()
                k2[:, :, cut:], v2[:, :, cut:] = poison, poison
                got = F.scaled_dot_product_attention(q, k2, v2, is_causal=True)
                yield f"{poison} from {cut}", want[:, :, :cut], got[:, :, :cut]

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_u1_fully_masked_rows_give_zero(dtype: torch.dtype) -> None:
    q, k, v = (values(1, 2, 6, 16, dtype=dtype, seed=n) for n in range(3))
    visible = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    visible[..., 2, :] = False
    k[:, :, 3], v[:, :, 3] = math.nan, math.nan
    visible[..., 3] = False
    with sb.deterministic():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    assert bool(out.isfinite().all())
    assert bits.equal(out[:, :, 2], torch.zeros_like(out[:, :, 2]))
