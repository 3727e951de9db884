"""The bundled model: trained, small, and the same function however its tokens arrive.

Closeness is enough here: these tests run on stock kernels. Equal bits are for the tests of the
switch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from samebits import bits
from samebits.errors import ShapeError
from samebits.models import tiny
from samebits.models.tiny import KVCache, TinyLM, encode, generate, generate_batch, load, save

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_tiny.py"
PROMPT = b"KING RICHARD III:\nNow is the winter of our discontent\n"


@pytest.fixture(scope="module")
def model() -> TinyLM:
    return load()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_tiny", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices: two threads only wait for each other, and training is reproducible on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def batch(script: ModuleType) -> Tensor:
    """Eight held-out windows of 96 bytes."""
    return script.text()[1][: 8 * 96].view(8, 96)


def entropy(counts: Tensor) -> float:
    """Shannon entropy in nats of the distribution given by `counts`."""
    p = counts.double() / counts.sum()
    return float(-torch.special.xlogy(p, p).sum())


def test_weights_are_small_and_stored_as_bfloat16(model: TinyLM) -> None:
    assert tiny.WEIGHTS.stat().st_size <= 4_000_000
    assert 1_000_000 < sum(w.numel() for w in model.parameters()) < 2_000_000
    for name, weight in model.state_dict().items():
        assert weight.dtype is torch.float32
        assert bits.equal(weight, weight.bfloat16().float()), name


def test_predicts_held_out_text(model: TinyLM, script: ModuleType) -> None:
    """Far better than the text's own letter and letter-pair statistics allow."""
    excerpt = script.text()[1][: 32 * (script.CONTEXT + 1)]
    pairs = torch.bincount(excerpt[:-1] * 256 + excerpt[1:], minlength=256 * 256)
    unigram = entropy(torch.bincount(excerpt))
    bigram = entropy(pairs) - entropy(pairs.view(256, 256).sum(1))
    loss = script.held_out_loss(model, excerpt)
    assert 3.0 < unigram < 3.6 and 2.0 < bigram < 2.6
    assert loss < 1.6, f"{loss:.3f} nats a byte; unigram {unigram:.3f}, bigram {bigram:.3f}"
    untrained = TinyLM(model.config)
    assert script.held_out_loss(untrained, excerpt[: script.CONTEXT + 1]) > unigram


def test_greedy_text_is_deterministic_and_english(model: TinyLM, script: ModuleType) -> None:
    text = generate(model, PROMPT, 160)
    assert text == generate(model, PROMPT, 160)
    train = bytes(script.text()[0].to(torch.uint8).numpy())
    known = set(train.split())
    words = text.split()[:-1]  # the last one may be cut
    assert len(words) > 15
    assert sum(word in known for word in words) > 0.8 * len(words), text
    assert text not in train, "the model recites instead of writing"


def test_batch_generation_goes_on_from_every_prompt(model: TinyLM) -> None:
    prompts = [PROMPT, b"ROMEO:\n", b"O"]
    texts = generate_batch(model, prompts, 24)
    assert [len(text) for text in texts] == [24, 24, 24]
    assert texts == [generate(model, prompt, 24) for prompt in prompts]


@torch.inference_mode()
@pytest.mark.parametrize("chunk", [1, 7, 32, 95])
def test_cache_equals_full_forward(model: TinyLM, batch: Tensor, chunk: int) -> None:
    """Decode (chunks of 1) and chunked prefill give the logits of one forward pass."""
    cache = KVCache(model.config, batch=8, capacity=batch.shape[1])
    parts = [model(part, cache) for part in batch.split(chunk, dim=1)]
    assert cache.length == batch.shape[1]
    torch.testing.assert_close(torch.cat(parts, 1), model(batch), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("pad", [1, 7, 32, 100])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("cached", [False, True])
def test_padding_is_invisible(
    model: TinyLM, batch: Tensor, pad: int, side: str, cached: bool
) -> None:
    """Padding of any bytes, on either side, leaves the real columns alone, also in later decode."""
    width = batch.shape[1]
    real = torch.zeros(8, width + pad, dtype=torch.bool)
    columns = slice(pad, None) if side == "left" else slice(0, width)
    real[:, columns] = True

    def padded(byte: int) -> Tensor:
        ids = torch.full((8, width + pad), byte)
        ids[:, columns] = batch
        cache = KVCache(model.config, 8, width + pad + 1) if cached else None
        logits = model(ids, cache, attention_mask=real)[:, columns]
        if cache is None:
            return logits
        return torch.cat((logits, model(torch.full((8, 1), ord("e")), cache)), 1)

    alone = model(torch.cat((batch, torch.full((8, 1), ord("e"))), 1))
    got = padded(tiny.PAD)
    torch.testing.assert_close(got, alone[:, : got.shape[1]], rtol=1e-4, atol=1e-4)
    assert bits.equal(got, padded(ord("q"))), "the padding byte is read"


@torch.inference_mode()
def test_given_positions_and_mask_equal_the_defaults(model: TinyLM) -> None:
    ids, real = encode([PROMPT, b"ROMEO:\n"])
    positions = torch.stack((torch.arange(ids.shape[1]), torch.arange(ids.shape[1]) - 47))
    assert int((~real).sum()) == 47
    given = model(ids, positions=positions.clamp_min(0), attention_mask=real)
    assert bits.equal(given, model(ids, attention_mask=real))
    assert not torch.allclose(model(ids, positions=positions.abs()), given, atol=1e-2)


@torch.inference_mode()
def test_half_precision_agrees(model: TinyLM, batch: Tensor) -> None:
    half = load(dtype=torch.bfloat16)
    assert half(batch).dtype is torch.bfloat16
    same = half(batch).argmax(-1) == model(batch).argmax(-1)
    assert same.float().mean() > 0.9


@torch.inference_mode()
def test_stock_kernels_depend_on_company_and_phase(model: TinyLM, batch: Tensor) -> None:
    """What the project cures must show on this model: fp32 on the CPU, stock PyTorch."""
    prefix, token = batch[:, :64], batch[:, 64:65]

    def decode(rows: int) -> Tensor:
        cache = KVCache(model.config, rows, 65)
        model(prefix[:rows], cache)
        return model(token[:rows], cache)[0, -1]

    alone = decode(1)
    assert bits.equal(alone, decode(1)), "not even the same from run to run"
    assert any(not bits.equal(alone, decode(rows)) for rows in (2, 4, 8))
    assert not bits.equal(alone, model(batch[:1, :65])[0, -1]), "prefill gives the bits of decode"


def test_saved_file_reproduces_the_model(model: TinyLM, tmp_path: Path) -> None:
    save(model, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == tiny.WEIGHTS.read_bytes()


def test_training_learns_and_is_reproducible(script: ModuleType) -> None:
    """A dozen steps lower the loss, and the same seed gives the same weights, bit for bit."""
    data, _ = script.text()

    def run(seed: int) -> tuple[TinyLM, list[float]]:
        losses: list[float] = []
        trained = script.train(data, 12, 2, seed, lambda step, loss, model: losses.append(loss))
        return trained, losses

    first, losses = run(seed=3)
    assert losses[0] == pytest.approx(torch.tensor(256.0).log().item(), abs=1e-4)
    assert losses[-1] < losses[0] - 1.0
    second, _ = run(seed=3)
    for name, weight in first.state_dict().items():
        assert bits.equal(weight, second.state_dict()[name]), name
    other, _ = run(seed=4)
    assert not bits.equal(first.embed.weight, other.embed.weight)


def test_bad_input_is_refused(model: TinyLM) -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ShapeError, match="ids must be"):
        model(ids[0])
    with pytest.raises(ShapeError, match="ids must be"):
        model(ids[:, :0])
    with pytest.raises(ShapeError, match="attention_mask"):
        model(ids, attention_mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ShapeError, match="do not fit a cache for batch 1"):
        model(ids, KVCache(model.config, 1, 8))
    with pytest.raises(ShapeError, match="0 of 2 columns"):
        model(ids, KVCache(model.config, 2, 2))
    with pytest.raises(ShapeError, match="2048 positions"):
        model(torch.zeros(1, 2049, dtype=torch.long))
    with pytest.raises(ShapeError, match="at least one byte"):
        generate(model, b"", 4)
    assert generate(model, b"A", 0) == b""
