"""Hashes of what belongs to the request in every step of a run: small, whatever the model's size.

A hash is taken for each token, so that runs that cut a text differently can be compared: the marks
of a prefill and of the decode steps that follow it join up along the token axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

import torch

from samebits import bits
from samebits.check.cause.flow import RETURNED, Flow, made
from samebits.check.cause.settings import Settings, settings_now
from samebits.check.tape import WHOLE, Key, Tape, Window, labelled, tensors

_CHUNK = 2**22
"""Elements that are widened to 64 bits at a time."""
_MOST_PAIRS = 10**7
"""Operations of both runs, multiplied, up to which a common sequence is looked for."""


@dataclass(frozen=True)
class Request:
    """Which part of a run is compared.

    Attributes:
        row: the request's place in the batch; None: everything is compared.
        tokens: its first and last+1 place on the token axis (default: all of it, or what an
            ``attention_mask`` argument marks as real).
        time_first: see `samebits.check.tape.Window`; found out, and not to be given.
    """

    row: int | None = None
    tokens: tuple[int, int] | None = None
    time_first: bool = False


def hashes(t: torch.Tensor, axis: int) -> torch.Tensor:
    """Hashes of the bits of `t`: int64 [length of `axis`], or [1] with `axis` = -1.

    A multilinear hash modulo 2**64 with odd pseudo-random coefficients: exact in any order of
    summation, and one differing element always changes it.
    """
    words = bits.view(t)
    length = t.shape[axis] if axis >= 0 else 1
    width = words.numel() // max(length, 1)
    rows = (words.movedim(axis, 0) if axis >= 0 else words).reshape(length, width)
    factors = _coefficients(width, rows.device)
    per_chunk = max(1, _CHUNK // max(width, 1))
    pieces = torch.split(rows, per_chunk) if width else (rows,)
    return torch.cat([(piece.to(torch.int64) * factors).sum(1) for piece in pieces])


@lru_cache(maxsize=64)
def _coefficients(width: int, device: torch.device) -> torch.Tensor:
    """Odd numbers: splitmix64 of the index."""
    x = torch.arange(1, width + 1, device=device) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ _right(x, shift)) * factor
    return (x ^ _right(x, 31)) | 1


def _right(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical shift of 64-bit words."""
    return (x >> by) & ((1 << (64 - by)) - 1)


@dataclass
class Mark:
    """Hashes of one step's result, one piece for each forward that it ran in."""

    module: str
    parent: str
    name: str
    axis: int
    form: tuple[object, ...]
    pieces: list[torch.Tensor] = field(default_factory=list)
    sound: bool = True

    def value(self) -> torch.Tensor:
        """All hashes, int64 [tokens]."""
        return torch.cat([piece.cpu() for piece in self.pieces])

    def piece_of(self, token: int) -> tuple[int, int]:
        """The piece that holds a token, and the token's place in it."""
        for index, piece in enumerate(self.pieces):
            if token < len(piece):
                return index, token
            token -= len(piece)
        raise IndexError(token)


class Listener(Tape):
    """A tape that knows which part of a tensor belongs to the request.

    Args:
        module: the model, or None for a function.
        request: the request.
        like: a listener of the reference run, whose marks fix the token axes.
        operations: listen to operations.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        request: Request,
        *,
        like: Marks | None = None,
        operations: bool = False,
    ) -> None:
        super().__init__(module, operations=operations)
        self.request, self.like = request, like

    def opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Window | None:
        """Batch and tokens as the model's first tensor argument has them."""
        row = self.request.row
        first = next(tensors((args, kwargs)), None)
        if row is None or first is None or not first.dim():
            return WHOLE
        batch, length = sizes(first)
        if length is None:
            return Window(batch)
        span = self.request.tokens or _real(kwargs.get("attention_mask"), row, length)
        spans = tuple(span if r == row else (0, length) for r in range(batch))
        return Window(batch, length, spans, self.request.time_first)

    @contextmanager
    def forward(self, window: Window) -> Iterator[None]:
        """A forward that the caller announces."""
        with super().forward(replace(window, time_first=self.request.time_first)):
            yield

    def part(self, t: torch.Tensor, key: Key) -> tuple[torch.Tensor, int] | None:
        """The request's part of a step's result and its token axis; None when it has none."""
        if self.window is None:
            return None
        like = self.like.marks.get(key) if self.like is not None else None
        return self.window.select(t.detach(), self.request.row or 0, like.axis if like else None)


def sizes(first: torch.Tensor) -> tuple[int, int | None]:
    """Batch and number of tokens of a model's first argument: ids [B, T], vectors [B, T, D]."""
    has_tokens = first.dim() == 2 + first.is_floating_point()
    return first.shape[0], first.shape[1] if has_tokens else None


def _real(mask: Any, row: int, length: int) -> tuple[int, int]:
    """The span of real tokens in a mask [B, T]."""
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape[1] == length:
        real = mask[row].nonzero().reshape(-1)
        if len(real) and int(real[-1]) - int(real[0]) + 1 == len(real):
            return int(real[0]), int(real[-1]) + 1
    return 0, length


class Marks(Listener):
    """Marks every module's inputs and output, or every operation that runs in one module.

    Args:
        module, request, like: as in `Listener`.
        owner: mark the operations of this module (None: of all of them) instead of modules.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        request: Request,
        *,
        like: Marks | None = None,
        operations: bool = False,
        owner: str | None = None,
    ) -> None:
        super().__init__(module, request, like=like, operations=operations)
        self.owner = owner
        self.marks: dict[Key, Mark] = {}
        self.outputs: dict[Key, Mark] = {}
        self.inputs: dict[Key, Mark] = {}
        self.order: dict[Key, None] = {}
        self.given: dict[str, dict[str | int, str]] = {}
        self.settings: dict[str, Settings] = {}
        self.flow = Flow()

    def entered(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Marks a module's arguments, and notes which of them are given and in which form."""
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        self.flow.reached(key, given)
        if not self.operations:
            if not key[0]:
                self._mark_input(key, given)
            self._mark(key, given)
            self.given[key[0]] = {name: _form(x) for name, x in given.items()}
            self.settings[key[0]] = settings_now()

    def left(self, key: Key, output: Any) -> None:
        """Marks a module's output."""
        self.flow.reached(key, output)
        self._mark(key, output, self.outputs)

    def returned(self, value: Any) -> None:
        """Notes which operations wrote what the call returned."""
        self.flow.reached(RETURNED, value)

    def operate(self, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation and marks its results."""
        output = func(*args, **kwargs)
        results = made(func, args, kwargs, output)
        self.flow.ran(key, (args, kwargs), results)
        if (self.owner is None or key[0] == self.owner) and not makes_memory(func):
            self.order[key] = None
            self._mark(key, results, whole=_ranks(func, args, kwargs))
        return output

    def _mark_input(self, key: Key, given: dict[Any, Any]) -> None:
        """Marks what the model is asked: its first tensor, be it integers (tokens)."""
        label, t = next(labelled(given), ("", None))
        if t is None or "mask" in label or "position" in label:
            return
        with self.busy():
            each = (key[0], key[1] + label, key[2])
            found = self.part(t, each)
            if found is not None and found[0].numel():
                self._add(each, *found, to=self.inputs)

    def _mark(
        self, key: Key, value: Any, also: dict[Key, Mark] | None = None, *, whole: bool = False
    ) -> None:
        """Marks the tensors of a value; integers, which are mostly positions, only if `whole`."""
        with self.busy():
            for index, (label, t) in enumerate(labelled(value)):
                each = (key[0], key[1] + label, key[2])
                numbers = t.is_floating_point() or t.is_complex()
                found = self.part(t, each) if numbers or whole else None
                if found is None or not found[0].numel():
                    continue
                mark = self._add(each, *found)
                if also is not None and not index:
                    also[each] = mark

    def _add(
        self, key: Key, part: torch.Tensor, axis: int, *, to: dict[Key, Mark] | None = None
    ) -> Mark:
        to = self.marks if to is None else to
        form: tuple[object, ...] = (
            part.dtype,
            *(n for i, n in enumerate(part.shape) if i != axis),
        )
        mark = to.get(key)
        if mark is None:
            parent = self.stack[-2] if len(self.stack) > 1 else ""
            mark = to[key] = Mark(key[0], parent, key[1], axis, form)
        mark.sound &= mark.axis == axis and mark.form == form
        mark.pieces.append(hashes(part, axis))
        return mark


def _ranks(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation's integers are results: made of other numbers, or drawn."""
    drawn = torch.Tag.nondeterministic_seeded in func.tags
    return drawn or any(t.is_floating_point() for t in tensors((args, kwargs)))


def _form(x: Any) -> str:
    """What an argument is, without sizes, which the batch may change."""
    if isinstance(x, torch.Tensor):
        return f"a {str(x.dtype).removeprefix('torch.')} tensor of {x.dim()} axes"
    plain = x is None or isinstance(x, (bool, int, float, str))
    return repr(x) if plain else type(x).__name__


def makes_memory(func: Any) -> bool:
    """Whether an operation gives memory without contents."""
    return "empty" in str(func)


@dataclass(frozen=True)
class Step:
    """One step of both runs.

    Attributes:
        key, there: of the step in the first and in the second run.
        first, second: its marks.
        differs: bool [tokens], or None when they cannot be compared.
    """

    key: Key
    there: Key
    first: Mark
    second: Mark
    differs: torch.Tensor | None

    @property
    def differing(self) -> int:
        """Tokens whose bits differ."""
        return 0 if self.differs is None else int(self.differs.sum())

    @property
    def recast(self) -> bool:
        """Whether the results are of different types."""
        return self.first.form[0] != self.second.form[0]

    @property
    def reshaped(self) -> bool:
        """Whether the results are of one type and cannot be compared, as their shapes differ."""
        return self.differs is None and not self.recast and self.first.sound and self.second.sound

    @property
    def token(self) -> int:
        """The first token that differs."""
        return 0 if self.differs is None else int(self.differs.nonzero()[0])

    @property
    def stage(self) -> int:
        """The forward in which they first differ, counted in the run that took more of them."""
        return max(mark.piece_of(self.token)[0] for mark in (self.first, self.second))


def operation(key: Key) -> Key:
    """The key of an operation, of the key of one of its results."""
    return key[0], key[1].partition("[")[0], key[2]


def steps(
    first: dict[Key, Mark], second: dict[Key, Mark], partners: dict[Key, Key] | None = None
) -> Iterator[Step]:
    """The steps that both runs have, in the first run's order.

    `partners`: for each operation of the first run the same one in the second (default: of equal
    key); see `aligned`.
    """
    for key, mark in first.items():
        there = key
        if partners is not None:
            partner = partners.get(operation(key))
            if partner is None:
                continue
            there = partner[0], key[1], partner[2]
        other = second.get(there)
        if other is None:
            continue
        same_form = mark.sound and other.sound and mark.form == other.form
        x, y = mark.value(), other.value()
        differs = x != y if same_form and x.shape == y.shape else None
        yield Step(key, there, mark, other, differs)


def aligned(first: list[Key], second: list[Key]) -> dict[Key, Key]:
    """The operations of two runs that belong together, where one has some that the other has not.

    A key counts operations of one name, so one more of them in one run moves all that follow.
    """
    if first == second:
        return {key: key for key in first}
    x, y = ([key[:2] for key in keys] for keys in (first, second))
    start = end = 0
    shorter = min(len(x), len(y))
    while start < shorter and x[start] == y[start]:
        start += 1
    while end < shorter - start and x[-1 - end] == y[-1 - end]:
        end += 1
    pairs = [(i, i) for i in range(start)]
    pairs += [(len(x) - 1 - i, len(y) - 1 - i) for i in range(end)]
    x, y = x[start : len(x) - end], y[start : len(y) - end]
    if len(x) * len(y) <= _MOST_PAIRS:
        for i, j, size in SequenceMatcher(None, x, y, autojunk=False).get_matching_blocks():
            pairs += [(start + i + t, start + j + t) for t in range(size)]
    return {first[i]: second[j] for i, j in pairs}
