"""``add``, ``sub`` and ``rsub`` with a factor: ``x + alpha * y``.

torch's vector code and its scalar code round that differently in 16-bit types (and, with a number
for `y`, in others), so an element's bits depend on where it lies. The aten kernel serves every
``+`` as well, where a detour through Python would cost more than the addition; so the detour is
taken where `alpha` is given: in the Python functions and methods. ``alpha * y`` is rounded to fp32,
then the sum is rounded to fp32, then once to the result's type (fp64 stays fp64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_FUNCTIONS = ("add", "sub", "subtract", "rsub")
_METHODS = ("add", "add_", "sub", "sub_", "subtract", "subtract_")
_NARROW = (torch.bfloat16, torch.float16)


def patch(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Replaces the functions and methods; `set_attribute` remembers how to undo it."""
    for name in _FUNCTIONS:
        set_attribute(torch, name, _scaled(getattr(torch, name), inplace=False))
    for name in _METHODS:
        method = getattr(torch.Tensor, name)
        set_attribute(torch.Tensor, name, _scaled(method, inplace=name.endswith("_")))


def _scaled(original: Callable[..., Any], inplace: bool) -> Callable[..., Any]:
    reverse = original.__name__ == "rsub"

    def call(*args: Any, **kwargs: Any) -> Any:
        alpha = kwargs.get("alpha", 1)
        if len(args) == 3:  # the old form: input, alpha, other
            args, alpha = (args[0], args[2]), args[1]
        if alpha == 1 or len(args) != 2 or not _rounds(*args):
            return original(*args, **kwargs)
        out = args[0] if inplace else kwargs.get("out")
        x, y = (args[1], args[0]) if reverse else args
        dtype = torch.result_type(*args)
        if dtype in _NARROW:
            x, y = _wide(x), _wide(y)
        result = (torch.Tensor.__add__ if "add" in original.__name__ else torch.Tensor.__sub__)(
            x
            if isinstance(x, torch.Tensor)
            else torch.tensor(x, dtype=_type_of(dtype), device="cpu"),
            y * alpha,
        ).to(dtype)
        if out is None:
            return result
        if not inplace and out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    call.__name__ = original.__name__
    call.__doc__ = original.__doc__
    return call


def _rounds(x: Any, y: Any) -> bool:
    return (isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor)) and torch.result_type(
        x, y
    ).is_floating_point


def _wide(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) else x


def _type_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _NARROW else dtype
