"""What the switch has done to this process, as a value."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

import torch

from samebits.engines import cpu, family
from samebits.engines.triton import device_class
from samebits.errors import DTypeError
from samebits.mode import coverage, install
from samebits.mode.fallback import Policy
from samebits.mode.flags import Flags
from samebits.mode.table import Kind
from samebits.plan import planner


@dataclass(frozen=True)
class Status:
    """The state of the switch.

    Attributes:
        on: whether the overrides are in force.
        policy: ``refuse``, ``warn`` or ``allow``; None when off.
        contract: the family of contracts in force, ``device`` or ``portable``.
        allow: operations that run uncovered in silence.
        torch: version of torch.
        engine: the engines, with their instruction sets and device classes.
        threads: threads of torch's pool, which the engine shares.
        guard: what is checked while things run.
        plan: what chooses schedules on this machine's GPU; empty without one.
        hits: calls of each override, since it was first installed, most used first.
        counts: number of aten schemas of each kind on a CPU (see docs/coverage.md).
        unknown: schemas with a kernel that this release does not know; they are refused.
        changed: flags and variables that were set, and will be restored.
        late: what was already started, captured or configured when the switch came.
        foreign: overrides of aten by others, found at installation.
        notes: what else a caller should know.
    """

    on: bool
    policy: str | None
    allow: tuple[str, ...]
    torch: str
    engine: str
    threads: int
    guard: str = "off"
    plan: str = ""
    contract: str = "device"
    hits: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = "" if self.contract == "device" else f", contract={self.contract}"
        state = f"on (policy={self.policy}{shown})" if self.on else "off"
        lines = [
            f"samebits is {state}",
            f"  engine     {self.engine}, {self.threads} threads, torch {self.torch}",
            "  operations " + ", ".join(f"{n} {kind}" for kind, n in self.counts.items()),
        ]
        if self.guard != "off":
            lines.append(f"  guard      {self.guard}")
        if self.plan:
            lines.append(f"  plan       {self.plan}")
        used = {name: n for name, n in self.hits.items() if n}
        lines.append(f"  overrides  {len(self.hits)}, of which {len(used)} were used")
        lines += [f"             {n:>9} x {name}" for name, n in list(used.items())[:12]]
        sections = {
            "allowed": self.allow,
            "unknown": self.unknown,
            "set": self.changed,
            "too late": self.late,
            "foreign": self.foreign,
            "note": self.notes,
        }
        for title, entries in sections.items():
            for index, entry in enumerate(entries):
                lines.append(f"  {title if index == 0 else '':<10} {entry}")
        return "\n".join(lines)


def describe(
    policy: Policy | None, installation: install.Installation, flags: Flags, guard: str
) -> Status:
    """The status of this process."""
    hits: Counter[str] = Counter()
    for (name, _), counted in install.overrides().items():
        hits[f"aten::{name}"] += counted.hits
    kinds = Counter(
        coverage.classify(name, install.covered(), "CPU").kind for name in coverage.schemas("CPU")
    )
    unknown = {n for k in install.devices() for n in coverage.unknown(install.covered(k), k)}
    return Status(
        on=policy is not None,
        policy=policy.kind if policy else None,
        allow=tuple(sorted(policy.allow)) if policy else (),
        torch=torch.__version__,
        engine=_engines(),
        threads=torch.get_num_threads(),
        guard=guard if policy else "off",
        plan=_plan(),
        contract=family.in_force(),
        hits=dict(hits.most_common()),
        counts={kind.value: kinds[kind] for kind in Kind},
        unknown=tuple(sorted(unknown)),
        changed=tuple(flags.changed),
        late=tuple(flags.late),
        foreign=tuple(installation.foreign if policy else install.foreign_overrides()),
        notes=tuple(flags.notes) + _notes(),
    )


def _engines() -> str:
    names = [f"cpu ({cpu.isa()})"]
    if install.gpu():
        names += sorted({_gpu_engine(i) for i in range(torch.cuda.device_count())})
    return ", ".join(names)


def _plan() -> str:
    device = planner.this_device_class()
    found = planner.in_force(device)
    if device == "cpu" and not found.entries:
        return ""
    origin = "loaded" if device in planner.loaded() else "tables of this release"
    return f"{found.id}, schedules {found.schedules_id} ({origin}, {len(found.entries)} keys)"


def _gpu_engine(index: int) -> str:
    try:
        return f"triton ({device_class(index)})"
    except DTypeError:
        return f"none for {torch.cuda.get_device_name(index)}"


def _notes() -> tuple[str, ...]:
    if "triton" not in sys.modules:
        return ()
    return ("kernels written in Triton by others are not seen by the switch",)
