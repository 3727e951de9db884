"""Functions that engines offer, and calls of them: what the guard has to know of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch


@dataclass(frozen=True)
class Again:
    """A way to compute a call again, under the same contract.

    Attributes:
        name: of the schedule.
        run: computes new tensors.
        quick: about as fast as the call itself: fit for samples.
        whole: the results are computed; else a few elements of the call's own result are.
    """

    name: str
    run: Callable[[], Any]
    quick: bool = True
    whole: bool = True


@dataclass
class Call:
    """One call of an offered function.

    Attributes:
        point: the function.
        arguments: by name.
        result: what it gave.
        number: of the call in its thread.
    """

    point: Point
    arguments: dict[str, Any]
    result: Any = None
    number: int = 0

    def run(self) -> Any:
        """Computes the call with the schedule that it had, into new memory."""
        return self.point.fn(**self.arguments)


@dataclass(frozen=True)
class Point:
    """A function that an engine offers.

    Attributes:
        op: the operation.
        fn: the function.
        contract: id of a call's contract; "" where the operation is defined without one.
        schedule: name of the schedule that a call had.
        others: other schedules of a call: quick ones first, the one to be believed last.
        follows: whether its kernels check their paths in path mode.
    """

    op: str
    fn: Callable[..., Any]
    contract: Callable[[dict[str, Any]], str]
    schedule: Callable[[dict[str, Any]], str]
    others: Callable[[Call], list[Again]]
    follows: bool = False

    @property
    def out_at(self) -> int | None:
        """The place of ``out`` among the arguments of a function with an addend ``c``, which it may
        overwrite; None for others."""
        names = list(_signature(self.fn).parameters)
        return names.index("out") if {"out", "c"} <= set(names) else None

    def call(self, args: tuple[Any, ...], options: dict[str, Any]) -> Call:
        """A call, safe to compute again: an addend that the result overwrites is copied."""
        signature = _signature(self.fn)
        bound = signature.bind(*args, **options).arguments
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound.update(bound.pop(name, {}))
        out, c = bound.pop("out", None), bound.get("c")
        if out is not None and c is not None and _overlap(out, c):
            bound["c"] = c.clone()
        return Call(self, bound)


@lru_cache(maxsize=256)
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
