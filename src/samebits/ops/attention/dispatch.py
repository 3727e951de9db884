"""Which engine computes an attention: the one of the device that q is on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from samebits.engines import watch
from samebits.engines.cpu import attention as cpu_engine
from samebits.ops.attention import checks

F = TypeVar("F", bound=Callable[..., Any])


@functools.lru_cache(maxsize=16)
def on_gpu(work: F) -> F:
    """`work` on CUDA tensors: later calls of a kind start without Python, unless somebody watches
    the functions below."""
    from samebits.ops.gpu import recorded

    replayed = recorded(work)

    @functools.wraps(work)
    def run(*args: Any) -> Any:
        return work(*args) if watch.watched() else replayed(*args)

    return run  # type: ignore[return-value]


def operands(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> checks.Operands:
    """What q's engine asks of Q, K and V, and the three with negations done.

    Raises:
        DTypeError, ShapeError: tensors that it does not take.
    """
    if getattr(q, "is_cuda", False):
        from samebits.ops.attention import cuda

        return cuda.operands(op, q, k, v)
    return checks.operands(op, q, k, v)


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention over [B, H, T, D] tensors; options of `engines.cpu.attention.dense`."""
    if q.is_cuda:
        from samebits.ops.attention import cuda

        return cuda.dense(q, k, v, **options)
    return cpu_engine.dense(q, k, v, **options)


def device_integers(op: str, name: str, x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A vector of integers for the engine of `device`.

    Raises:
        DTypeError, ShapeError: another kind of tensor.
    """
    if device.type == "cpu":
        return checks.integers(op, name, x, 1)
    from samebits.ops.attention import cuda

    return cuda.integers(op, name, x, 1, device)


def gpu_scales(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_scale: torch.Tensor | float | None,
    v_scale: torch.Tensor | float | None,
) -> dict[str, torch.Tensor | None]:
    """The factors of fp8 K and V [..., Hkv, S, D], as options of `dense`.

    Raises:
        DTypeError, ShapeError: see `cuda.scales`.
    """
    from samebits.ops.attention import cuda

    return {
        "k_scale": cuda.scales(op, "k_scale", k_scale, q, k, k.size(-3)),
        "v_scale": cuda.scales(op, "v_scale", v_scale, q, v, k.size(-3)),
    }
