"""The gallery: its pictures are what the script draws from recorded trees, and all are shown."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    path = DOCS.parent / "scripts" / "gallery.py"
    spec = importlib.util.spec_from_file_location("gallery", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def test_pictures_are_up_to_date(gallery: ModuleType) -> None:
    pictures = gallery.draw()
    assert {path.name for path in gallery.FOLDER.glob("*.svg")} == set(pictures)
    for name, picture in pictures.items():
        assert (gallery.FOLDER / name).read_text(encoding="utf-8") == picture, name


def test_every_picture_is_shown(gallery: ModuleType) -> None:
    shown = re.findall(r"\(gallery/([\w-]+\.svg)\)", (DOCS / "gallery.md").read_text())
    assert sorted(shown) == sorted(gallery.draw())


def test_stock_changes_its_tree_and_samebits_does_not(gallery: ModuleType) -> None:
    text = (gallery.FOLDER / "linear.svg").read_text(encoding="utf-8")
    ids = re.findall(r"tree ([0-9a-f]{12})", text) or re.findall(r"\b[0-9a-f]{12}\b", text)
    assert len(ids) == 6
    assert len(set(ids[:3])) == 3 and len(set(ids[3:])) == 1
