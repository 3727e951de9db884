"""docs/coverage.md from the table and the registry."""

from __future__ import annotations

from samebits.mode import install
from samebits.mode.coverage import base_name
from samebits.mode.table import GROUPS, Group, Kind

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

Also refused: sparse, quantised, oneDNN and nested tensors (all arithmetic), CUDA tensors in covered
and refused operations, quantised and prepacked modules, `torch.compile` with compilers other than
Inductor and the eager ones, and every operation with a kernel that this release does not know.

Limits. Complex tensors that exist before the switch is turned on, or that a factory function makes,
are multiplied by torch's kernel, whose bits depend on the place in memory; making one from real
tensors is refused. `torch.add`, `sub` and `rsub` with an `alpha` are covered as functions and
methods (mode/scaled.py); `torch.ops.aten.add` with an `alpha`, called directly, is torch's, whose
16-bit bits depend on the place. Kernels that others write (C++ extensions, Triton, Numba) are not
seen.
"""


def coverage_markdown() -> str:
    """The text of docs/coverage.md."""
    bases = {base_name(name) for name in install.covered()}
    lines = [_HEAD, "## Covered", "", _names(sorted(bases)), ""]
    for kind in (Kind.EXACT, Kind.TESTED, Kind.COMPOSITE, Kind.RANDOM, Kind.REFUSED):
        lines += [f"## {kind.value.capitalize()}", ""]
        for group in GROUPS:
            names = [n for n in group.names.split() if base_name(n) not in bases]
            if group.kind is kind and names:
                lines += [f"**{_reason(group)}**", "", _names(names), ""]
    return "\n".join(lines).rstrip() + "\n"


def _reason(group: Group) -> str:
    why = group.why[0].upper() + group.why[1:]
    return f"{why}. {group.remedy}." if group.remedy else f"{why}."


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
