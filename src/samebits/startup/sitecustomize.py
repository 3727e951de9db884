"""Turns the switch on behind the first import of torch, and gives transformers our attention behind
the first import of its models and its server. Put on PYTHONPATH by ``samebits run``.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_HERE = str(Path(__file__).parent)


#: Behind the import of the first, the second is imported. samebits itself reads SAMEBITS=1.
_BEHIND = {
    "torch": "samebits",
    "transformers.modeling_utils": "samebits.integrations.transformers.everywhere",
    "transformers.cli.serving.utils": "samebits.integrations.transformers.server",
}


class _Enabling(importlib.abc.Loader):
    """Loads a module as its own loader does, then imports what belongs behind it."""

    def __init__(self, loader: importlib.abc.Loader, behind: str) -> None:
        self._loader, self._behind = loader, behind

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        importlib.import_module(self._behind)


class _Finder(importlib.abc.MetaPathFinder):
    """Sees the first import of each, and steps aside."""

    def __init__(self) -> None:
        self._waiting = dict(_BEHIND)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        behind = self._waiting.pop(name, None)
        if behind is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Enabling(spec.loader, behind)
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
