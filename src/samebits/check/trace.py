"""Finds where the bits of one request part first: the module, and the aten operation inside it.

Both calls run again, under forward hooks (which record every module's output) and a dispatch mode
(which records every operation's output), cut down to what belongs to the request. Neither changes
what is computed in eager torch; `Divergence.faithful` tells whether that was so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from samebits import bits
from samebits.check.cause.capture import Capture, Operation
from samebits.check.cause.marks import Request
from samebits.check.compare import Bits, Difference, difference
from samebits.check.noise import noise
from samebits.check.result import Divergence, Layer
from samebits.check.tape import Key, Tape, tensors


@dataclass
class Event:
    """One operation or module output of one request, in pieces when it took several calls."""

    module: str
    name: str
    axis: int
    pieces: list[torch.Tensor] = field(default_factory=list)
    shapes: list[tuple[str, ...]] = field(default_factory=list)

    def piece_of(self, token: int) -> tuple[int, int]:
        """The piece that holds the given token, and the token's place in it."""
        if self.axis < 0:
            return 0, 0
        for index, piece in enumerate(self.pieces):
            if token < piece.shape[self.axis]:
                return index, token
            token -= piece.shape[self.axis]
        raise IndexError(token)

    def add(self, piece: torch.Tensor, axis: int, shapes: tuple[str, ...]) -> None:
        """Appends the piece of a further call; pieces that do not join up make it worthless."""
        if axis != self.axis or (self.pieces and piece.dim() != self.pieces[0].dim()):
            self.axis = -2
        self.pieces.append(piece)
        self.shapes.append(shapes)

    def value(self) -> torch.Tensor | None:
        """The pieces joined along the token axis; None when that cannot be done."""
        if self.axis == -2:
            return None
        if len(self.pieces) == 1 or self.axis < 0:
            return self.pieces[0]
        kept = self.pieces[0].shape[: self.axis] + self.pieces[0].shape[self.axis + 1 :]
        for piece in self.pieces:
            if piece.shape[: self.axis] + piece.shape[self.axis + 1 :] != kept:
                return None
        return torch.cat(self.pieces, self.axis)


class Recorder(Tape):
    """Records the part of one request in every operation and module output.

    Args:
        module: the model, or None for a plain function.
        row: the request's place among the requests of a call.
        like: the recording of the reference call, which fixes the token axes.
    """

    def __init__(
        self, module: torch.nn.Module | None, row: int, like: Recorder | None = None
    ) -> None:
        super().__init__(module)
        self.row, self.like = row, like
        self.ops: dict[Key, Event] = {}
        self.modules: dict[Key, Event] = {}

    def left(self, key: Key, output: Any) -> None:
        """Keeps a module's output."""
        first = next(tensors(output), None)
        if first is not None:
            self._record(self.modules, key, first, ())

    def operate(self, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation and keeps its output."""
        output = func(*args, **kwargs)
        first = next(tensors(output), None)
        if first is not None and _is_result(func, first):
            shapes = tuple(str(tuple(arg.shape)) for arg in args if isinstance(arg, torch.Tensor))
            self._record(self.ops, key, first, shapes)
        return output

    def _record(
        self,
        into: dict[Key, Event],
        key: Key,
        output: torch.Tensor,
        shapes: tuple[str, ...],
    ) -> None:
        assert self.window is not None
        like = None
        if self.like is not None:
            like = (self.like.ops if into is self.ops else self.like.modules).get(key)
        with self.busy():
            part = self.window.select(output.detach(), self.row, like.axis if like else None)
            if part is None:
                return
            cut, axis = part
            into.setdefault(key, Event(*key[:2], axis)).add(cut.clone(), axis, shapes)


def _is_result(func: Any, output: torch.Tensor) -> bool:
    """Whether an operation computes numbers: not indices, and not memory without contents."""
    if "empty" in str(func):
        return False
    return output.is_floating_point() or output.is_complex()


def first_divergence(
    module: torch.nn.Module | None,
    case: str,
    reference: Callable[[], Bits],
    probe: Callable[[], Bits],
    reference_row: int,
    row: int,
    plain: tuple[Bits, Bits],
) -> Divergence:
    """Runs both calls again and compares them step by step.

    Args:
        module: the model, or None for a plain function.
        case: label for the result.
        reference: the reference call; gives the request's bits.
        probe: the call that differs; gives the request's bits.
        reference_row: the request's place in the reference call.
        row: its place in the call that differs.
        plain: what both calls gave without tracing, to see that tracing changes nothing.
    """
    before = Recorder(module, reference_row)
    with before.playing():
        first = reference()
    after = Recorder(module, row, like=before)
    with after.playing():
        second = probe()
    same = not any(difference(x, y).differing for x, y in zip(plain, (first, second), strict=True))
    layers = tuple(_layers(before.modules, after.modules))
    found = next(_differing_ops(before.ops, after.ops), None)
    module_name = next((layer.name for layer in layers if layer.differing), None)
    if found is None:
        return Divergence(case, module_name, None, None, (), (), 0, 0, 0, layers, same)
    key, mine, other, amount = found
    token = _first_token(mine, other)
    places = mine.piece_of(token), other.piece_of(token)
    lengths = {event.pieces[i].shape for event, (i, _) in zip((mine, other), places, strict=True)}
    pair = [
        _taken(module, key, call, at, place, len(lengths) > 1)
        for call, at, place in zip((reference, probe), (reference_row, row), places, strict=True)
    ]
    return Divergence(
        case=case,
        module=module_name,
        op=mine.name,
        op_module=mine.module,
        reference_shapes=mine.shapes[places[0][0]],
        shapes=other.shapes[places[1][0]],
        differing=amount.differing,
        elements=amount.elements,
        max_ulp=amount.max_ulp,
        layers=layers,
        faithful=same,
        noise=None if pair[0] is None or pair[1] is None else noise(pair[0], pair[1]),
    )


def _taken(
    module: torch.nn.Module | None,
    key: Key,
    call: Callable[[], Bits],
    row: int,
    place: tuple[int, int],
    alone: bool,
) -> Operation | None:
    """An operation taken out of a call, in the forward and with the token of `place` in focus."""
    forward, token = place
    capture = Capture(module, Request(row), {key: forward})
    with capture.playing():
        call()
    found = capture.found.get(key)
    if found is not None:
        found.token, found.alone = token, alone
    return found


def _first_token(a: Event, b: Event) -> int:
    """The first token at which two events differ; 0 without tokens."""
    x, y = a.value(), b.value()
    if x is None or y is None or a.axis < 0:
        return 0
    differs = (bits.view(x) != bits.view(y)).movedim(a.axis, 0)
    return int(differs.reshape(len(differs), -1).any(1).nonzero()[0])


def _compare(a: Event, b: Event) -> Difference | None:
    """The difference of two events, or None when they cannot be compared."""
    x, y = a.value(), b.value()
    if x is None or y is None or x.shape != y.shape or x.dtype != y.dtype:
        return None
    return difference((x,), (y,))


def _layers(before: dict[Key, Event], after: dict[Key, Event]) -> Iterator[Layer]:
    for key, event in before.items():
        other = after.get(key)
        found = _compare(event, other) if other else None
        if found is not None:
            yield Layer(event.module or "(whole)", event.name, found.differing, found.elements)


def _differing_ops(
    before: dict[Key, Event], after: dict[Key, Event]
) -> Iterator[tuple[Key, Event, Event, Difference]]:
    """Operations whose outputs differ, in the reference's order of execution.

    An operation is found again by its module, its name and how many of that name came before it
    there, so that the extra operations of a mask or a cache do no harm.
    """
    for key, event in before.items():
        other = after.get(key)
        found = _compare(event, other) if other else None
        if other is not None and found is not None and found.differing:
            yield key, event, other, found
