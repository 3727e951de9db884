"""One operation taken out of a run: its operands, where they came from, what was in force."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

import samebits
from samebits.check.cause.flow import address, made
from samebits.check.cause.marks import Listener, Request, makes_memory
from samebits.check.cause.settings import RandomState, Settings, random_state, settings_now
from samebits.check.tape import Key, Window, tensors

_REDUCTIONS = {
    "amax", "amin", "aminmax", "max", "min", "sum", "mean", "std", "var", "var_mean", "norm",
    "linalg_vector_norm", "logsumexp", "native_batch_norm",
}  # fmt: skip
_ALIGNED = 64
"""Addresses are told apart up to this many bytes."""
_TORCH, _SAMEBITS = (os.path.dirname(str(m.__file__)) + os.sep for m in (torch, samebits))
_CHECK = _SAMEBITS + "check" + os.sep
_OWN = (_TORCH, *(f"{_SAMEBITS}{part}{os.sep}" for part in ("mode", "ops", "engines")))
_MODULES = _TORCH + os.path.join("nn", "")
_LISTENERS = (_CHECK, os.path.join(_TORCH, "utils", "_python_dispatch"))


@dataclass(frozen=True)
class Origin:
    """Where an operand came from.

    Attributes:
        made_by: the operation that wrote it last, as a key, or None.
        born_empty: its memory was handed out without contents, or that of something it is made of.
        reduces: it was computed, over the batch too, from a tensor that holds the requests.
        random: it was drawn.
        name: of the parameter or buffer that it is, or None.
        argument: name under which a module was given it, or None.
        asked: the model's argument that it is, or None.
    """

    made_by: Key | None = None
    born_empty: bool = False
    reduces: bool = False
    random: bool = False
    name: str | None = None
    argument: str | None = None
    asked: str | None = None

    def __str__(self) -> str:
        if self.made_by is not None:
            return f"the result of {self.made_by[1].removesuffix('.default')}"
        return self.name or self.argument or "a tensor from outside the model"


@dataclass
class Operation:
    """One call of an operation, as it was made.

    Attributes:
        key: module, operation, count.
        func: the operation.
        args, kwargs: copies of its operands with the same strides and alignment.
        window, request: which part belongs to the request.
        output: copies of the tensors that it returned (or wrote) in the run.
        origins: of the tensors among the operands, in order.
        settings, random: what was in force.
        site: ``file:line`` of the caller.
        token: place of the first token that differs, among the request's in this forward.
        alone: the runs have that token among others, so it alone is compared.
        twin: what computes it as it should be, where the caller gave such a function.
    """

    key: Key
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    window: Window
    request: Request
    output: list[torch.Tensor]
    origins: list[Origin]
    settings: Settings
    random: RandomState
    site: str
    token: int = 0
    alone: bool = False
    twin: Callable[..., Any] | None = None

    @property
    def row(self) -> int:
        """The request's row."""
        return self.request.row or 0

    @property
    def operands(self) -> list[torch.Tensor]:
        """The tensors among the operands, in order."""
        return list(tensors((self.args, self.kwargs)))

    @property
    def shapes(self) -> tuple[str, ...]:
        """Shapes of the operands."""
        return tuple(str(tuple(t.shape)) for t in self.operands)

    def run(
        self,
        operands: Sequence[torch.Tensor] | None = None,
        *,
        settings: Settings | None = None,
        func: Callable[..., Any] | None = None,
        random: RandomState | None = None,
    ) -> list[torch.Tensor]:
        """Runs it again by itself and gives all its results.

        Args:
            operands: tensors in place of its own.
            settings, random: put in force instead of its own.
            func: what to run instead of the operation.
        """
        args, kwargs = self.with_operands(self.operands if operands is None else operands)
        before = random_state()
        (random or self.random).restore()
        try:
            with (settings or self.settings).in_force(), torch.no_grad():
                output = (func or self.func)(*args, **kwargs)
                return list(tensors(made(self.func, args, kwargs, output)))
        finally:
            before.restore()

    def kernels(self) -> tuple[str, ...]:
        """Names of the GPU kernels that it launches; empty on a CPU and without a profiler."""
        if not any(t.is_cuda for t in self.operands):
            return ()
        from torch.profiler import ProfilerActivity, profile

        args, kwargs = self.with_operands(self.operands)
        with self.settings.in_force(), torch.no_grad():
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
                self.func(*args, **kwargs)
                torch.cuda.synchronize()
        events: Any = seen.events()
        names = (str(e.name) for e in events if str(e.device_type).endswith("CUDA"))
        names = (re.split(r"[<(]", name.removeprefix("void "))[0] for name in names)
        return tuple(name for name in names if not name.startswith(("Memcpy", "Memset")))

    def with_operands(
        self, operands: Sequence[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other tensors, or copies that may be written to, for the operands."""
        # Batch norm moves its running statistics on, which its schema does not say.
        writes = self.func._schema.is_mutable or "batch_norm" in base_name(self.func)
        fresh = iter([copied(t) if writes else t for t in operands])
        swap: Any = lambda x: next(fresh) if isinstance(x, torch.Tensor) else x  # noqa: E731
        args, kwargs = tree_map(swap, (self.args, self.kwargs))
        return args, kwargs

    def parts(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The request's part of each result that has one, cut to the token in focus."""
        found = []
        for t in results:
            part = self.window.select(t, self.row, None)
            if part is None:
                continue
            cut, axis = part
            if self.alone and axis >= 0:
                cut = cut.narrow(axis, self.token, 1)
            found.append(cut)
        return found


def base_name(func: Any) -> str:
    """``aten.mm.default`` -> ``mm``; in-place and out forms like their functions."""
    name = str(func._schema.name).partition("::")[2]
    return name if name.startswith("__") else name.rstrip("_")


def copied(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, starting at an address of the same alignment."""
    if t.is_sparse or t.layout is not torch.strided:
        return t.clone()
    size = t.element_size()
    extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    step = _ALIGNED // size
    room = torch.zeros(max(extent, 0) + 2 * step, dtype=t.dtype, device=t.device)
    want = t.data_ptr() % _ALIGNED // size
    start = (want - room.data_ptr() % _ALIGNED // size) % step
    copy = torch.as_strided(room, t.shape, t.stride(), start)
    if not any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride(), strict=True)):
        copy.copy_(t.detach())
        return copy
    # An expanded tensor: its elements lie on top of each other, so each is written once.
    index = tuple(slice(0, 1) if s == 0 else slice(None) for s in t.stride())
    copy[index].copy_(t.detach()[index])
    return copy


class Capture(Listener):
    """Takes the operations of the given keys out of a run.

    Args:
        module, request: as in `Listener`.
        wanted: for each key which of the forwards that it runs in (0: the first).
    """

    def __init__(
        self, module: torch.nn.Module | None, request: Request, wanted: dict[Key, int]
    ) -> None:
        super().__init__(module, request, operations=True)
        self.wanted = dict(wanted)
        self.found: dict[Key, Operation] = {}
        self._names = _names(module)
        self._origins: dict[int, Origin] = {}
        self._given: dict[int, str] = {}
        self._asked: dict[int, str] = {}

    def entered(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes under which names a module is given tensors."""
        for name, value in kwargs.items():
            for t in tensors(value):
                self._given[address(t)] = name
        if not key[0]:
            named = {**{parameter(self.module, i): x for i, x in enumerate(args)}, **kwargs}
            self._asked |= {address(t): name for name, x in named.items() for t in tensors(x)}

    def operate(self, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation, notes what it wrote, and copies it if it is wanted."""
        due = self.wanted.get(key)
        if due:
            self.wanted[key] = due - 1
        taken = None
        if due == 0:
            del self.wanted[key]
            taken = self._take(key, func, args, kwargs)
        output = func(*args, **kwargs)
        results = made(func, args, kwargs, output)
        if taken is not None:
            taken.output.extend(copied(t) for t in tensors(results))
        self._note(key, func, args, kwargs, results)
        return output

    def _take(self, key: Key, func: Any, args: Any, kwargs: Any) -> Operation:
        assert self.window is not None
        random, settings = random_state(), settings_now()
        origins = [self._origin(t) for t in tensors((args, kwargs))]
        args, kwargs = tree_map(
            lambda x: copied(x) if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        self.found[key] = Operation(
            key, func, args, kwargs, self.window, self.request, [], origins, settings, random,
            call_site(),
        )  # fmt: skip
        return self.found[key]

    def _origin(self, t: torch.Tensor) -> Origin:
        at = address(t)
        found = self._origins.get(at) or Origin(name=self._names.get(at))
        return replace(found, argument=self._given.get(at), asked=self._asked.get(at))

    def _note(self, key: Key, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        assert self.window is not None
        before = list(tensors((args, kwargs)))
        for t in tensors(output):
            at = address(t)
            if makes_memory(func):
                self._origins[at] = Origin(made_by=key, born_empty=True)
                continue
            inside = any(address(x) == at for x in before)
            self._origins[at] = Origin(
                made_by=key,
                born_empty=any(
                    o.born_empty for o in map(self._origins.get, map(address, before)) if o
                ),
                reduces=self._reduces(func, t, before),
                random=torch.Tag.nondeterministic_seeded in func.tags and not before,
                name=self._names.get(at) if inside else None,
            )

    def _reduces(self, func: Any, t: torch.Tensor, operands: list[torch.Tensor]) -> bool:
        """Whether `t` has no part for each request although an operand has, or descends from such.

        Where everything is one request, and in a batch of one: a single number made of many.
        """
        assert self.window is not None
        if any(self._origin(x).reduces and x.numel() == t.numel() for x in operands):
            return True
        larger = [x for x in operands if x.numel() > t.numel()]
        if t.numel() > 1 and base_name(func) not in _REDUCTIONS:
            return False  # it may as well have picked some rows
        if self.window.batch < 2:
            return t.numel() == 1 and bool(larger)
        row = self.request.row or 0
        if self.window.select(t, row, None) is not None:
            return False
        return any(self.window.select(x, row, None) is not None for x in larger)


def _names(module: torch.nn.Module | None) -> dict[int, str]:
    """Parameters and buffers by the address of their memory."""
    if module is None:
        return {}
    named = [("parameter", module.named_parameters()), ("buffer", module.named_buffers())]
    return {address(t): f"{what} {name}" for what, pairs in named for name, t in pairs}


def parameter(module: torch.nn.Module | None, place: int) -> str:
    """The name of a model's positional argument."""
    forward = getattr(module, "_fn", None) or getattr(module, "forward", None)
    names = list(inspect.signature(forward).parameters) if forward is not None else []
    return names[place] if place < len(names) else f"argument {place}"


def call_site() -> str:
    """``file:line`` of the innermost line of a model or of its caller.

    That is the innermost frame outside torch and samebits; for a model made of torch's modules
    alone the line of the module.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LISTENERS):
        frame = frame.f_back
    inner = None
    while frame is not None and not frame.f_code.co_filename.startswith(_CHECK):
        name = frame.f_code.co_filename
        if not name.startswith(_OWN):
            return _site(frame)
        if inner is None and name.startswith(_MODULES):
            inner = frame
        frame = frame.f_back
    return _site(inner) if inner is not None else ""


def _site(frame: Any) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{Path(*path.parts[-3:])}:{frame.f_lineno}"
