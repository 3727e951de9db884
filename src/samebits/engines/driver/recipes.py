"""Operations that start again without Python, once they have been seen.

An operation on a GPU checks its operands, looks up a contract and a schedule, allocates, and
launches one or a few kernels: 10 to 40 us of host time in Python. All of that is a function of the
operands' shapes, strides, types and alignment, and of its numbers. So the launches of a second call
are kept, with the operands' addresses left open, and later calls of the same kind allocate and
launch in C++ (`_cuda.Recipes`).

What else a call does is watched: one that calls any function of torch but to allocate or to make a
view, or a vendor's library, or that is given operands which overlap, or whose kernels use memory
that was there before, is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.engines.driver import _cuda

F = TypeVar("F", bound=Callable[..., Any])

#: Functions of aten that compute nothing: they allocate, or make a view.
_ALLOCATIONS = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")
)
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "_reshape_alias", "as_strided", "transpose", "t", "permute",
        "unsqueeze", "squeeze", "select", "slice", "expand", "alias", "detach", "unbind", "split",
        "unfold",
    )
)  # fmt: skip
#: Kinds of arguments that an operation remembers; beyond that it forgets them all.
_MOST = 8192


def recorded(work: F) -> tuple[F, Callable[[], None]]:
    """`work` that starts again without Python, and what makes it forget.

    Args:
        work: takes positional arguments; all that it depends on are they (tensors, numbers,
            strings, None, constant objects) and what its owner forgets with.
    """
    recipes = _cuda.Recipes(_MOST)
    replay = recipes.replay

    @wraps(work)
    def run(*args: Any) -> Any:
        known = replay(*args)
        return _learn(recipes, work, args) if known is None else known

    return run, recipes.clear  # type: ignore[return-value]


def _learn(recipes: _cuda.Recipes, work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if _cuda.recording() or not recipes.wants(*args):
        return work(*args)
    with _Watch() as watch:
        torch.empty(0)  # seen, or nothing else would be
        return recipes.learn(lambda: work(*args), watch.allocated, *args)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What functions of torch do: allocate, or more than that."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pure = True
        self._kept: list[torch.Tensor] = []  # so that no memory is given out twice

    def allocated(self) -> set[int] | None:
        """Addresses of new memory; None if anything was computed, or nothing seen at all."""
        if not self.pure or not self._kept:
            return None
        return {t.untyped_storage().data_ptr() for t in self._kept}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in _ALLOCATIONS:
            self._kept.append(result)
        elif func._schema.name not in _VIEWS:
            self.pure = False
        return result
