"""Receipts of transformers: tokens, logarithms, checksums are the request's, in any company."""

from __future__ import annotations

import inspect
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import small_models as models
import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import samebits
import samebits.integrations.transformers as sbt
from samebits.errors import ReceiptError
from samebits.guard.receipts import Identity, Receipt, verify
from samebits.guard.receipts.reading import identity_of, open_ledger
from samebits.guard.receipts.record import decode
from samebits.ops import token_logprob

LENGTHS = (5, 23, 14, 1)
NEW = 8


def read(path: Path) -> tuple[list[Receipt], Identity]:
    source = open_ledger(path)
    found = [decode(body) for _, _, body in source.rows()]
    identity = identity_of(source, found[-1])  # type: ignore[arg-type]
    source.close()
    assert verify(path).whole
    return found, identity  # type: ignore[return-value]


def generated(model: Any, rows: list[list[int]], path: Path, **options: Any) -> list[Receipt]:
    kept = {"sums": options.pop("sums", "layers")}
    side = options.pop("side", "left")
    with samebits.receipts(path, **kept):
        model.generate(
            **models.pad(rows, side), max_new_tokens=NEW, eos_token_id=-1,
            pad_token_id=models.PAD, **options,
        )  # fmt: skip
    return read(path)[0]


def own(receipt: Receipt) -> tuple[Any, ...]:
    """What must not depend on the company."""
    return receipt.input, receipt.output, receipt.logprobs, receipt.sums, receipt.covered


@pytest.mark.parametrize("sums", ["layers", "operations"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral"])
def test_a_row_has_one_receipt(kind: str, sums: str, tmp_path: Path, switch: None) -> None:
    model, rows = sbt.enable(models.decoder(kind, torch.float32)), models.prompts(LENGTHS)
    together = generated(model, rows, tmp_path / "all", sums=sums)
    assert [r.input for r in together] == rows
    for i, (row, receipt) in enumerate(zip(rows, together, strict=True)):
        (alone,) = generated(model, [row], tmp_path / f"{i}", sums=sums)
        assert own(alone) == own(receipt)
        assert alone.covered == [(0, len(row) + NEW - 1)]
        assert all(s != 0 for s in alone.sums[-1:]) and len(alone.output) == NEW


def test_stock_checksums_follow_the_company(tmp_path: Path) -> None:
    model, rows = models.decoder("llama", torch.float32), models.prompts(LENGTHS)
    together = generated(model, rows, tmp_path / "all")
    alone = [generated(model, [row], tmp_path / f"{i}")[0] for i, row in enumerate(rows)]
    assert [own(a) for a in alone] != [own(t) for t in together]


def test_logprobs_are_those_of_the_raw_logits(tmp_path: Path, switch: None) -> None:
    model, (row,) = sbt.enable(models.decoder("llama", torch.float32)), models.prompts((9,))
    (receipt,) = generated(
        model, [row], tmp_path / "r", do_sample=True, temperature=0.7, top_k=9, seeds=[5]
    )
    logits = model(torch.tensor([row + receipt.output])).logits[0, len(row) - 1 : -1]
    wanted = token_logprob(logits.float(), torch.tensor(receipt.output), dtype=torch.float32)
    assert receipt.logprobs == [struct.unpack("<I", struct.pack("<f", x))[0] for x in wanted]
    assert receipt.seed == 5 and receipt.sampling["do_sample"] is True
    assert receipt.sampling["temperature"] == 0.7 and receipt.sampling["top_k"] == 9


@pytest.mark.parametrize(
    "options",
    [{"use_cache": False}, {"cache_implementation": "static"}, {"prefill_chunk_size": 4}],
)
def test_the_way_to_a_token_does_not_matter(
    options: dict[str, Any], tmp_path: Path, switch: None
) -> None:
    model, (row,) = sbt.enable(models.decoder("llama", torch.float32)), models.prompts((13,))
    (plain,) = generated(model, [row], tmp_path / "a")
    (other,) = generated(model, [row], tmp_path / "b", **options)
    assert own(plain) == own(other)


def test_drafts_that_were_not_kept_leave_no_trace(tmp_path: Path, switch: None) -> None:
    model, (row,) = sbt.enable(models.decoder("llama", torch.float32)), models.prompts((13,))
    row = row * 3
    (plain,) = generated(model, [row], tmp_path / "a")
    (drafted,) = generated(model, [row], tmp_path / "b", prompt_lookup_num_tokens=3)
    assert own(plain) == own(drafted)


def test_several_answers_and_beams(tmp_path: Path, switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama", torch.float32)), models.prompts((6, 9))
    found = generated(
        model, rows, tmp_path / "a", do_sample=True, seeds=[3, 4], num_return_sequences=2
    )
    assert [r.input for r in found] == [rows[0], rows[0], rows[1], rows[1]]
    assert len({r.seed for r in found}) == 4
    beams = generated(model, rows, tmp_path / "b", num_beams=3)
    assert [r.input for r in beams] == rows
    assert all(r.sums == [] and r.logprobs is None and r.output for r in beams)


def test_an_answer_ends_with_its_end_token(tmp_path: Path, switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama", torch.float32)), models.prompts((6, 9))
    free = generated(model, rows, tmp_path / "a")
    end = free[0].output[2]
    with samebits.receipts(tmp_path / "b"):
        model.generate(
            **models.pad(rows, "left"), max_new_tokens=NEW, eos_token_id=end, pad_token_id=0
        )
    first, _ = read(tmp_path / "b")[0]
    assert first.output == free[0].output[: free[0].output.index(end) + 1]
    assert first.finish == "stop" and free[0].finish == "length"
    assert first.covered == [(0, 6 + len(first.output) - 1)]


def served(
    model: Any,
    rows: list[list[int]],
    path: Path,
    *,
    tokens: int = 64,
    audit: float = 0.0,
    **options: Any,
) -> list[Receipt]:
    wanted = GenerationConfig(
        max_new_tokens=NEW, eos_token_id=-1, pad_token_id=models.PAD, **options
    )
    names = inspect.signature(ContinuousBatchingConfig).parameters
    page = {"block_size" if "block_size" in names else "page_size": 8}
    config = ContinuousBatchingConfig(
        num_blocks=64, max_batch_tokens=tokens, seed=11, max_memory_percent=0.1, **page
    )
    with samebits.receipts(path, audit=audit), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.generate_batch(
            rows, generation_config=wanted, continuous_batching_config=config, progress_bar=False
        )
    found = {tuple(r.input): r for r in read(path)[0]}
    return [found[tuple(row)] for row in rows]


@pytest.mark.parametrize("sample", [False, True])
def test_continuous_batching_has_the_receipts_of_generate(
    sample: bool, tmp_path: Path, switch: None
) -> None:
    model, rows = sbt.enable(models.decoder("llama", torch.float32)), models.prompts(LENGTHS)
    options: dict[str, Any] = {"do_sample": sample, "temperature": 0.7, "top_k": 20}
    together = served(model, rows, tmp_path / "all", **options)
    chunks = served(model, rows, tmp_path / "chunks", tokens=16, **options)
    seeds = {"seeds": [11] * len(rows)} if sample else {}
    plain = generated(model, rows, tmp_path / "generate", **options, **seeds)
    assert [own(r) for r in together] == [own(r) for r in chunks] == [own(r) for r in plain]
    assert [r.seed for r in together] == [r.seed for r in plain]
    assert together[0].sampling["max_new_tokens"] == NEW and together[0].finish == "length"
    identity = read(tmp_path / "all")[1]
    assert identity.engine == "transformers" and len(identity.places) == 3


def test_identity(tmp_path: Path, switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama")), models.prompts((6,))
    generated(model, rows, tmp_path / "a")
    before = read(tmp_path / "a")[1]
    assert before.model["class"] == "LlamaForCausalLM" and before.engine == "transformers"
    linear = samebits.contract_of("linear", n=80, k=48, dtype="bf16")
    assert before.contracts["linear 80x48 bf16"] == linear.id
    assert before.texts[linear.id] == linear.text
    assert before.libraries["torch"] == torch.__version__ and before.device["class"] == "cpu"
    assert before.places == ("model.layers.0", "model.layers.1", "logits")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] += 1
    generated(model, rows, tmp_path / "b")
    after = read(tmp_path / "b")[1]
    assert after.weights != before.weights
    assert after.contracts == before.contracts and after.model == before.model


def test_no_answer_without_its_receipt(
    tmp_path: Path, switch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = sbt.enable(models.decoder("llama", torch.float32)), models.prompts((6,))
    inputs = models.pad(rows, "left")
    for on_error in ("stop", "continue"):
        recorder = samebits.receipts(tmp_path / on_error, on_error=on_error)
        assert recorder._ledger is not None

        def fails(*_: Any) -> None:
            raise ReceiptError("the disk is full")

        monkeypatch.setattr(recorder._ledger, "append", fails)
        if on_error == "stop":
            with pytest.raises(ReceiptError, match="full"):
                model.generate(**inputs, max_new_tokens=2)
            with pytest.raises(ReceiptError, match="full"):
                recorder.close()
        else:
            assert model.generate(**inputs, max_new_tokens=2).shape == (1, 8)
            monkeypatch.undo()
            recorder.close()
            assert len(read(tmp_path / on_error)[0]) == 1


def test_without_a_recorder_nothing_is_hooked(switch: None) -> None:
    model, rows = sbt.enable(models.decoder("llama", torch.float32)), models.prompts((6,))
    model.generate(**models.pad(rows, "left"), max_new_tokens=2)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
