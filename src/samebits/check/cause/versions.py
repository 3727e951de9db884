"""Two saved reports of one model: which module's bits differ first, and what else is not the same.

A report holds a digest of every module's output for one fixed call, and the environment that it was
made in, so a difference between machines or versions is found without either of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from samebits.check.cause.marks import Marks, Request
from samebits.check.environment import VERSIONS
from samebits.check.explanation import Explanation, ModuleMark, Place
from samebits.check.result import Digest, Report
from samebits.check.subject import Subject
from samebits.check.timing import Switch
from samebits.errors import SamebitsError, SettingError
from samebits.mode import stock

_MACHINE = ("processor", "device", "platform", "engine", "vector units", "threads", "python")
_SUBJECT = ("parameters", "dtype", "request", "inputs")
#: Odd; folds the hashes of a module's tokens into one.
_FOLD = 0x9E3779B97F4A7C15


def digests(subject: Subject, switch: Switch) -> Iterator[Digest]:
    """Digests of all modules' outputs for a batch of one, on both sides."""
    if subject.module is None or not hasattr(subject, "batch"):
        return
    call = subject.batch(1)
    for side, manager in (("stock", stock), ("switched", switch)):
        marks = Marks(subject.module, Request(0))
        try:
            with manager(), marks.playing():
                call()
        except SamebitsError:
            continue  # the tests say that it does not run
        for mark in marks.outputs.values():
            value = 0
            for word in mark.value().tolist():
                value = (value * _FOLD + word) % 2**64
            yield Digest(side, mark.module, mark.name.partition("[")[0], f"{value:016x}")


def compare(first: Report, second: Report) -> Explanation:
    """Why two saved reports of one target hold different bits.

    Raises:
        SettingError: they are of different targets, sizes or dtypes, or of an older release that
            saved no digests.
    """
    x, y = first.environment, second.environment
    for key in _SUBJECT:
        if x.get(key) != y.get(key):
            raise SettingError(
                f"the reports are not of the same thing: {key} is {x.get(key)} in one and "
                f"{y.get(key)} in the other"
            )
    if not first.digests or not second.digests:
        raise SettingError(
            "a report holds no digests: make both with this release, of a target with modules"
        )
    changed = {k: (x.get(k, "none"), y.get(k, "none")) for k in {**x, **y} if x.get(k) != y.get(k)}
    versions = [k for k in changed if k in VERSIONS]
    machine = [k for k in changed if k in _MACHINE]
    lines = [f"{k}: {a} in the first, {b} in the second." for k, (a, b) in changed.items()]
    modules = {side: _modules(first, second, side) for side in ("stock", "switched")}
    for side, name in (("stock", "stock PyTorch"), ("switched", "samebits")):
        bad = sum(m.differing for m in modules[side])
        lines.append(f"{name}: {bad} of {len(modules[side])} module outputs differ.")
    differing = next((m for side in modules for m in modules[side] if m.differing), None)
    target = first.target if first.target == second.target else f"{first.target}, {second.target}"
    environment = {k: v if v == y.get(k) else f"{v} | {y.get(k, 'none')}" for k, v in x.items()}
    if differing is None:
        return Explanation(
            "equal", target, evidence=tuple(lines), modules=tuple(modules["stock"]),
            environment=environment,
        )  # fmt: skip
    names = ", ".join(f"{k} {changed[k][0]} against {changed[k][1]}" for k in versions or machine)
    kind = "version" if versions else "configuration" if machine else "unknown"
    cause = (
        f"the runs come from {names}."
        if names
        else "nothing that is saved differs: make both runs in one process with samebits.explain."
    )
    return Explanation(
        "differs", target, kind=kind, cause=cause, detail=(versions or machine or [""])[0],
        trigger="version" if versions else "machine" if machine else None,
        place=Place(differing.name, module_kind=differing.kind), evidence=tuple(lines),
        modules=tuple(modules["stock"]), environment=environment,
    )  # fmt: skip


def _modules(first: Report, second: Report, side: str) -> list[ModuleMark]:
    """Module outputs of one side that both reports have."""
    x, y = (
        {(d.name, d.kind): d.value for d in report.digests if d.side == side}
        for report in (first, second)
    )
    return [
        ModuleMark(name or "(whole)", kind, int(x[name, kind] != y[name, kind]), 1)
        for name, kind in x
        if (name, kind) in y
    ]
