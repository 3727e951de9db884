"""Headers of the kernels name nothing that the header of all has: seen without a compiler, too."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from samebits.engines.cuda import nvrtc

FOLDER = Path(nvrtc.__file__).parent
HEADERS = sorted(FOLDER.glob("*/*.cuh"))
DEFINED = re.compile(r"^DEVICE [\w ]+?(\w+)\(([^)]*)\) *\{", re.M)


def functions(header: Path) -> Counter[str]:
    """Names and types of parameters of the functions that a header defines."""
    return Counter(
        f"{name}({', '.join(p.rsplit(' ', 1)[0].strip() for p in parameters.split(','))})"
        for name, parameters in DEFINED.findall(header.read_text())
    )


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_function_is_defined_once(header: Path) -> None:
    together = functions(FOLDER / "hopper.cuh") + functions(header)
    assert together["shared_address(const void*)"] == 1
    assert not {name for name, count in together.items() if count > 1}
