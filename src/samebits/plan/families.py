"""Families of kernels by name: where their schedules and their analytical defaults are."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from samebits.contract.devices import PAPER, described
from samebits.engines.schedule import Schedule, ScheduleKey
from samebits.errors import ContractError

#: family -> modules that define its schedules, imported when the family is first used. The first
#: has ``default(key: ScheduleKey, bucket: int) -> Schedule``, pure: bucket indexes BUCKETS,
#: len(BUCKETS) is the open end; if it is tuned, ``candidates(key, bucket)``; and, if not every
#: kernel takes all operands, ``general(key, bucket)``, of one that does.
FAMILIES: dict[str, tuple[str, ...]] = {
    "linear": ("samebits.engines.products", "samebits.engines.vendor.schedule"),
    "grouped": ("samebits.engines.triton.grouped.schedule",),
    "attention": ("samebits.engines.triton.attention.schedule",),
    **dict.fromkeys(
        ("rms_norm", "layer_norm", "softmax", "log_softmax", "logsumexp"),
        ("samebits.engines.triton.rows.schedule",),
    ),
}

#: What the accelerator on paper has schedules for.
_ON_PAPER, _PAPER = ("linear", "attention"), "samebits.engines.paper.schedule"


def default_at(key: ScheduleKey, bucket: int) -> Schedule:
    """The analytical default of a bucket: a pure function of the key.

    Raises:
        ContractError: no family of kernels takes the key.
    """
    if not has_schedules(key):
        raise ContractError(f"{key} has no schedules: {sorted(FAMILIES)} on a GPU have")
    schedule: Schedule = import_module(_module(key)).default(key, bucket)
    return schedule


def general_at(key: ScheduleKey, bucket: int) -> Schedule:
    """The schedule of a kernel that takes all operands of the key. Errors as `default_at`."""
    module = import_module(_module(key))
    schedule: Schedule = getattr(module, "general", module.default)(key, bucket)
    return schedule


def candidates_at(key: ScheduleKey, bucket: int) -> list[Schedule]:
    """What a tuner should try in a bucket, each once, the default first. Errors as `default_at`."""
    module = import_module(_module(key))
    return list(dict.fromkeys([module.default(key, bucket), *module.candidates(key, bucket)]))


def schedule_kinds(ops: Iterable[str]) -> dict[str, type[Schedule]]:
    """The kinds of schedules that the families of `ops` define, by tag.

    Raises:
        ContractError: a family is not known.
    """
    for op in sorted(ops):
        for module in (*_modules(op), _PAPER):
            import_module(module)
    found: dict[str, type[Schedule]] = {}
    stack: list[type[Schedule]] = [Schedule]
    while stack:
        kind = stack.pop()
        stack += kind.__subclasses__()
        found[str(kind.__struct_config__.tag)] = kind
    return found


def has_schedules(key: ScheduleKey) -> bool:
    """Whether kernels with schedules exist for the key; the CPU engine has none."""
    if key.device == PAPER:
        return key.op in _ON_PAPER
    on_paper_only = key.device in described() and key.device != "sm_90"
    return key.device != "cpu" and not on_paper_only and key.op in FAMILIES


def _module(key: ScheduleKey) -> str:
    """Where the schedules of a key come from."""
    return _PAPER if key.device == PAPER else _modules(key.op)[0]


def _modules(op: str) -> tuple[str, ...]:
    if op not in FAMILIES:
        raise ContractError(f"{op!r} has no schedules: {sorted(FAMILIES)} have")
    return FAMILIES[op]
