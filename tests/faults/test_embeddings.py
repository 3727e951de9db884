"""Groups P and Q: embedding models, vision features, log-probabilities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from faults.models import Decoder, Encoder, Vision, built, pooled
from faults.properties import FLOATS, Pairs, holds, position, row, stock_fails, threads, values
from samebits import bits

G = torch.Generator().manual_seed(9)
TEXTS = [
    torch.randint(0, 211, (int(n),), generator=G) for n in torch.randint(3, 29, (17,), generator=G)
]


def batch_of(texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts padded on the right to the longest of the batch, and where they are valid."""
    width = max(map(len, texts))
    tokens = torch.stack([F.pad(t, (0, width - len(t))) for t in texts])
    valid = torch.stack([torch.arange(width) < len(t) for t in texts])
    return tokens, valid


def encode(model: torch.nn.Module, texts: list[torch.Tensor], size: int) -> torch.Tensor:
    """Vectors of texts in batches of `size`, sorted by length as encoders do, in given order."""
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    parts = [
        model(*batch_of([texts[i] for i in order[start : start + size]]))
        for start in range(0, len(order), size)
    ]
    return torch.cat(parts)[torch.tensor(order).argsort()]


@pytest.mark.parametrize("dtype", FLOATS)
def test_p1_one_vector_for_each_sentence(dtype: torch.dtype) -> None:
    model = built(Encoder, dtype)

    def pairs() -> Pairs:
        alone = encode(model, TEXTS, 1)
        for size in (2, 7, 17):
            yield f"batches of {size}", alone, encode(model, TEXTS, size)
        yield "reversed", alone.flip(0), encode(model, TEXTS[::-1], 7)
        yield "rotated", alone.roll(5, 0), encode(model, TEXTS[-5:] + TEXTS[:-5], 7)
        yield from threads(lambda: encode(model, TEXTS[:9], 4))

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_p1_similarities_are_those_of_the_pair_alone(dtype: torch.dtype) -> None:
    vectors = F.normalize(values(300, 384, dtype=dtype), dim=-1)

    def pairs() -> Pairs:
        whole = vectors[:40] @ vectors.t()
        for i, j in ((0, 0), (3, 299), (39, 17)):
            yield "one pair", whole[i, j], vectors[i] @ vectors[j]
            yield "one query", whole[i], vectors[i : i + 1].mm(vectors.t())[0]
            yield "part of the index", whole[i, 5:77], vectors[5:77].mv(vectors[i])
        cosine = F.cosine_similarity(vectors[:40, None], vectors[None], dim=-1)
        yield "cosine", cosine[3, 7], F.cosine_similarity(vectors[3], vectors[7], dim=0)

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_p2_pooling_over_padding(dtype: torch.dtype) -> None:
    """A text's mean does not see how far it was padded, nor what the padding holds.

    The mean runs over the padded axis, so exactly zero terms are added at its end; where padding
    holds NaN, it has to be selected away rather than multiplied by zero.
    """
    x = values(3, 40, 96, dtype=dtype)
    lengths = (40, 17, 1)

    def mean(t: torch.Tensor, length: int) -> torch.Tensor:
        valid = (torch.arange(t.shape[1]) < length)[None].expand(len(t), -1)
        return pooled(t.masked_fill(~valid[..., None], 0), valid)

    def pairs() -> Pairs:
        for length in lengths:
            bare = mean(x[:, :length], length)
            for width in (length, length + 1, length + 7, length + 100, 1500):
                for fill in (0.0, float("nan"), 1e4):
                    t = F.pad(x[:, :length], (0, 0, 0, width - length), value=fill)
                    yield f"{length} of {width}", bare, mean(t, length)

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_p5_image_features_of_any_batch(dtype: torch.dtype) -> None:
    model = built(Vision, dtype)
    images = values(16, 3, 48, 48, dtype=dtype)

    def pairs() -> Pairs:
        yield from row(model, images, (1, 2, 3))
        yield from position(model, images[:3])

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_p5_scores_of_images_and_texts(dtype: torch.dtype) -> None:
    """CLIP's logits: any number of images against any number of texts."""
    images, texts = built(Vision, dtype), values(7, 48, dtype=dtype)
    pictures = values(3, 3, 48, 48, dtype=dtype)

    def scores(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return 100 * images(p) @ F.normalize(t, dim=-1).t()

    def pairs() -> Pairs:
        whole = scores(pictures, texts)
        yield "one image", whole[1:2], scores(pictures[1:2], texts)
        yield "two texts", whole[:, 2:4], scores(pictures, texts[2:4])
        yield "one pair", whole[2:, 6:], scores(pictures[2:], texts[6:])
        yield "softmax", whole.softmax(-1)[:1], scores(pictures[:1], texts).softmax(-1)

    holds(pairs)


ROLLOUTS = torch.randint(0, 211, (8, 19), generator=torch.Generator().manual_seed(4))


def logprobs(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probability of each next token, as training code computes it."""
    logits = model.logits(tokens)[:, :-1].float()
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_q1_micro_batches_and_ratio_one(dtype: torch.dtype) -> None:
    model = built(Decoder, dtype)

    def pairs() -> Pairs:
        whole = logprobs(model, ROLLOUTS)
        for size in (1, 2, 4):
            parts = torch.cat([logprobs(model, p) for p in ROLLOUTS.split(size)])
            yield f"micro-batches of {size}", whole, parts
            yield "ratio", torch.ones_like(whole), (parts - whole).exp()
        short = ROLLOUTS[:, :3]
        parts = torch.cat([logprobs(model, p) for p in short.split(1)])
        yield "short rollouts", logprobs(model, short), parts
        entropy = F.cross_entropy(
            model.logits(ROLLOUTS)[:, :-1].flatten(0, 1).float(),
            ROLLOUTS[:, 1:].flatten(),
            reduction="none",
        )
        yield "cross entropy", -whole.flatten(), entropy

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_q1_packed_sequences(dtype: torch.dtype) -> None:
    """Several sequences packed into one row with a block mask give each sequence's own bits.

    A sequence that starts at 0 has its keys at their own positions. One packed behind others has
    them elsewhere: its leaves of 512 keys start elsewhere too, and that must not matter as long as
    the packed row is one leaf.
    """
    block = built(Decoder, dtype, depth=1).blocks[0]
    lengths = (19, 7, 30)
    parts = [values(1, n, 64, dtype=dtype, seed=n) for n in lengths]
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    causal = torch.ones(56, 56, dtype=torch.bool).tril()
    mask = (causal & (owner[:, None] == owner[None, :]))[None, None]

    def pairs() -> Pairs:
        packed, _ = block(torch.cat(parts, 1), mask)
        for i, part in enumerate(parts):
            n = lengths[i]
            alone, _ = block(part, torch.ones(1, 1, n, n, dtype=torch.bool).tril())
            yield f"sequence {i}", alone[0], packed[0, owner == i]

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_q2_prompt_logprobs_over_a_large_vocabulary(dtype: torch.dtype) -> None:
    """log_softmax(lm_head) over 128256 entries, rows in any batch, full distributions compared."""
    hidden, head = values(5, 32, dtype=dtype), values(128_256, 32, dtype=dtype, seed=1)

    def pairs() -> Pairs:
        f = lambda t: F.linear(t, head).log_softmax(-1, dtype=torch.float32)  # noqa: E731
        yield from row(f, hidden, (1, 2))

    holds(pairs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_q5_copies_of_one_request(dtype: torch.dtype) -> None:
    """The log-likelihood of one item is one value for 1 to 8 copies, and in a padded batch."""
    model = built(Decoder, dtype)

    def likelihood(tokens: torch.Tensor) -> torch.Tensor:
        return logprobs(model, tokens)[:, 9:].sum(-1)

    def pairs() -> Pairs:
        alone = likelihood(ROLLOUTS[:1])
        for k in range(2, 9):
            yield f"{k} copies", alone.expand(k), likelihood(ROLLOUTS[:1].expand(k, -1))
        yield "among others", alone, likelihood(ROLLOUTS)[:1]
        padded = F.pad(ROLLOUTS, (0, 13))
        yield "padded", logprobs(model, ROLLOUTS), logprobs(model, padded)[:, :18]

    if dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


def test_a_sum_of_likelihoods_is_finite() -> None:
    """The numbers compared above are numbers."""
    out = logprobs(built(Decoder, torch.float32), ROLLOUTS)
    assert bool(out.isfinite().all()) and not bits.equal(out[0], out[1])
