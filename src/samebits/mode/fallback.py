"""Calling torch's own kernel from inside an override, and refusing what has no contract.

An override that meets an integer tensor hands it to the stock kernel, which is exact. One that
meets a dtype or an option without a contract refuses it; what refusing means is the policy's
choice. The pattern in an area module::

    _SUM = stock("sum.dim_IntList")

    @aten("sum.dim_IntList")
    def sum_dim(self, dim, keepdim=False, *, dtype=None):
        if self.dtype in ENGINE_DTYPES:
            return ops.sum(...)
        return _SUM.by_dtype(self.dtype, self, dim, keepdim, dtype=dtype)

A handle is taken when the area module is imported, before anything is installed, so calling it
never recurses into the override. It holds the kernel for CUDA tensors too, where torch has one.
Operations that the stock kernel itself dispatches (a composite's parts) are covered or refused like
any other call.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from samebits.errors import UncoveredError, UncoveredWarning

ENGINE_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
EXACT_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    }
)

_REMEDY = (
    "Rewrite it with covered operations, run it outside the switch, or accept its bits with "
    'samebits.enable(allow=["{op}"]) or policy="warn"'
)
_SKIP = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (str(torch.__file__), os.path.dirname(os.path.abspath(__file__)))
)


#: Where the kernels of alias keys run.
_RUNTIME_KEY = {
    "CompositeImplicitAutograd": "AutogradCPU",
    "CompositeExplicitAutograd": "CPU",
    "CompositeExplicitAutogradNonFunctional": "CPU",
}


@dataclass(frozen=True)
class Policy:
    """What to do with an operation that no contract covers.

    Attributes:
        kind: ``refuse`` (raise), ``warn`` (warn once a call site, then run stock) or ``allow``.
        allow: operations that run stock in silence, as ``aten::cdist`` or ``aten::sum.out``.
    """

    kind: str = "refuse"
    allow: frozenset[str] = frozenset()


policy = Policy()


def set_policy(new: Policy) -> None:
    """Replaces the policy of this process (called by the switch)."""
    global policy
    policy = new


def refuse(op: str, reason: str, *, remedy: str | None = None) -> None:
    """Refuses an operation under the present policy. Returns if the stock kernel may run.

    Args:
        op: schema name with or without ``aten::`` and overload.
        reason: why no contract covers it, as a clause without a full stop.
        remedy: what the caller can do, when there is something better than the general advice.

    Raises:
        UncoveredError: under ``policy="refuse"``, unless ``op`` is on the allow-list.
    """
    name = op if "::" in op or op.startswith("torch.") else f"aten::{op}"
    base = name.partition(".")[0] if "::" in name else name
    if policy.kind == "allow" or name in policy.allow or base in policy.allow:
        return
    filename, line = call_site()
    advice = remedy or _REMEDY.format(op=base)
    error = UncoveredError(name, reason, remedy=advice, site=f"{filename}:{line}")
    if policy.kind == "refuse":
        raise error
    warnings.warn_explicit(str(error), UncoveredWarning, filename, line)


def call_site() -> tuple[str, int]:
    """File and line of the innermost Python frame outside torch and samebits.

    Autograd computes gradients of CUDA tensors in threads of its own, where there is none. Then it
    is that of the thread which waits for them, if only one does.
    """
    here = sys._getframe(1)
    frame = _outside(here)
    if frame is None:
        stacks = map(_backward, sys._current_frames().values())
        waiting = [_outside(call) for call in stacks if call is not None]
        frame = waiting[0] if len(waiting) == 1 else None
    frame = frame or here
    return frame.f_code.co_filename, frame.f_lineno


def _outside(frame: FrameType | None) -> FrameType | None:
    """`frame`, or the innermost of its callers that is neither torch's nor samebits'."""
    while frame is not None and frame.f_code.co_filename.startswith(_SKIP):
        frame = frame.f_back
    return frame


def _backward(frame: FrameType | None) -> FrameType | None:
    """The innermost call of autograd's engine on a thread's stack."""
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        frame = frame.f_back
    return frame


#: Whether this torch has kernels for NVIDIA GPUs (there need not be one in the machine).
CUDA_BUILD = torch.version.cuda is not None
_ON_CUDA = {"CPU": "CUDA", "AutogradCPU": "AutogradCUDA"}

Kernel = tuple[Any, Callable[..., Any]]


def _kernel(name: str, key: str) -> Kernel:
    parsed = torch._C._dispatch_key_parse(key)
    call = torch.library.get_kernel(name if "::" in name else f"aten::{name}", parsed).call_boxed
    return torch._C.DispatchKeySet(parsed), call


def on_cuda(values: Iterable[Any]) -> bool:
    """Whether a tensor among the arguments, or in a list of them, is on a GPU."""
    for x in values:
        if isinstance(x, torch.Tensor):
            if x.is_cuda:
                return True
        elif isinstance(x, (list, tuple)) and on_cuda(x):
            return True
    return False


class Stock:
    """torch's own kernel of one schema at one dispatch key; for ``CPU`` also its CUDA kernel."""

    __slots__ = ("_cuda", "_kernel", "name")

    def __init__(self, name: str, key: str = "CPU") -> None:
        key = _RUNTIME_KEY.get(key, key)
        self.name = name
        self._kernel = _kernel(name, key)
        self._cuda: Kernel | None = None
        if CUDA_BUILD and key in _ON_CUDA:
            try:
                self._cuda = _kernel(name, _ON_CUDA[key])
            except RuntimeError:  # torch has none: no CUDA tensor can get here
                self._cuda = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the stock kernel with the schema's own arguments."""
        keys, call = self._kernel
        if self._cuda is not None and (on_cuda(args) or on_cuda(kwargs.values())):
            keys, call = self._cuda
        return call(keys, *args, **kwargs)

    def uncovered(self, reason: str, *args: Any, **kwargs: Any) -> Any:
        """Refuses the call, or runs the stock kernel where the policy lets it."""
        refuse(self.name, reason)
        return self(*args, **kwargs)

    def by_dtype(self, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        """For dtypes without an engine: integers and bool are exact on stock, others refused."""
        if dtype in EXACT_DTYPES:
            return self(*args, **kwargs)
        return self.uncovered(f"no contract covers {dtype}", *args, **kwargs)


def stock(name: str, key: str = "CPU") -> Stock:
    """The stock kernel of ``aten::name`` at ``key``; call it at import time of an area module."""
    return Stock(name, key)
