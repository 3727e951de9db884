"""What the switch installs besides when the portable contracts are in force.

An operation is portable if a CPU and a GPU give it the same bits: it only moves numbers or rounds
once, or samebits computes it by a portable contract on both. Everything else that rounds is
refused. So are operations whose kernels only look exact: on a GPU torch divides by a number by
multiplying with its reciprocal, and tables of floats are made with other formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.mode import coverage
from samebits.mode.derive import Schemas, inplace_form, out_form
from samebits.mode.fallback import Stock, refuse
from samebits.mode.table import Kind
from samebits.ops import pointwise

Kernel = Callable[..., Any]

_BOTH = """
    _addmm_activation _fused_rms_norm _log_softmax _scaled_dot_product_flash_attention_for_cpu
    _softmax addbmm addmm addmv argmax argmin argsort baddbmm bmm cumprod cumsum dot embedding gelu
    index_add kthvalue layer_norm linalg_vector_norm linear logsumexp mean mm mv nansum
    native_layer_norm norm prod rms_norm scaled_dot_product_attention scatter_add sigmoid silu sort
    std std_mean sum tensordot topk trace var var_mean vdot
"""
_POLYNOMIALS = """
    acos acosh asin asinh atan atan2 atanh cos cosh elu erf erfc exp exp2 expm1 glu hypot log log10
    log1p log2 logaddexp logaddexp2 logit maximum minimum mish pow rsqrt sin sinh softplus
    softshrink sqrt tan tanh xlogy
"""
#: Covered on CPUs and on GPUs by portable contracts (base names).
BOTH = frozenset(_BOTH.split())
#: With the functions that a CPU computes by fixed polynomials. A GPU has those of `_ON_GPU`.
ON_CPU = BOTH | frozenset(_POLYNOMIALS.split())
#: Exact for any one device only.
_TABLES = frozenset({"fft_fftfreq", "fft_rfftfreq", "linspace", "logspace", "range"})
#: Quotients before they are rounded, and 16-bit numbers beside ones that only a CPU narrows.
_ROUNDED = frozenset({
    "div.Tensor_mode", "div.out_mode", "div_.Tensor_mode", "round.decimals", "round.decimals_out",
    "round_.decimals", "threshold", "threshold.out", "threshold_",
})  # fmt: skip
_WHY = "a CPU and a GPU would give it different bits"
_REMEDY = (
    'Rewrite it with operations that are portable (docs/portable.md), compute it under contract="'
    'device", or accept it with samebits.enable(contract="portable", allow=["{op}"])'
)


class Unportable:
    """In the place of a kernel that is not portable. Integers and truth values pass."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        self.__name__ = f"unportable {name}"
        self._name, self._kernel = name, kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        if _rounds(args) or _rounds(kwargs.values()) or (dtype and dtype.is_floating_point):
            op = f"aten::{self._name}"
            refuse(op, _WHY, remedy=_REMEDY.format(op=op.partition(".")[0]))
        return self._kernel(*args, **kwargs)


def _rounds(values: Iterable[Any]) -> bool:
    """Whether a tensor of floats, or a list with one, is among the arguments."""
    for x in values:
        if isinstance(x, torch.Tensor):
            if x.is_floating_point() or x.is_complex():
                return True
        elif isinstance(x, (list, tuple)) and _rounds(x):
            return True
    return False


class Table(Unportable):
    """In the place of a function that makes a table of numbers, which may be floats."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        numbers = [x for x in args if isinstance(x, float)]
        whole = dtype.is_floating_point and all(x.is_integer() for x in numbers)
        exact = self._name.startswith("arange") and (whole or not numbers)
        if not exact and dtype.is_floating_point:
            op = f"aten::{self._name}"
            refuse(op, _WHY, remedy=_REMEDY.format(op=op.partition(".")[0]))
        return self._kernel(*args, **kwargs)


def layer(
    overrides: Mapping[tuple[str, str], Kernel], devices: Iterable[str]
) -> dict[tuple[str, str], Kernel]:
    """What stands above the overrides and refusals, by (qualified schema, dispatch key).

    Args:
        overrides: the overrides of every contract, by (schema, key).
        devices: "CPU", and "CUDA" where there is a GPU.
    """
    found: dict[tuple[str, str], Kernel] = {}
    for key in devices:
        portable = ON_CPU if key == "CPU" else BOTH
        mine = frozenset(name for name, k in overrides if k in (key, f"Autograd{key}"))
        for (name, k), kernel in overrides.items():
            if k in (key, f"Autograd{key}") and coverage.base_name(name) not in portable:
                found[(f"aten::{name}", k)] = Unportable(name, kernel)
        for name in coverage.schemas(key):
            base = coverage.base_name(name)
            if name in mine or not coverage.has_kernel(name, key):
                continue
            if base in _TABLES or base == "arange":
                found[(f"aten::{name}", key)] = Table(name, Stock(name, key))
            elif name in _ROUNDED or coverage.classify(name, mine, key).kind is Kind.TESTED:
                found[(f"aten::{name}", key)] = Unportable(name, Stock(name, key))
        if key == "CUDA":
            found.update({(f"aten::{name}", key): fn for name, fn in _on_gpu().items()})
    return found


# ---- what a GPU computes by our kernels, under these contracts alone -----------------------------

#: aten name -> the function of `samebits.ops`.
_ON_GPU = (
    "cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "rsqrt", "sin", "sqrt", "tanh",
)  # fmt: skip
#: Exponents that are products, roots and quotients.
_EXPONENTS = {
    2.0: "square", 3.0: "cube", 0.5: "square_root", -0.5: "rsqrt", -1.0: "reciprocal",
    -2.0: "inverse_square",
}  # fmt: skip


def _on_gpu() -> dict[str, Kernel]:
    """By schema, with the forms that write into a tensor."""
    found = {name: _function(name, Stock(name, "CUDA")) for name in _ON_GPU}
    found["pow.Tensor_Scalar"] = _power(Stock("pow.Tensor_Scalar", "CUDA"))
    found["div.Tensor"] = _quotient(Stock("div.Tensor", "CUDA"))
    schemas = Schemas()
    for name, fn in list(found.items()):
        for form, schema in schemas.derived(name):
            if not coverage.has_kernel(form, "CUDA"):
                continue
            if any(a.is_out for a in schema.arguments):
                found[form] = out_form(form, schema, fn, "CUDA")
            else:
                found[form] = inplace_form(form, fn, "CUDA")
    for base in ("add", "sub", "mul"):
        for form in (f"{base}.Tensor", f"{base}_.Tensor", f"{base}.out"):
            written = form != f"{base}.Tensor"
            found[form] = _as_on_a_cpu(Stock(form, "CUDA"), base == "mul", written)
    return found


def _function(name: str, original: Kernel) -> Kernel:
    def function(self: torch.Tensor) -> Any:
        if self.dtype in DTYPE_CODE:
            return getattr(pointwise, name)(self.detach())
        return Unportable(name, original)(self)

    return function


def _power(original: Kernel) -> Kernel:
    from samebits.ops.pointwise import cuda

    def power(self: torch.Tensor, exponent: Any) -> Any:
        if self.dtype in DTYPE_CODE and exponent == 1:
            return self.clone()
        kernel = _EXPONENTS.get(exponent) if not isinstance(exponent, complex) else None
        if self.dtype in DTYPE_CODE and kernel is not None:
            return cuda.unary("pow", kernel, self.detach())
        return Unportable("pow.Tensor_Scalar", original)(self, exponent)

    return power


def _quotient(original: Kernel) -> Kernel:
    """``div.Tensor``. torch divides by what it holds on the host (a Python number, a tensor of no
    axis on a CPU) by multiplying with the reciprocal, so here that lies on the GPU first."""

    def quotient(self: torch.Tensor, other: torch.Tensor | complex) -> Any:
        dtype = torch.result_type(self, other)
        if dtype.is_complex:
            return Unportable("div.Tensor", original)(self, other)
        if not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        if isinstance(other, torch.Tensor):
            if not _on_host(other, self):
                # A CPU narrows a number in front before it divides it.
                return original(self.to(dtype) if _on_host(self, other) else self, other)
            other = other.item()
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        divisor = torch.full((), other, dtype=wide, device=self.device)
        return original(self.to(wide), divisor).to(dtype)

    return quotient


def _as_on_a_cpu(original: Kernel, factor: bool, written: bool) -> Kernel:
    """Sums, differences and products of 16-bit tensors and numbers of the host. A CPU narrows the
    number first, but for a `factor` at the second place; torch on a GPU takes it as it is.

    Args:
        written: the result is written into a tensor that is among the arguments.
    """

    def binary(self: Any, other: Any, **options: Any) -> Any:
        dtype = torch.result_type(self, other)
        narrow = dtype in (torch.bfloat16, torch.float16)
        first = _beside(self, other, dtype, narrow)
        y = original(first, _beside(other, self, dtype, narrow and not factor), **options)
        return y if written else y.to(dtype)

    return binary


def _beside(x: Any, partner: Any, dtype: torch.dtype, narrow: bool) -> torch.Tensor:
    """x, a tensor or a number of the host, as a kernel takes it whose result is of `dtype`."""
    if isinstance(x, torch.Tensor):
        if not (narrow and _on_host(x, partner)):
            return x
        x = x.item()
    if narrow:
        return torch.full((), x, dtype=dtype, device=partner.device)
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    return torch.tensor(x, dtype=wide)


def _on_host(x: torch.Tensor, partner: Any) -> bool:
    """Whether x is a number of the host's beside a tensor of another device."""
    return x.dim() == 0 and x.is_cpu and isinstance(partner, torch.Tensor) and not partner.is_cpu
