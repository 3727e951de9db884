"""Listens to a model while it runs: to modules by forward hooks, to operations by a dispatch mode.

A `Tape` is told which modules are entered and left and which operations run, each under a key that
finds the same step again in another call. Neither changes what eager torch computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Key = tuple[str, str, int]
"""Module, operation or module kind, and how many of that name ran before it in this forward."""


@dataclass(frozen=True)
class Window:
    """Which part of a forward's tensors belongs to each of its requests.

    Attributes:
        batch: size of the batch axis; 0: every tensor belongs to the request as a whole.
        length: size of the token axis, or None for forwards without one.
        spans: for each request (row of the batch) the first and last+1 token that count.
        time_first: the tokens come first where it is not clear: on one axis with the batch, and
            where both are of one size.
    """

    batch: int
    length: int | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    time_first: bool = False

    def in_time(self) -> Window:
        """The same with the tokens before the requests."""
        return replace(self, time_first=True)

    def select(
        self, t: torch.Tensor, row: int, axis: int | None
    ) -> tuple[torch.Tensor, int] | None:
        """`t` cut down to `row`, and the axis of its tokens (-1: none); None when it has no part.

        `axis` is the token axis of the same tensor in the reference call, where that is known.
        """
        if t.layout is not torch.strided or t.is_nested:
            return None  # it has neither rows nor bits of its own
        if not self.batch:
            return t, -1
        if not t.dim():
            return None
        if self.length is None:
            return (t[row : row + 1], 0) if t.shape[0] == self.batch else None
        start, stop = self.spans[row] if self.spans else (0, self.length)
        in_time = 1 < self.length != self.batch or self.time_first
        if in_time and t.shape[:2] == (self.length, self.batch):
            cut = t[:, row : row + 1]
        elif t.shape[0] == self.batch and self.length in t.shape[1:]:
            cut = t[row]
        elif t.shape[0] == self.batch * self.length:
            order = (self.length, self.batch) if self.time_first else (self.batch, self.length)
            cut = t.reshape(*order, *t.shape[1:]).select(int(self.time_first), row)
        elif t.shape[0] % self.batch == 0 and self.length in t.shape[1:]:
            heads = t.shape[0] // self.batch
            cut = t[row * heads : (row + 1) * heads]
        elif t.shape[0] == self.batch:
            return t[row], -1
        else:
            return None
        if axis is None or axis < 0 or axis >= cut.dim() or cut.shape[axis] != self.length:
            axis = list(cut.shape).index(self.length)
        return cut.narrow(axis, start, stop - start), axis


WHOLE = Window(0)
_tape: Tape | None = None


@contextmanager
def window(batch: int, length: int | None = None, spans: Any = None) -> Iterator[None]:
    """Announces the forwards inside the block to whoever listens; costs nothing otherwise."""
    if _tape is None:
        yield
        return
    with _tape.forward(Window(batch, length, spans)):
        yield


class Tape:
    """Base of all listeners; a subclass overrides `entered`, `left` and `operate`.

    Args:
        module: the model, or None for a plain function.
        operations: listen to operations too, not only to modules.
        inside: listen to all modules, not only to the model as a whole.
    """

    def __init__(
        self, module: torch.nn.Module | None, *, operations: bool = True, inside: bool = True
    ) -> None:
        self.module, self.operations, self.inside = module, operations, inside
        self.stack: list[str] = []
        self.window: Window | None = None
        self.forwards = 0
        self.unannounced = True
        self._announced = False
        self._counts: dict[tuple[str, str], int] = {}
        self._busy = False

    def entered(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is about to run."""

    def left(self, key: Key, output: Any) -> None:
        """A module has run."""

    def returned(self, value: Any) -> None:
        """The call that was listened to has returned."""

    def operate(self, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operation and returns its output."""
        return func(*args, **kwargs)

    def opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Window | None:
        """The window of a forward of the model that nobody has announced; None: do not listen."""
        return None

    @contextmanager
    def forward(self, window: Window) -> Iterator[None]:
        """Everything in the block belongs to one forward."""
        before, self.window = (self.window, self._announced), window
        self._announced, self._counts = True, {}
        try:
            yield
        finally:
            self.window, self._announced = before

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Listens during the block."""
        global _tape
        with ExitStack() as stack:
            for name, module in self._modules():
                kind = type(module).__name__
                hooks = (
                    module.register_forward_pre_hook(
                        self._enter(name, kind), prepend=True, with_kwargs=True
                    ),
                    module.register_forward_hook(self._leave(name, kind)),
                )
                for hook in hooks:
                    stack.callback(hook.remove)
            if self.operations:
                stack.enter_context(_Mode(self))
            before, _tape = _tape, self
            try:
                yield
            finally:
                _tape = before

    def _modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        if self.module is not None:
            yield from self.module.named_modules() if self.inside else [("", self.module)]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """What runs in the block is the listener's own work."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def _enter(self, name: str, kind: str) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling():
                return  # a compiler that traces the model must not trace the listener
            self.stack.append(name)
            if not name and not self._busy:
                self.forwards += 1
                if not self._announced and self.unannounced:
                    # It stays open: what the caller computes from the output belongs to it too.
                    self.window, self._counts = self.opened(args, kwargs), {}
            if self.window is not None and not self._busy:
                self.entered(self.key(name, f"enter {kind}"), args, kwargs)

        return hook

    def _leave(self, name: str, kind: str) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            if self.window is not None and not self._busy:
                self.left(self.key(name, kind), output)
            self.stack.pop()

        return hook

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operation of the dispatcher, through `operate` where it counts."""
        if self._busy or self.window is None or not _computes(func):
            return func(*args, **kwargs)
        module = self.stack[-1] if self.stack else ""
        return self.operate(self.key(module, str(func)), func, args, kwargs)

    def key(self, module: str, name: str) -> Key:
        """The key of the next step of this name."""
        count = self._counts.get((module, name), 0)
        self._counts[module, name] = count + 1
        return module, name, count


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every operation to a tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._to = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._to.dispatch(func, args, kwargs or {})


def _computes(func: Any) -> bool:
    """Whether an operation makes new numbers: not a view of its arguments."""
    returns = func._schema.returns
    return not any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def labelled(value: Any, label: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a (nested) value in order, each with the way to it: ``[name][1]``."""
    if isinstance(value, torch.Tensor):
        yield label, value
    else:
        for key, item in items(value) or ():
            yield from labelled(item, f"{label}[{key}]")


def items(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """The parts of a container, each with its name or place; None for anything else."""
    if isinstance(value, (tuple, list)):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in fields(value)]
    return None


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a (nested) value, in order."""
    return (t for _, t in labelled(value))
