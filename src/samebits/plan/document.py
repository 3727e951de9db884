"""The plan: contracts and schedules of a set of shapes, as a value and as a file.

The file is JSON, written in one way only, with three hashes of its own content:

id            everything that decides bits: the shapes with their contracts' texts
schedules_id  everything that decides speed: which schedule runs in which bucket
checksum      all of it, measured times and versions included
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.errors import ContractError, PlanError
from samebits.files import PLAN, it_is
from samebits.plan.families import schedule_kinds
from samebits.plan.keys import contract_at
from samebits.plan.stack import Stack

FORMAT = 1


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in one bucket, and what was measured when it was chosen.

    Attributes:
        schedule: the fastest.
        us: its time in microseconds; None if it was not measured.
        runner_up, runner_up_us: the second.
        own, own_us: the fastest kernel of this project, where `schedule` names a vendor's algorithm
            (for another version of that library, and for operands that it does not take).
    """

    schedule: Schedule
    us: float | None = None
    runner_up: Schedule | None = None
    runner_up_us: float | None = None
    own: Schedule | None = None
    own_us: float | None = None


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that gave other bits than its contract, and may not run.

    Attributes:
        m: rows at which it was found out.
        why: what differed.
    """

    m: int
    schedule: Schedule
    why: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One key: its contract, and the choice for every bucket of M.

    Attributes:
        contract: canonical text.
        choices: one a bucket and one for the open end; empty for a device without schedules.
        stock_us: times of PyTorch's own operation in the same run, one a bucket; may be empty.
        struck: what was tried and had other bits.
    """

    key: ScheduleKey
    contract: str
    choices: tuple[Choice, ...] = ()
    stock_us: tuple[float, ...] = ()
    struck: tuple[Struck, ...] = ()

    def __post_init__(self) -> None:
        if len(self.choices) not in (0, len(BUCKETS) + 1):
            raise PlanError(f"{self.key}: {len(self.choices)} buckets, not {len(BUCKETS) + 1}")
        if len(self.stock_us) not in (0, len(BUCKETS)):
            raise PlanError(f"{self.key}: {len(self.stock_us)} times, not {len(BUCKETS)}")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Contracts and schedules for a device class. Compare plans by their ids.

    Attributes:
        stack: what it was made on.
        samebits: the release that made it.
        tuned: the day of measurement, e.g. "2026-11-29"; empty if nothing was measured.
        entries: sorted by key.
    """

    stack: Stack
    entries: tuple[Entry, ...]
    samebits: str = ""
    tuned: str = ""

    @classmethod
    def of(
        cls, entries: Iterable[Entry], stack: Stack, *, samebits: str = "", tuned: str = ""
    ) -> Plan:
        """A plan with its entries in canonical order.

        Raises:
            PlanError: two entries have one key, or one is for another device class than the stack.
        """
        entries = tuple(entries)
        for entry in entries:
            if entry.key.device != stack.device_class:
                raise PlanError(f"{entry.key} does not belong into a plan for {stack.device_class}")
        ordered = sorted(entries, key=lambda entry: encode(entry.key))
        keys = [entry.key for entry in ordered]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise PlanError(f"{twice} is twice in one plan")
        return cls(stack=stack, entries=tuple(ordered), samebits=samebits, tuned=tuned)

    @property
    def id(self) -> str:
        """16 hexadecimal digits over everything that decides bits."""
        return digest([FORMAT, [[entry.key, entry.contract] for entry in self.entries]])

    @property
    def schedules_id(self) -> str:
        """16 hexadecimal digits over everything that decides speed."""
        return digest(
            [[entry.key, [choice.schedule for choice in entry.choices]] for entry in self.entries]
        )

    def save(self, path: str | Path) -> None:
        """Writes the file; the same plan always gives the same bytes."""
        Path(path).write_bytes(write(self))

    def __str__(self) -> str:
        return f"plan {self.id} ({self.stack.device_class}, {len(self.entries)} keys)"


def merged(plans: Sequence[Plan], device_class: str) -> Plan:
    """One plan of several: all entries, the stack that they share.

    Raises:
        PlanError: they are of different stacks or releases, or two have the same key.
    """
    if not plans:
        return Plan(stack=Stack(device_class=device_class), entries=())
    first = plans[0]
    for plan in plans:
        if plan.stack.device_class != device_class or plan.stack.differences(first.stack):
            raise PlanError(f"plans of two stacks cannot be merged: {plan.stack}, {first.stack}")
    return Plan.of(
        (entry for plan in plans for entry in plan.entries),
        first.stack,
        samebits=first.samebits,
        tuned=max(plan.tuned for plan in plans),
    )


def encode(value: Any) -> bytes:
    """Canonical JSON."""
    return msgspec.json.encode(value, order="sorted")


def digest(value: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(encode(value)).hexdigest()[:16]


# ---- the file ----------------------------------------------------------------------------------


#: A measured time in microseconds.
_Time = Annotated[float, msgspec.Meta(gt=0)]


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A `Choice` with the numbers of its schedules."""

    schedule: int
    us: _Time | None
    runner_up: int | None
    runner_up_us: _Time | None
    own: int | None
    own_us: _Time | None


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    key: ScheduleKey
    contract: str
    choices: tuple[_Row, ...]
    stock_us: tuple[_Time, ...]
    struck: tuple[tuple[int, int, str], ...]


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Schedules and contracts are written once, and named by number and id."""

    format: int
    id: str
    schedules_id: str
    checksum: str
    samebits: str
    tuned: str
    stack: Stack
    contracts: dict[str, str]
    schedules: tuple[dict[str, Any], ...]
    entries: tuple[_Entry, ...]

    def sum(self) -> str:
        return digest(msgspec.structs.replace(self, checksum=""))


def write(plan: Plan) -> bytes:
    """The file's bytes: canonical JSON with a line for every contract, schedule and entry."""
    distinct = {
        encode(schedule): schedule
        for entry in plan.entries
        for schedule in (
            *(s for c in entry.choices for s in (c.schedule, c.runner_up, c.own) if s is not None),
            *(struck.schedule for struck in entry.struck),
        )
    }
    number = {text: i for i, text in enumerate(sorted(distinct))}

    def at(schedule: Schedule | None) -> int | None:
        return None if schedule is None else number[encode(schedule)]

    contracts = {_id(entry.contract): entry.contract for entry in plan.entries}
    file = _File(
        format=FORMAT,
        id=plan.id,
        schedules_id=plan.schedules_id,
        checksum="",
        samebits=plan.samebits,
        tuned=plan.tuned,
        stack=plan.stack,
        contracts=contracts,
        schedules=tuple(msgspec.json.decode(text) for text in sorted(distinct)),
        entries=tuple(
            _Entry(
                key=entry.key,
                contract=_id(entry.contract),
                choices=tuple(
                    _Row(
                        number[encode(c.schedule)],
                        c.us,
                        at(c.runner_up),
                        c.runner_up_us,
                        at(c.own),
                        c.own_us,
                    )
                    for c in entry.choices
                ),
                stock_us=entry.stock_us,
                struck=tuple((s.m, number[encode(s.schedule)], s.why) for s in entry.struck),
            )
            for entry in plan.entries
        ),
    )
    return _lines(msgspec.structs.replace(file, checksum=file.sum()))


def _lines(file: _File) -> bytes:
    """JSON with the long lists broken into lines, so that changes are seen by line."""
    parts = []
    for name, value in sorted(msgspec.to_builtins(file).items()):
        if name in ("schedules", "entries"):
            text = b"[\n" + b",\n".join(map(encode, value)) + b"\n]" if value else b"[]"
        elif name == "contracts":
            lines = (encode(k) + b":" + encode(v) for k, v in sorted(value.items()))
            text = b"{\n" + b",\n".join(lines) + b"\n}" if value else b"{}"
        else:
            text = encode(value)
        parts.append(encode(name) + b":" + text)
    return b"{\n" + b",\n".join(parts) + b"\n}\n"


def read(path: str | Path) -> Plan:
    """The plan in a file, whatever stack it was made on.

    Raises:
        PlanError: the file is no plan, was damaged or edited, or promises bits that this release
            does not give.
        OSError: the file cannot be read.
    """
    try:
        return parse(Path(path).read_bytes())
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def parse(data: bytes) -> Plan:
    """The plan in a file's bytes. Errors as `read`."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"this is no plan{it_is(data, PLAN) or f': {error}'}") from None
    if file.format != FORMAT:
        raise PlanError(
            f"format {file.format} is not known to this release (format {FORMAT}): rebuild the plan"
        )
    if file.checksum != file.sum():
        raise PlanError(
            f"checksum {file.sum()} is not the recorded {file.checksum}: the file was damaged or "
            "edited. Build or tune it anew instead of editing it"
        )
    plan = _resolved(file)
    if (plan.id, plan.schedules_id) != (file.id, file.schedules_id):
        raise PlanError("the recorded ids are not those of its content: build or tune it anew")
    if write(plan) != data:
        raise PlanError(
            "its bytes are not the canonical ones of its content: it was written anew by another "
            "program, or holds a name twice, an unknown name, or a schedule that nothing uses"
        )
    return plan


def _resolved(file: _File) -> Plan:
    try:
        kinds = schedule_kinds({entry.key.op for entry in file.entries if entry.choices})
    except ContractError as error:
        raise PlanError(str(error)) from None
    try:
        schedules = [_schedule(raw, kinds) for raw in file.schedules]
        return Plan.of(
            (_entry(entry, file.contracts, schedules) for entry in file.entries),
            file.stack,
            samebits=file.samebits,
            tuned=file.tuned,
        )
    except (IndexError, KeyError) as error:
        raise PlanError(
            f"it names a schedule or a contract that it does not hold: {error}"
        ) from None


def _entry(stored: _Entry, contracts: dict[str, str], schedules: list[Schedule]) -> Entry:
    def schedule(number: int) -> Schedule:
        return schedules[number if number >= 0 else len(schedules)]

    def at(number: int | None) -> Schedule | None:
        return None if number is None else schedule(number)

    contract = contracts[stored.contract]
    try:
        current = contract_at(stored.key).text
    except ContractError as error:
        raise PlanError(f"{stored.key}: this release has no such contract: {error}") from None
    if current != contract:
        raise PlanError(
            f"{stored.key}: the plan promises contract {_id(contract)}, and this release gives "
            f"{_id(current)}, other bits. Use the release that made the plan, or build it anew"
        )
    return Entry(
        key=stored.key,
        contract=contract,
        choices=tuple(
            Choice(
                schedule=schedule(row.schedule),
                us=row.us,
                runner_up=at(row.runner_up),
                runner_up_us=row.runner_up_us,
                own=at(row.own),
                own_us=row.own_us,
            )
            for row in stored.choices
        ),
        stock_us=stored.stock_us,
        struck=tuple(
            Struck(m=m, schedule=schedule(number), why=why) for m, number, why in stored.struck
        ),
    )


def _schedule(raw: dict[str, Any], kinds: dict[str, type[Schedule]]) -> Schedule:
    kind = kinds.get(str(raw.get("kind", "")))
    if kind is None:
        raise PlanError(f"schedules of kind {raw.get('kind')!r} are not known to this release")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise PlanError(f"schedule {raw}: {error}") from None


def _id(contract: str) -> str:
    """The id of a contract's text (`Contract.id`)."""
    return hashlib.sha256(contract.encode()).hexdigest()[:12]
