"""Runs an operation by itself with one thing changed at a time, and says whose bits come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch

from samebits import bits
from samebits.check.cause.capture import Operation, copied
from samebits.check.cause.settings import Settings
from samebits.check.explanation import Factor

#: Numbers of rows that are tried: both sides of the edges of usual tiles.
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
_ROWS_WIDE = (255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
_REPEATS = {"cpu": 12, "cuda": 60}
_VARIANTS = 8
"""Different results of repetitions that are kept."""

Results = Sequence[torch.Tensor]
Whose = Literal["first", "second", "both", "other"]


def same(x: Results, y: Results) -> bool:
    """Whether all results agree in every bit."""
    return len(x) == len(y) and all(bits.equal(a, b) for a, b in zip(x, y, strict=True))


@dataclass
class Rows:
    """The first axis of an operation's operands, in blocks that belong together.

    Attributes:
        carriers: which operands have it.
        count: blocks; a block is a row, a token, or the heads of a request.
        block: entries of the axis in a block.
        place: the request's block (its first differing token's, where blocks are tokens).
    """

    op: Operation
    carriers: tuple[int, ...]
    count: int
    block: int
    place: int

    def arranged(self, order: Sequence[int]) -> list[torch.Tensor]:
        """The operands with blocks in another order, left out, or repeated."""
        index = torch.tensor(order)
        if self.block > 1:
            index = (index[:, None] * self.block + torch.arange(self.block)).reshape(-1)
        operands = self.op.operands
        for i in self.carriers:
            operands[i] = operands[i].index_select(0, index.to(operands[i].device))
        return operands

    def replaced(self, fill: Callable[[torch.Tensor, torch.Tensor], Any]) -> list[torch.Tensor]:
        """The operands with ``fill(others, request's block)`` in the place of the other blocks."""
        operands = self.op.operands
        start, stop = self.place * self.block, (self.place + 1) * self.block
        for i in self.carriers:
            mine = operands[i][start:stop].clone()
            changed = operands[i].clone()
            changed[:start] = fill(changed[:start], mine)
            changed[stop:] = fill(changed[stop:], mine)
            operands[i] = changed
        return operands

    def of(self, results: Results, place: int, count: int) -> list[torch.Tensor]:
        """One block of each result that has the axis."""
        return [
            t[place * self.block : (place + 1) * self.block]
            for t in results
            if t.dim() and t.shape[0] == count * self.block
        ]

    def mine(self, results: Results) -> list[torch.Tensor]:
        """The request's block of results with this operation's own operands."""
        return self.of(results, self.place, self.count)


def rows_of(op: Operation, other: Operation) -> Rows | None:
    """How the batch lies on the first axis of an operation, or None when it does not."""
    window, operands = op.window, op.operands
    if not window.batch:
        return None
    has = [
        i
        for i, (t, origin) in enumerate(zip(operands, op.origins, strict=True))
        if t.dim() and origin.name is None and _carries(t, op)
        and (i >= len(other.operands) or _carries(other.operands[i], other))
    ]  # fmt: skip
    if not has or any(_in_time(t, window.batch) for t in operands):
        return None
    axis = operands[has[-1]].shape[0]
    carriers = tuple(i for i in has if operands[i].shape[0] == axis)
    if len(carriers) < len(has):
        return None
    batch, length = window.batch, window.length or 0
    if length and axis == batch * length and axis != batch:
        start = window.spans[op.row][0] if window.spans else 0
        token = start + op.token
        place = token * batch + op.row if window.time_first else op.row * length + token
        return Rows(op, carriers, axis, 1, place)
    return Rows(op, carriers, batch, axis // batch, op.row)


def _carries(t: torch.Tensor, op: Operation) -> bool:
    return (
        t.dim() > 0
        and t.shape[0] % op.window.batch == 0
        and op.window.select(t, op.row, None) is not None
    )


def _in_time(t: torch.Tensor, batch: int) -> bool:
    """Whether `t` may be [T, B, ...]: kernels of recurrent layers trust that the batches agree."""
    return t.dim() > 2 and t.shape[0] != batch and t.shape[1] == batch > 1


class Isolation:
    """Both calls of one operation, by themselves.

    Args:
        first, second: the operation as the two runs made it.
    """

    def __init__(self, first: Operation, second: Operation) -> None:
        self.first, self.second = first, second
        self.want = first.parts(first.output), second.parts(second.output)

    @cached_property
    def alone(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """All results of each, run by itself."""
        return self.first.run(), self.second.run()

    @cached_property
    def variants(self) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
        """Other results than `alone` that each gives when it is run again and again."""
        return _variants(self.first, self.alone[0]), _variants(self.second, self.alone[1])

    @property
    def repeats(self) -> tuple[bool, bool]:
        """Whether each has the same bits when it is run again and again."""
        return not self.variants[0], not self.variants[1]

    @cached_property
    def reproduced(self) -> bool:
        """Whether each, by itself, gives the bits that it gave in its run."""
        x, y = (op.parts(r) for op, r in zip((self.first, self.second), self.alone, strict=True))
        return same(x, self.want[0]) and same(y, self.want[1])

    @cached_property
    def rows(self) -> tuple[Rows, Rows] | None:
        """How the batch lies in both."""
        x, y = rows_of(self.first, self.second), rows_of(self.second, self.first)
        if x is None or y is None or x.block != y.block:
            return None
        return x, y

    def whose(self, results: Results, *, of_rows: tuple[int, int] | None = None) -> Whose:
        """Whose bits results of the second operation's form are.

        `of_rows`: place and count of the request's block, where the operands were rearranged.
        """
        if of_rows is not None:
            assert self.rows is not None
            x, y = self.rows
            got = y.of(results, *of_rows)
            want = x.mine(self.first.output), y.mine(self.second.output)
        else:
            got, want = self.second.parts(results), self.want
        first, second = same(got, want[0]), same(got, want[1])
        if first and second:
            return "both"
        return "first" if first else "second" if second else "other"

    def experiments(self) -> Iterator[Factor]:
        """All factors, cheapest first. Each starts from the second run's call."""
        yield self._repeat()
        yield self._alone()
        yield from self._settings()
        yield from self._arguments()
        yield from self._operands()
        yield from self._layouts()
        if self.rows is not None:
            yield from self._batch(*self.rows)

    def _try(
        self, name: str, change: str, run: Callable[[], Results], **how: Any
    ) -> Iterator[Factor]:
        try:
            outcome = self.whose(run(), **how)
        except Exception as error:
            yield Factor(name, change, "failed", f"{type(error).__name__}: {error}")
            return
        yield Factor(name, change, outcome)

    def _repeat(self) -> Factor:
        x, y = self.repeats
        note = "" if x and y else "its bits vary from one call to the next"
        whose = self.whose(self.alone[1])
        return Factor("repeat", "called again with the same operands", whose, note)

    def _alone(self) -> Factor:
        note = "" if self.reproduced else "its bits in the run do not follow from its operands"
        whose = self.whose(self.alone[1])
        return Factor("history", "taken out of the model", whose, note)

    def _settings(self) -> Iterator[Factor]:
        mine, theirs = self.second.settings, self.first.settings
        for name in mine.differing(theirs):
            change = f"{name}: {mine.values[name]} -> {theirs.values[name]}"
            one = Settings({**mine.values, name: theirs.values[name]})
            kind = "threads" if name == "threads" else "setting"
            yield from self._try(kind, change, partial(self.second.run, settings=one))

    def _arguments(self) -> Iterator[Factor]:
        for name, x, y in arguments_that_differ(self.first, self.second):
            yield from self._try(
                "argument",
                f"{name}: {y!r} -> {x!r}",
                lambda: _with_arguments_of(self.second, self.first).run(),
            )

    def _operands(self) -> Iterator[Factor]:
        x, y = self.first.operands, self.second.operands
        if len(x) != len(y):
            return
        carriers = self.rows[1].carriers if self.rows else ()
        for i, (a, b) in enumerate(zip(x, y, strict=True)):
            if a.dtype != b.dtype:
                change = f"operand {i}: {_dtype(b)} -> {_dtype(a)}"
                cast = [t.to(a.dtype) if j == i else t for j, t in enumerate(y)]
                yield from self._try("dtype", change, partial(self.second.run, cast))
            elif i not in carriers and a.shape == b.shape and not bits.equal(a, b):
                change = f"operand {i} ({self.second.origins[i]}): the first run's"
                yield from self._try("operand", change, partial(self._with_first, (i,)))

    def _with_first(self, places: Sequence[int]) -> Results:
        """The second run's call with operands of the first run's; of carriers the request's block.

        Raises:
            ValueError: one has another shape and no such block.
        """
        x, y = self.first.operands, self.second.operands
        for i in places:
            if x[i].shape == y[i].shape:
                y[i] = x[i]
            elif self.rows is not None and all(i in rows.carriers for rows in self.rows):
                mine, theirs = (
                    slice(rows.place * rows.block, (rows.place + 1) * rows.block)
                    for rows in self.rows
                )
                y[i] = y[i].clone()
                y[i][theirs] = x[i][mine]
            else:
                raise ValueError(f"operand {i} is {tuple(x[i].shape)} and {tuple(y[i].shape)}")
        return self.second.run(y)

    def idle(self, places: Sequence[int]) -> bool:
        """Whether operands of the first run's in these places leave the second run's bits alone.

        What decides nothing is not a cause: running statistics in training mode, say.
        """
        if not places or self.whose(self.alone[1]) != "second":
            return False
        try:
            return self.whose(self._with_first(places)) == "second"
        except Exception:  # of other shapes, and the operation refuses them
            return False

    def _layouts(self) -> Iterator[Factor]:
        y = self.second.operands
        plain = [t.contiguous() for t in y]
        x = self.first.operands
        if len(x) == len(y) and any(_layout(a) != _layout(b) for a, b in zip(x, y, strict=True)):
            yield from self._try(
                "layout", "operands contiguous and aligned", lambda: self.second.run(plain)
            )
            if all(a.shape == b.shape for a, b in zip(x, y, strict=True)):
                like = [_like(b, a) for a, b in zip(x, y, strict=True)]
                change = "operands laid out as in the first run"
                yield from self._try("layout", change, lambda: self.second.run(like))

    def _batch(self, x: Rows, y: Rows) -> Iterator[Factor]:
        if y.count > 1:
            place = x.place % y.count
            order = [(y.place - place + i) % y.count for i in range(y.count)]
            if place != y.place:
                yield from self._try(
                    "position",
                    f"at place {place} instead of {y.place} of {y.count}",
                    lambda: self.second.run(y.arranged(order)),
                    of_rows=(place, y.count),
                )
            fills: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
                "copies of the request": lambda others, mine: mine.repeat(
                    len(others) // len(mine), *[1] * (mine.dim() - 1)
                ),
                "zeros": lambda others, mine: 0,
            }
            for what, fill in fills.items():
                yield from self._try(
                    "neighbours",
                    f"{what} beside it",
                    partial(self._replaced, y, fill),
                    of_rows=(y.place, y.count),
                )
        if x.count != y.count:
            order = [(y.place - x.place + i) % y.count for i in range(x.count)]
            yield from self._try(
                "rows",
                f"{x.count} {'row' if x.count == 1 else 'rows'} instead of {y.count}",
                lambda: self.second.run(y.arranged(order)),
                of_rows=(x.place, x.count),
            )

    def _replaced(self, rows: Rows, fill: Callable[..., Any]) -> Results:
        return self.second.run(rows.replaced(fill))

    def sweep(self) -> str:
        """Which numbers of rows give whose bits, e.g. ``1-7: first run's; 8-64: second run's``."""
        if self.rows is None:
            return ""
        x, y = self.rows
        most = max(x.count, y.count)
        tried = sorted({m for m in (*_ROWS, *_ROWS_WIDE) if m <= most} | {x.count, y.count})
        found: list[tuple[int, str]] = []
        for m in tried:
            order = [(y.place + i) % y.count for i in range(m)]
            try:
                found.append((m, self.whose(self.second.run(y.arranged(order)), of_rows=(0, m))))
            except Exception as error:
                found.append((m, type(error).__name__))
        return classes(found)


def classes(found: Sequence[tuple[int, str]]) -> str:
    """Neighbouring numbers of rows with the same outcome, as ranges."""
    words = {
        "first": "first run's bits",
        "second": "second run's bits",
        "both": "either run's bits",
        "other": "other bits",
    }
    parts: list[str] = []
    start = 0
    for i in range(1, len(found) + 1):
        if i == len(found) or found[i][1] != found[start][1]:
            low, high = found[start][0], found[i - 1][0]
            span = str(low) if low == high else f"{low}-{high}"
            parts.append(f"{span}: {words.get(found[start][1], found[start][1])}")
            start = i
    return "; ".join(parts)


def arguments_that_differ(first: Operation, second: Operation) -> list[tuple[str, Any, Any]]:
    """Arguments other than tensors that are not the same: name, first's, second's."""
    names = [argument.name for argument in first.func._schema.arguments]
    defaults = {a.name: a.default_value for a in first.func._schema.arguments}

    def given(op: Operation) -> dict[str, Any]:
        return {**defaults, **dict(zip(names, op.args, strict=False)), **op.kwargs}

    x, y = given(first), given(second)
    found = []
    for name in names:
        a, b = x.get(name), y.get(name)
        one_sided = isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor)
        if one_sided:
            found.append((name, _shown(a), _shown(b)))
        elif not isinstance(a, (torch.Tensor, torch.ScriptObject, list, tuple)) and a != b:
            found.append((name, a, b))
    return found


def _shown(value: Any) -> Any:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value


def _with_arguments_of(op: Operation, other: Operation) -> Operation:
    """`op` with the other's arguments and its own tensors."""
    if len(op.operands) != len(other.operands):
        raise ValueError("the runs pass different numbers of tensors")
    args, kwargs = other.with_operands(op.operands)
    return replace(op, args=args, kwargs=kwargs)


def _variants(op: Operation, first: Results) -> list[list[torch.Tensor]]:
    device = op.operands[0].device.type if op.operands else "cpu"
    seen = [op.parts(first)]  # other results may count draws, or be left unwritten
    found: list[list[torch.Tensor]] = []
    for _ in range(_REPEATS.get(device, 12)):
        results = op.run()
        part = op.parts(results)
        if len(found) < _VARIANTS and not any(same(part, other) for other in seen):
            seen.append(part)
            found.append(results)
    return found


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    return (*(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1), t.data_ptr() % 64)


def _like(t: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The numbers of `t` in the memory layout of `other`."""
    copy = copied(other)
    if copy.dtype == t.dtype and not any(
        s == 0 and n > 1 for s, n in zip(copy.stride(), copy.shape, strict=True)
    ):
        return copy.copy_(t)
    return t


def _dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")
