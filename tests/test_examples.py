"""The examples do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_importance_ratios_are_one_with_samebits_only() -> None:
    ratios = example("importance_ratios").ratios
    assert (ratios(stock=False, new=10) == 1).all()
    assert not (ratios(stock=True, new=10) == 1).all()
