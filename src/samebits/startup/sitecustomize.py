"""Turns the switch on behind the first import of torch. Put on PYTHONPATH by ``samebits run``."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_HERE = str(Path(__file__).parent)


class _Enabling(importlib.abc.Loader):
    """Loads torch as its own loader does, then imports samebits, which reads SAMEBITS=1."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        import samebits  # noqa: F401


class _Finder(importlib.abc.MetaPathFinder):
    """Sees the first import of torch, and steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _Enabling(spec.loader)
        return spec


def _run_hidden() -> None:
    """Runs the sitecustomize module that this one stands in front of, if there is one."""
    here = [entry for entry in sys.path if entry != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", here)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("SAMEBITS", "0") not in ("", "0"):
    sys.meta_path.insert(0, _Finder())
_run_hidden()
