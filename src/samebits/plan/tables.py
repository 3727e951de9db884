"""The committed tables: the plans that a release brings along, one set a device class."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from samebits.plan import document
from samebits.plan.document import Plan
from samebits.plan.stack import Stack, cublaslt

__all__ = ["ROOT", "committed", "cublaslt"]

#: A folder for each device class.
ROOT = resources.files(__package__) / "tables"


@lru_cache(maxsize=16)
def committed(device_class: str) -> Plan:
    """The tables of a device class, merged into one plan; without entries if there are none.

    Their own kernels are used with any version of the libraries: a schedule decides speed alone. A
    vendor's algorithm is used with the library that it was admitted with.

    Raises:
        PlanError: a table was damaged, or the tables come from different stacks.
    """
    folder = ROOT / device_class
    if not folder.is_dir():
        return Plan(stack=Stack(device_class=device_class), entries=())
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return document.merged([document.parse(file.read_bytes()) for file in files], device_class)
