"""docs/coverage.md from the table and the registry."""

from __future__ import annotations

from samebits.mode import install
from samebits.mode.coverage import base_name, classify
from samebits.mode.registry import OVERRIDES
from samebits.mode.table import GROUPS, Group, Kind
from samebits.mode.table_cuda import CUDA_GROUPS

_HEAD = """# What the switch covers

Written by `scripts/coverage_doc.py` from `src/samebits/mode/table.py` and the registered overrides;
a test keeps it in step. Names are aten operations without overload; `.out` and in-place forms go
with them. `samebits.status()` counts the schemas of the installed torch; `samebits env` prints it.

- **Covered**: computed by samebits under a contract. float32, bfloat16 and float16 where a sum or a
  function is rounded; integers and bool go to torch's kernels, which are exact; float64 and complex
  are refused.
- **Exact**: torch's kernel; it moves data, compares, counts, or rounds once per element.
- **Tested**: torch's kernel; tests show that neighbours, layout and threads do not matter.
- **Composite**: made of other operations, each of which is in this list.
- **Random**: run-to-run deterministic for a given seed. A value depends on the size of the tensor
  and on what was drawn before, so it is not batch-invariant: draw once and reuse.
- **Refused**: `UncoveredError` (`policy="refuse"`), a warning (`"warn"`) or silence (`"allow"`, or
  an entry of `allow=`).

On NVIDIA GPUs other kernels are torch's, so some operations are of another kind there: see the last
section.

Also refused: sparse, quantised, oneDNN and nested tensors (all arithmetic), quantised and prepacked
modules, `torch.compile` with compilers other than Inductor and the eager ones, and every operation
with a kernel that this release does not know.

Limits. Complex tensors that exist before the switch is turned on, or that a factory function makes,
are multiplied by torch's kernel, whose bits depend on the place in memory; making one from real
tensors is refused. `torch.add`, `sub` and `rsub` with an `alpha` are covered as functions and
methods (mode/scaled.py); `torch.ops.aten.add` with an `alpha`, called directly, is torch's, whose
16-bit bits depend on the place. Kernels that others write (C++ extensions, Triton, Numba) are not
seen.
"""


_GPU_HEAD = """## On NVIDIA GPUs

What is not named here is of the kind that the sections above give; what they call covered and this
one does not name runs on torch's CUDA kernel, which is exact or moves data.
"""


def coverage_markdown() -> str:
    """The text of docs/coverage.md."""
    covered = {base_name(name) for name in install.covered()}
    lines = [_HEAD, "## Covered", "", _names(sorted(covered)), ""]
    for kind in (Kind.EXACT, Kind.TESTED, Kind.COMPOSITE, Kind.RANDOM, Kind.REFUSED):
        lines += [f"## {kind.value.capitalize()}", ""]
        lines += _sections(kind, GROUPS, covered)
    on_gpu = {base_name(name) for name, key in OVERRIDES if key.endswith("CUDA")}
    missing = sorted(n for n in covered - on_gpu if _missing_on_gpu(n))
    lines += [_GPU_HEAD, "### Covered", "", _names(sorted(on_gpu)), ""]
    for kind in (Kind.TESTED, Kind.EXACT, Kind.REFUSED):
        lines += [f"### {kind.value.capitalize()}", ""]
        if kind is Kind.REFUSED and missing:
            lines += ["**Covered on a CPU, but not yet on a GPU.**", "", _names(missing), ""]
        lines += _sections(kind, CUDA_GROUPS, on_gpu)
    return "\n".join(lines).rstrip() + "\n"


def _sections(kind: Kind, groups: tuple[Group, ...], covered: set[str]) -> list[str]:
    lines = []
    for group in groups:
        names = [n for n in group.names.split() if base_name(n) not in covered]
        if group.kind is kind and names:
            lines += [f"**{_reason(group)}**", "", _names(names), ""]
    return lines


def _missing_on_gpu(name: str) -> bool:
    """Whether an operation that is covered on a CPU is refused on a GPU for want of an override."""
    refused = classify(name, frozenset(), "CUDA").kind is Kind.REFUSED
    named = any(name in group.names.split() for group in CUDA_GROUPS)
    return refused and not named and "_for_cpu" not in name


def _reason(group: Group) -> str:
    why = group.why[0].upper() + group.why[1:]
    return f"{why}. {group.remedy}." if group.remedy else f"{why}."


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
