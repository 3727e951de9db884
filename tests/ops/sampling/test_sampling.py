"""A token is a function of its row, parameters, seed and position (faults J3, J4, J5, J7, J8)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import samebits as sb
from samebits import bits
from samebits.contract.random import gumbel, philox, token_words
from samebits.errors import DTypeError, ShapeError
from samebits.ops.sampling import apply_penalties, reference, sample

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def make_logits(seed: int, rows: int, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, n, generator=g) * 3
    x[:, 5 : n // 2 : 7] = x[:, 5:6]  # ties at the edge of every filter
    return x.to(dtype)


def parameters(seed: int, rows: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)

    def pick(*options: float) -> torch.Tensor:
        return torch.tensor(options)[torch.randint(0, len(options), (rows,), generator=g)]

    return {
        "seeds": torch.randint(-(2**62), 2**62, (rows,), generator=g),
        "positions": torch.randint(0, 2**40, (rows,), generator=g),
        "temperature": pick(0.0, 0.3, 1.0, 1.0, 1.7),
        "top_k": pick(0, 0, 1, 2, 11, 10**6).int(),
        "top_p": pick(1.0, 1.0, 0.95, 0.5, 0.01, 0.0),
        "min_p": pick(0.0, 0.0, 0.05, 0.5, 1.0),
    }


def test_philox_known_answers() -> None:
    """From the authors' Random123 distribution (kat_vectors)."""
    ones = 0xFFFFFFFF
    for counter, key, words in [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ones,) * 4, (ones, ones), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ]:  # fmt: skip
        assert " ".join(f"{w:08x}" for w in philox(np.array(counter, np.uint32), key)) == words


def test_noise_is_gumbel() -> None:
    noise = gumbel(token_words(3, 4, 100_000))
    assert abs(noise.mean() - 0.5772) < 0.02 and abs(noise.var() - math.pi**2 / 6) < 0.05
    edge = gumbel(np.array([0, 2**32 - 1], np.uint32))
    assert np.isfinite(edge).all() and edge[0] > 22


@pytest.mark.parametrize("dtype", FLOATS)
def test_sample_is_its_reference_in_any_company(dtype: torch.dtype) -> None:
    rows, n = 60, 157
    logits, given = make_logits(1, rows, n, dtype), parameters(2, rows)
    logits[3, 20], logits[4, 30], logits[5] = math.nan, math.inf, -math.inf
    logits[6, ::2] = -math.inf
    result = sample(logits, **given, logprobs=True)
    for i in range(rows):
        own = {name: v[i] for name, v in given.items()}
        seed, position = int(own.pop("seeds")), int(own.pop("positions"))
        own = {name: v.item() for name, v in own.items()}
        token, score = reference.sample_row(logits[i], seed, position, **own)
        assert int(result.tokens[i]) == token, i
        assert np.array_equal(result.logprobs[i].numpy(), score, equal_nan=True), i
        alone = sample(logits[i : i + 1], seeds=seed, positions=position, logprobs=True, **own)
        for got, want in zip(alone, result, strict=True):
            assert bits.equal(got[0], want[i])
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    shuffled = sample(logits[order], **{k: v[order] for k, v in given.items()})
    assert bits.equal(shuffled.tokens, result.tokens[order])


def test_every_combination_draws_only_what_is_left() -> None:
    """J3: min_p with a seed, and all others; filtered tokens are never drawn."""
    logits = make_logits(3, 1, 40)
    choices = itertools.product((0.5, 1.0), (0, 3, 10), (0.3, 0.9, 1.0), (0.0, 0.2))
    for temperature, top_k, top_p, min_p in choices:
        z = (logits[0] / temperature).numpy()
        left, _ = reference.kept(z, top_k, top_p, min_p)
        batch = logits.expand(200, -1)
        tokens = sample(batch, seeds=torch.arange(200), positions=7, temperature=temperature,
                        top_k=top_k, top_p=top_p, min_p=min_p).tokens  # fmt: skip
        assert set(tokens.tolist()) <= set(left)
        assert len(set(tokens.tolist())) > 1 or len(left) == 1


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    tokens = sample(logits.expand(20_000, -1), seeds=torch.arange(20_000), positions=0).tokens
    share = torch.bincount(tokens, minlength=4) / 20_000
    assert (share - logits[0].softmax(-1)).abs().max() < 0.012


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_k": 1}, {"temperature": -1.0}])
def test_greedy_takes_the_lowest_of_tied_maxima(greedy: dict[str, float]) -> None:
    """J4."""
    logits = make_logits(5, 4, 60)
    logits[1, 50], logits[1, 17] = 21.375, 21.375
    logits[2] = 0
    logits[3, :3] = torch.tensor([31.0, 31.0, 30.0])
    tokens = sample(logits, seeds=torch.arange(4), positions=0, **greedy).tokens
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert tokens[1:].tolist() == [17, 0, 0]


def test_seed_and_position_matter() -> None:
    """J5, J9: an accepted seed has an effect."""
    logits = torch.zeros(1, 1000)
    tokens = {
        int(sample(logits, seeds=s, positions=p).tokens)
        for s in (0, 1, -1, 2**40)
        for p in (0, 1, 2**33)
    }
    assert len(tokens) == 12


def test_raw_logprobs_are_log_softmax() -> None:
    """J8."""
    logits = make_logits(6, 5, 300)
    result = sample(logits, seeds=1, positions=torch.arange(5), logprobs=True)
    want = sb.ops.log_softmax(logits).gather(1, result.tokens[:, None])[:, 0]
    assert bits.equal(result.raw_logprobs, want)
    assert torch.allclose(result.logprobs, want, atol=1e-5)


def test_penalties() -> None:
    logits = make_logits(7, 3, 50)
    g = torch.Generator().manual_seed(1)
    prompt, output = (torch.randint(0, 3, (3, 50), generator=g) for _ in range(2))
    repetition, presence = torch.tensor([1.0, 1.3, 0.8]), torch.tensor([0.0, 0.7, -0.5])
    got = apply_penalties(logits, output_counts=output, prompt_counts=prompt,
                          repetition=repetition, frequency=0.3, presence=presence)  # fmt: skip
    for i, j in itertools.product(range(3), range(50)):
        x, r = np.float32(logits[i, j]), np.float32(repetition[i])
        if prompt[i, j] or output[i, j]:
            x = x / r if x > 0 else x * r
        x = x - np.float32(0.3) * np.float32(int(output[i, j]))
        if output[i, j]:
            x = x - np.float32(presence[i])
        assert np.float32(got[i, j]).view(np.uint32) == x.view(np.uint32)


def test_errors() -> None:
    logits = torch.zeros(3, 10)
    for change, error, match in [
        ({"logits": logits[0]}, ShapeError, "R, V"),
        ({"logits": logits.double()}, DTypeError, "float32"),
        ({"seeds": torch.zeros(2, dtype=torch.int64)}, ShapeError, "seeds"),
        ({"top_k": torch.zeros(3)}, DTypeError, "top_k"),
    ]:
        arguments = {"logits": logits, "seeds": 0, "positions": 0} | change
        with pytest.raises(error, match=match):
            sample(arguments.pop("logits"), **arguments)
    with pytest.raises(ShapeError, match="output_counts"):
        apply_penalties(logits, output_counts=torch.zeros(3, 9, dtype=torch.int64))
    assert sample(logits[:0], seeds=0, positions=0).tokens.shape == (0,)
