"""Plays two calls again and again under different listeners, and counts the forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from samebits.check.cause.flow import made
from samebits.check.cause.marks import Listener, Marks, Request, makes_memory, sizes
from samebits.check.cause.returned import Compared, Leaf, Tree, compared, kept
from samebits.check.cause.state import State
from samebits.check.compare import Bits
from samebits.check.tape import WHOLE, Key, Tape, Window, labelled, tensors
from samebits.errors import SamebitsError, SettingError, ShapeError

Call = Callable[[], Any]
Align = tuple[int, int] | tuple[Request, Request] | None
FIRST, SECOND = 0, 1
_NAMES = "first", "second"


class Function(torch.nn.Module):
    """A function as a module, so that its forwards are seen."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self._fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The function."""
        return self._fn(*args, **kwargs)


class _Shapes(Tape):
    """Notes batch and tokens of every forward; nothing inside the model is listened to."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        super().__init__(module, operations=False, inside=False)
        self.seen: list[tuple[int, int | None]] = []
        self.last: Window = WHOLE
        self.announced = False

    def opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Window | None:
        """Notes the first argument."""
        first = next(tensors((args, kwargs)), None)
        if first is not None and first.dim():
            self.seen.append(sizes(first))
            self.last = Window(*self.seen[-1])
        return None

    @contextmanager
    def forward(self, window: Window) -> Iterator[None]:
        """Notes a window that the caller announces."""
        self.seen.append((window.batch, window.length))
        self.last, self.announced = window, True
        with super().forward(window):
            yield


class Runs:
    """Two calls that should agree.

    Args:
        module: the model, or None for plain functions.
        calls: the two calls.
        align: which part of each is compared; see `samebits.check.cause.explain`.

    Attributes:
        module, calls: what was given.
        requests: the part of each run that is compared.
        passes: forward passes of the model so far (calls, where there is no model).
        seen: the model ran in the calls.
        returned: the request's part of what the calls returned when nobody listened.
        last: what they returned under the last marks.
    """

    def __init__(
        self, module: torch.nn.Module | None, calls: tuple[Call, Call], align: Align
    ) -> None:
        self.module, self.calls = module, calls
        self.passes = 0
        self._states: list[State] = []
        shapes, values = [], []
        for side in (FIRST, SECOND):
            self._states.append(State(module))
            shapes.append(_Shapes(module))
            values.append(self._call(side, shapes[side], "raised"))
        written = self._states[FIRST].written() | self._states[SECOND].written()
        self.after = State(module)
        for state in (*self._states, self.after):
            state.keep(written)
        self.seen = any(tape.forwards for tape in shapes)
        self._windows = shapes[0].last, shapes[1].last
        self._own = any(tape.announced for tape in shapes)  # the calls return the request's part
        self._alike = [n for _, n in shapes[0].seen] == [n for _, n in shapes[1].seen]
        self.requests = _requests(align, shapes[0].seen, shapes[1].seen)
        self._whole = self._own or (align is None and _one_shape(*values))
        x, y = (self._mine(side, value) for side, value in enumerate(values))
        self.returned = self.last = x, y

    def _call(self, side: int, tape: Tape, how: str) -> Any:
        """What a call returns under a tape.

        Raises:
            SettingError: it raises; `how` says when.
        """
        try:
            with tape.playing(), torch.no_grad():
                value = self.calls[side]()
        except SamebitsError:
            raise
        except Exception as error:
            raise SettingError(
                f"the {_NAMES[side]} run {how} {type(error).__name__}: {_line(error)}"
            ) from error
        self.passes += max(tape.forwards, 1)
        return value

    def _mine(self, side: int, value: Any) -> Tree | Leaf:
        """The request's part of what a call returned, kept."""
        request, window = self.requests[side], self._windows[side]

        def cut(t: torch.Tensor) -> torch.Tensor | None:
            if request.row is None or not window.batch or self._whole:
                return None
            part = window.select(t, request.row, None)
            return None if part is None else part[0]

        return kept(value, cut)

    def play(self, side: int, listener: Tape) -> Tree | Leaf:
        """One run under a listener, from the state that it had the first time.

        Raises:
            SettingError: the call does not run a second time, or not while it is listened to.
        """
        self._states[side].restore()
        listener.unannounced = not self._own
        how = "cannot be made again: it raised"
        if listener.operations or listener.inside:
            how = "cannot be made again while it is listened to: it raised"
        with nullcontext() if self.module is not None else listener.forward(WHOLE):
            value = self._call(side, listener, how)
        listener.returned(value)
        return self._mine(side, value)

    def both(self, make: Callable[[Request, Marks | None], Marks]) -> tuple[Marks, Marks]:
        """Both runs under marks; the second ones know the first ones' token axes."""
        first = make(self.requests[FIRST], None)
        x = self.play(FIRST, first)
        second = make(self.requests[SECOND], first)
        y = self.play(SECOND, second)
        self.last = x, y
        return first, second

    def plain(self, side: int) -> Tree | Leaf:
        """One run with nobody listening."""
        return self.play(side, Tape(self.module, operations=False, inside=False))

    def repeats(self, side: int) -> bool:
        """Whether a run gives the bits that it gave the first time."""
        return compared(self.returned[side], self.plain(side)).equal

    def results(self, pair: tuple[Tree | Leaf, Tree | Leaf] | None = None) -> Compared:
        """What the two calls returned side by side (default: when nobody listened)."""
        first, second = self.requests
        row = first.row is not None and second.row is not None and not self._whole
        x, y = self.returned if pair is None else pair
        return compared(
            x, y,
            rows=(first.row or 0, second.row or 0) if row else None,
            batches=(self._windows[0].batch, self._windows[1].batch), alike=self._alike,
        )  # fmt: skip

    @property
    def unannounced(self) -> bool:
        """Whether the calls leave it to us to see what belongs to the request."""
        return not self._own

    def rewind(self) -> None:
        """Puts the random state and the model's buffers back to what the first run met."""
        self._states[FIRST].restore()

    def finish(self) -> None:
        """Leaves the random state and the model's buffers as the two plain runs left them."""
        self.after.restore()


def _one_shape(first: Any, second: Any) -> bool:
    """Whether two results are tensors of equal shapes: wholes, however the runs were cut."""
    shapes = [[t.shape for t in tensors(value) if not t.is_nested] for value in (first, second)]
    return bool(shapes[0]) and shapes[0] == shapes[1]


def _line(error: Exception) -> str:
    """The first line of what an exception says, and where it came from."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    text = str(error).strip().partition("\n")[0] or "no message"
    if place is None:
        return text
    path = Path(place.tb_frame.f_code.co_filename)
    return f"{text} ({Path(*path.parts[-3:])}:{place.tb_lineno})"


def _requests(
    align: Align, first: list[tuple[int, int | None]], second: list[tuple[int, int | None]]
) -> tuple[Request, Request]:
    """The compared part of each run.

    Raises:
        SettingError: `align` has another form.
        ShapeError: the runs have different shapes and `align` does not say what belongs together,
            or it names a row that no forward has.
    """
    if align is not None:
        x, y = _named(align)
        _check(x, first)
        _check(y, second)
        return x, y
    if first == second or not first or not second:  # compiled models are not seen to run
        return Request(), Request()
    lengths = [{length for _, length in seen} for seen in (first, second)]
    if len(first) == len(second) and lengths[0] != lengths[1]:
        raise ShapeError(
            f"the runs have inputs of different lengths ({first} against {second}), and only you "
            "know which tokens belong together: pass align=(Request(row, (start, stop)), "
            "Request(row, (start, stop)))"
        )
    return Request(0), Request(0)


def _named(align: Any) -> tuple[Request, Request]:
    """`align` as two requests.

    Raises:
        SettingError: it is neither two rows nor two requests.
    """
    pair = list(align) if isinstance(align, (tuple, list)) else []
    found = [part if isinstance(part, Request) else Request(part) for part in pair]
    if len(found) != 2 or not all(
        _whole(r.row) and (r.tokens is None or (len(r.tokens) == 2 and all(map(_whole, r.tokens))))
        for r in found
    ):
        raise SettingError(
            f"align = {align!r}: give the request's row in each run, (0, 2), or two "
            "Request(row, (first, last + 1)), from samebits.check import Request"
        )
    return found[0], found[1]


def _whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _check(request: Request, seen: list[tuple[int, int | None]]) -> None:
    """Raises ShapeError where a run has no such row or no such tokens."""
    most = max((batch for batch, _ in seen), default=None)
    if most is not None and request.row is not None and not 0 <= request.row < most:
        raise ShapeError(
            f"align names row {request.row} of a run with batches of {most}: rows count from 0"
        )
    if request.tokens is None:
        return
    start, stop = request.tokens
    for _, length in seen:
        if length is None or not 0 <= start < stop <= length:
            has = "no token axis" if length is None else f"{length} tokens"
            raise ShapeError(f"align names tokens {start} to {stop} of a run whose input has {has}")


class Filled(Marks):
    """Marks modules while memory that is handed out without contents is filled with a value."""

    def __init__(
        self, module: torch.nn.Module | None, request: Request, like: Marks | None, value: float
    ) -> None:
        super().__init__(module, request, like=like, operations=True)
        self.value, self.filled, self.bad = value, 0, 0

    def entered(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Marks a module's arguments."""
        self._mark(key, {**dict(enumerate(args)), **kwargs})

    def left(self, key: Key, output: Any) -> None:
        """Marks a module's output and counts its NaN."""
        super().left(key, output)
        with self.busy():
            for t in tensors(output):
                if t.is_floating_point():
                    self.bad += int(t.isnan().sum())

    def operate(self, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation; memory that it hands out is filled."""
        output = func(*args, **kwargs)
        if makes_memory(func):
            for t in tensors(output):
                if t.is_floating_point() or t.is_complex():
                    t.fill_(self.value)
                elif t.dtype is not torch.bool:
                    t.fill_(0 if self.value == 0 else torch.iinfo(t.dtype).max)
                self.filled += 1
        elif self.module is None:
            self._mark(key, made(func, args, kwargs, output))
        return output


class Value(Listener):
    """Keeps the request's part of one step of the modules, in pieces."""

    def __init__(self, module: torch.nn.Module | None, request: Request, wanted: Key) -> None:
        super().__init__(module, request)
        self.wanted = wanted
        self._pieces: list[tuple[torch.Tensor, int]] = []

    def entered(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps a module's argument."""
        self._keep(key, {**dict(enumerate(args)), **kwargs})

    def left(self, key: Key, output: Any) -> None:
        """Keeps a module's output."""
        self._keep(key, output)

    def _keep(self, key: Key, value: Any) -> None:
        for label, t in labelled(value):
            if (key[0], key[1] + label, key[2]) == self.wanted:
                part = self.part(t, self.wanted)
                if part is not None:
                    self._pieces.append((part[0].clone(), part[1]))

    def joined(self) -> Bits:
        """The pieces along the token axis, as one tensor."""
        if not self._pieces:
            return ()
        axis = self._pieces[0][1]
        pieces = [piece for piece, _ in self._pieces]
        return (torch.cat(pieces, axis),) if axis >= 0 else tuple(pieces)
