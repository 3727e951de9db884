"""What the engine tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import write
from vllm_engines import Engine

#: Entry point of the plugin, for an installation that is a folder on PYTHONPATH.
_ENTRY = "[vllm.general_plugins]\nsamebits = samebits.integrations.vllm:register\n"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose metadata names the plugin; an installed samebits has its own."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "samebits_plugin-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: samebits-plugin\nVersion: 0\n")
    (about / "entry_points.txt").write_text(_ENTRY)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")

    def checkpoint(kind: str, **changes: Any) -> Path:
        return write(kind, folder / "-".join([kind, *map(str, changes.values())]), **changes)

    return checkpoint


@pytest.fixture(scope="session")
def engine(site: Path) -> Engine:
    return Engine(site)
