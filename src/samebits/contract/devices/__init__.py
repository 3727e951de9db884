"""Device classes as data: what a step of each chip's matrix unit computes. One file a class.

A class in these files can be evaluated, bounded, recognised by `reveal` and compared with others,
whether or not this project has kernels for it, and whether or not it has been built: a file with a
"machine" describes one that exists on paper only (see `samebits.engines.paper`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from samebits.contract.arithmetic import BlockFma
from samebits.errors import ContractError

#: The class that exists on paper only.
PAPER = "paper"


@dataclass(frozen=True)
class DeviceClass:
    """One file.

    Attributes:
        name: of the class, e.g. "sm_90".
        chips: what else it is called: products.
        arithmetic: by the operands' storage type, what a step of a matrix product does.
        missing: storage types that the chip multiplies and nobody has described, and why.
        source: where the numbers come from, and what they were compared with.
        machine: what a speed model needs to know of a chip that exists on paper only, else None.
    """

    name: str
    chips: tuple[str, ...]
    arithmetic: Mapping[str, BlockFma]
    missing: Mapping[str, str]
    source: str
    machine: Mapping[str, Any] | None = None

    def step(self, input: str) -> BlockFma:
        """The arithmetic of operands of a storage type.

        Raises:
            ContractError: the class has none, or nobody has described it.
        """
        if input in self.arithmetic:
            return self.arithmetic[input]
        why = self.missing.get(input, f"use one of {', '.join(self.arithmetic)}")
        raise ContractError(f"no arithmetic of {self.name} for {input}: {why}")


@lru_cache(maxsize=1)
def described() -> Mapping[str, DeviceClass]:
    """All classes by name."""
    files = (f for f in resources.files(__package__).iterdir() if f.name.endswith(".json"))
    found = (_read(json.loads(f.read_text("utf-8"))) for f in sorted(files, key=lambda f: f.name))
    return MappingProxyType({c.name: c for c in found})


@lru_cache(maxsize=1)
def aliases() -> Mapping[str, str]:
    """Names of chips, in lower case, with their classes."""
    return {chip.lower(): c.name for c in described().values() for chip in c.chips}


def arithmetic_of(device_class: str, input: str) -> BlockFma:
    """What a step of a matrix product of `input` operands does on a device class.

    Raises:
        ContractError: the class is not described, or not for this storage type.
    """
    name = aliases().get(device_class.lower(), device_class)
    if name not in described():
        known = sorted({*described(), *aliases()})
        raise ContractError(f"no device class {device_class!r} is described: use one of {known}")
    return described()[name].step(input)


def hopper_mma(input: str) -> BlockFma:
    """The tensor cores of sm_90 (H100, H200) with fp32 accumulators.

    bf16, fp16: blocks of 16; tf32: blocks of 8; e4m3, e5m2 (wgmma only): blocks of 32, a grid of 13
    bits, results of 14 significant bits. Everything, also floor, zeros, NaN, Inf, subnormals and
    overflow, is checked against an H200's own outputs (tests/contract/h200.npz).

    Raises:
        ContractError: another input type.
    """
    return arithmetic_of("sm_90", input)


def _read(data: dict[str, Any]) -> DeviceClass:
    steps = {
        input: BlockFma(
            data["family"], input, block=step["block"], fraction=step["fraction"],
            significand=step.get("significand", 24), floor=step.get("floor", data["floor"]),
            nan=int(data["nan"], 16),
        )
        for input, step in data["arithmetic"].items()
    }  # fmt: skip
    return DeviceClass(
        data["class"], tuple(data["chips"]), MappingProxyType(steps),
        MappingProxyType(data.get("missing", {})), data["source"], data.get("machine"),
    )  # fmt: skip
