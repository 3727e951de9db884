"""Which engine computes an exact sum: the one of the tensor's device. Bits do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import torch

from samebits.engines.cpu import exact as cpu
from samebits.engines.cpu import set_worker_flush
from samebits.errors import DTypeError
from samebits.ops import pointwise
from samebits.ops.checks import engine_tensor

#: Words of a type, and of its canonical NaN. Processors disagree about the NaN they compute.
_NAN = {
    torch.float32: (torch.int32, 0x7FC00000),
    torch.bfloat16: (torch.int16, 0x7FC0),
    torch.float16: (torch.int16, 0x7E00),
}

#: The smallest fp32 number, made without arithmetic.
_TINY = torch.tensor([1], dtype=torch.int32, device="cpu").view(torch.float32)


@contextmanager
def gradual(x: torch.Tensor) -> Iterator[None]:
    """torch's arithmetic on a CPU keeps subnormals here, whatever the calling thread has set."""
    if x.is_cuda:
        yield
        return
    workers, own = set_worker_flush(False), (_TINY * 1.0).item() == 0
    if own:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if own:
            torch.set_flush_denormal(True)
        if workers:
            set_worker_flush(True)


def checked(op: str, x: torch.Tensor) -> torch.Tensor:
    """`x`, if an engine can read it; errors as `engine_tensor`."""
    return engine_tensor(f"exact.{op}", x, gpu=True)


def result_type(op: str, name: str, x: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, if results of an operation on x may have it.

    Raises:
        DTypeError: it is neither x's nor fp32.
    """
    if dtype not in (x.dtype, torch.float32):
        own = "torch.float32" if x.dtype is torch.float32 else f"{x.dtype} or torch.float32"
        raise DTypeError(f"exact.{op}: {name} must be {own}, not {dtype}")
    return dtype


def product(
    x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """R(x @ w.mT + c): x [B, M, K] or [M, K], w [B, N, K] or [N, K], c fp32 or None."""
    result: torch.Tensor = _engine(x).product(x, w, c, out_dtype)[0]
    return result


def rows(x: torch.Tensor, out_dtype: torch.dtype, squares: bool = False) -> torch.Tensor:
    """R(sum x) or R(sum x * x) along the last axis: [..., n] -> [...]."""
    result: torch.Tensor = _engine(x).rows(_flat(x), out_dtype, squares=squares)[0]
    return result if x.dim() == 2 else result.view(x.shape[:-1])


def mean(x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """S(x) / n along the last axis, S rounded to fp32: [..., n] -> [...]."""
    return _values("mean", x, out_dtype)


def length(x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """sqrt(Q(x)) along the last axis, Q rounded to fp32: [..., n] -> [...]."""
    return _values("norm", x, out_dtype)


def _values(value: str, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    result: torch.Tensor = _engine(x).row_values(value, _flat(x), out_dtype)[0]
    return result if x.dim() == 2 else result.view(x.shape[:-1])


def softmax(kind: str, x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """ "softmax", "log_softmax" or "logsumexp" (without the last axis) of x [..., n]."""
    result: torch.Tensor = _engine(x).softmax(kind, _flat(x), out_dtype)
    if x.dim() == 2:
        return result
    return result.view(x.shape[:-1] if kind == "logsumexp" else x.shape)


def columns(x: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """R(sum x) along the first axis: [T, n] -> [n], for few terms."""
    result: torch.Tensor = _engine(x).columns(x, out_dtype)[0]
    return result


def norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, layer: bool
) -> torch.Tensor:
    """``fma((x - u) * r, weight, bias)`` along the last axis; u is 0 without `layer`."""
    result: torch.Tensor = _engine(x).norm(_flat(x), weight, bias, eps, layer)
    return result if x.dim() == 2 else result.view(x.shape)


def partial(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x @ w.T`` in fp64, [M, N], and what each sum may be wrong by."""
    result: tuple[torch.Tensor, torch.Tensor] = _engine(x).partial(x, w)
    return result


def join(
    y: torch.Tensor, e: torch.Tensor, out_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of parts y [P, n] that may be wrong by e, rounded once; and a mask of what is open."""
    result: tuple[torch.Tensor, torch.Tensor] = _engine(y).join(y, e, out_dtype)
    return result


def exp(x: torch.Tensor) -> torch.Tensor:
    """e^x of fp32 numbers: `contract.functions.exp`, on every device."""
    result: torch.Tensor = gpu().exp(x) if x.is_cuda else pointwise.exp(x)
    return result


def canonical(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """fp32 values rounded to `dtype`, every NaN the canonical one, on every device."""
    word, nan = _NAN[dtype]
    rounded = y.to(dtype)
    return rounded.view(word).masked_fill(y.isnan(), nan).view(dtype)


def gpu() -> ModuleType:
    """The engine of CUDA tensors, imported when the first one shows up."""
    return import_module("samebits.engines.triton.exact")


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _engine(x: torch.Tensor) -> ModuleType:
    return gpu() if x.is_cuda else cpu
