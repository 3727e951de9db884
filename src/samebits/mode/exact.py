"""What the switch installs above the portable contracts when the exact ones are in force.

Products, sums, means, norms, softmax and attention are those of `samebits.ops.exact`, by whatever
name torch is asked for them; a form of theirs without an exact contract is refused. Everything else
keeps its portable contract, or is refused: scans, scattered sums and variances have a fixed order
and are not exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.engines.cpu._cpu import Counted
from samebits.errors import ShapeError
from samebits.mode import coverage
from samebits.mode.derive import Schemas, inplace_form, out_form
from samebits.mode.fallback import refuse
from samebits.mode.opaque import traceable
from samebits.mode.portable import BOTH
from samebits.ops import exact

Kernel = Callable[..., Any]
Dims = int | Sequence[int] | None
_REMEDY = 'Compute it under contract="portable", or without that option'


class _Kernel:
    """An exact kernel in the place of an override, in whose name its calls are counted."""

    def __init__(self, name: str, compute: Kernel, override: Counted) -> None:
        self.__name__ = f"exact {name}"
        self._compute, self._override = compute, override

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args[0].dtype not in DTYPE_CODE:  # whole numbers and truth values
            return self._override(*args, **kwargs)
        self._override.hits += 1
        return self._compute(*args, **kwargs)


def _below_autograd(compute: Kernel) -> Kernel:
    """`compute` without gradients: torch's own formulas give them."""

    def run(*args: Any, **kwargs: Any) -> Any:
        bare = {name: _bare(value) for name, value in kwargs.items()}
        return compute(*(_bare(a) for a in args), **bare)

    return run


def _bare(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _only(op: str, holds: bool, what: str) -> None:
    if not holds:
        refuse(f"aten::{op}", f"no exact contract has {what}", remedy=_REMEDY)


def _mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return exact.matmul(self, mat2)


def _addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    _only("addmm", alpha == 1 and beta in (0, 1), "factors of its terms other than 1")
    return exact.linear(mat1, mat2.mT, self if beta else None)


def _baddbmm(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    _only("baddbmm", alpha == 1 and beta in (0, 1), "factors of its terms other than 1")
    return exact.baddbmm(self if beta else None, batch1, batch2)


def _addbmm(
    self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    _only("addbmm", alpha == 1 and beta in (0, 1), "factors of its terms other than 1")
    return exact.linear(*_joined(batch1, batch2), self if beta else None)


def _joined(batch1: torch.Tensor, batch2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One product with the sum of all: [B, M, K], [B, K, N] -> [M, B K], [N, B K]."""
    fits = batch1.dim() == batch2.dim() == 3 and batch1.shape[::2] == batch2.shape[:2]
    if not fits:
        raise ShapeError(f"addbmm: {tuple(batch1.shape)} and {tuple(batch2.shape)} do not fit")
    return batch1.transpose(0, 1).flatten(1), batch2.flatten(0, 1).mT


def _addmv(
    self: torch.Tensor, mat: torch.Tensor, vec: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    _only("addmv", alpha == 1 and beta in (0, 1), "factors of its terms other than 1")
    term = None if not beta else self.unsqueeze(-1) if self.dim() else self
    return exact.linear(mat, vec.unsqueeze(0), term).squeeze(-1)


def _addmm_activation(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1,
    use_gelu: bool = False,
) -> torch.Tensor:  # fmt: skip
    _only("_addmm_activation", alpha == 1 and beta in (0, 1), "factors of its terms other than 1")
    y = exact.linear(mat1, mat2.mT, self if beta else None, out_dtype=torch.float32)
    # The dispatcher again: gelu has a portable contract. One rounding more, after the activation.
    return (torch.nn.functional.gelu(y) if use_gelu else y.clamp_min_(0)).to(mat1.dtype)


def _mm_dtype(self: torch.Tensor, mat2: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    return exact.matmul(self, mat2, out_dtype=out_dtype)


def _addmm_dtype(
    self: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, *, beta: Any = 1,
    alpha: Any = 1,
) -> torch.Tensor:  # fmt: skip
    _only("addmm", alpha == 1 and beta in (0, 1), "factors of its terms other than 1")
    term = self if beta else None
    if a.dim() == 2:
        return exact.linear(a, b.mT, term, out_dtype=out_dtype)
    return exact.baddbmm(term, a, b, out_dtype=out_dtype)


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if weight.dim() == 1:
        return exact.linear(input, weight.unsqueeze(0), bias).squeeze(-1)
    return exact.linear(input, weight, bias)


def _linear_autograd(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """torch's own formulas of the backward, which are products, too."""
    graph = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (input, weight, bias)
    )
    if not graph:
        return _linear(_bare(input), _bare(weight), _bare(bias))
    rows = input.reshape(-1, input.shape[-1])
    y = rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return y.view(*input.shape[:-1], weight.shape[0])


def _sum(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return exact.sum(self, dtype=dtype)


def _sum_dim(
    self: torch.Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return exact.sum(self, dim, keepdim, dtype=dtype)


def _nansum(
    self: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return exact.sum(self.masked_fill(self.isnan(), 0), dim, keepdim, dtype=dtype)


def _trace(self: torch.Tensor) -> torch.Tensor:
    return exact.sum(self.diagonal())


def _mean(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return exact.mean(self, dtype=dtype)


def _mean_dim(
    self: torch.Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return exact.mean(self, dim, keepdim, dtype=dtype)


def _vector_norm(
    self: torch.Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    _only("linalg_vector_norm", ord == 2, f"order {ord}")
    return exact.vector_norm(self, dim, keepdim, dtype=dtype)


def _norm(self: torch.Tensor, p: Any = 2, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _vector_norm(self, 2 if p is None else p, dtype=dtype)


def _norm_dim(
    self: torch.Tensor, p: Any, dim: Dims, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    return _vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


def _softmax(self: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return exact.softmax(self, dim, dtype=torch.float32 if half_to_float else None)


def _log_softmax(self: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return exact.log_softmax(self, dim, dtype=torch.float32 if half_to_float else None)


def _logsumexp(self: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    _only("logsumexp", len(dim) == 1, "several axes")
    return exact.logsumexp(self, dim[0], keepdim)


def _layer_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> torch.Tensor:  # fmt: skip
    _no_gradient("layer_norm", input, weight, bias)
    _only("layer_norm", len(normalized_shape) == 1, "several axes")
    return exact.layer_norm(_bare(input), _bare(weight), _bare(bias), eps)


def _rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:  # fmt: skip
    _no_gradient("rms_norm", input, weight)
    _only("rms_norm", len(normalized_shape) == 1, "several axes")
    tiny = torch.finfo(torch.float32).eps
    return exact.rms_norm(_bare(input), _bare(weight), tiny if eps is None else eps)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    _no_gradient("scaled_dot_product_attention", query, key, value, attn_mask)
    _only("scaled_dot_product_attention", dropout_p == 0, "dropout")
    return exact.attention(
        _bare(query), _bare(key), _bare(value), scale=scale, causal=is_causal, q_start=0,
        mask=_bare(attn_mask),
    )  # fmt: skip


def _no_gradient(op: str, *tensors: torch.Tensor | None) -> None:
    graph = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    _only(op, not graph, "a backward: use torch.no_grad()")


#: At the keys of dense tensors, below torch's autograd.
_DENSE: dict[str, Kernel] = {
    "mm": _mm, "bmm": _mm, "mv": _mm, "dot": _mm, "vdot": _mm, "addmm": _addmm, "addmv": _addmv,
    "baddbmm": _baddbmm, "addbmm": _addbmm, "_addmm_activation": _addmm_activation,
    "mm.dtype": _mm_dtype, "bmm.dtype": _mm_dtype, "addmm.dtype": _addmm_dtype,
    "baddbmm.dtype": _addmm_dtype, "linear": _linear, "nansum": _nansum, "trace": _trace,
    "norm.Scalar": _norm, "norm.ScalarOpt_dtype": _norm, "norm.ScalarOpt_dim": _norm_dim,
    "norm.ScalarOpt_dim_dtype": _norm_dim, "sum": _sum, "sum.dim_IntList": _sum_dim, "mean": _mean,
    "mean.dim": _mean_dim, "linalg_vector_norm": _vector_norm, "_softmax": _softmax,
    "_log_softmax": _log_softmax, "logsumexp": _logsumexp, "layer_norm": _layer_norm,
    "rms_norm": _rms_norm, "scaled_dot_product_attention": _attention,
}  # fmt: skip
#: Portable under these contracts, too (base names): nothing that has an exact one.
_STAYS = frozenset({
    "argmax", "argmin", "argsort", "cumprod", "cumsum", "embedding", "gelu", "index_add",
    "kthvalue", "prod", "scatter_add", "sigmoid", "silu", "sort", "std", "std_mean", "tensordot",
    "topk", "var", "var_mean",
})  # fmt: skip
#: Composites that are taken whole.
_AUTOGRAD: dict[str, Kernel] = {
    "linear": _linear_autograd, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
}  # fmt: skip


def layer(
    overrides: Mapping[tuple[str, str], Counted], devices: Iterable[str]
) -> dict[tuple[str, str], Kernel]:
    """What stands above the portable contracts, by (qualified schema, dispatch key).

    Args:
        overrides: what this layer stands on, by (schema, key).
        devices: "CPU", and "CUDA" where there is a GPU.
    """
    schemas = Schemas()
    found: dict[tuple[str, str], Kernel] = {}
    for key in devices:
        for name, compute in _DENSE.items():
            if (name, key) not in overrides:
                continue
            kernel = _Kernel(name, _below_autograd(compute), overrides[name, key])
            found[(f"aten::{name}", key)] = kernel
            for form, schema in schemas.derived(name):
                if coverage.has_kernel(form, key):
                    out = any(a.is_out for a in schema.arguments)
                    made = (
                        out_form(form, schema, kernel, key)
                        if out
                        else inplace_form(form, kernel, key)
                    )
                    found[(f"aten::{form}", key)] = made
        if ("logsumexp.out", key) in overrides:  # torch spells its dim in another way
            form, base = "logsumexp.out", found["aten::logsumexp", key]
            found[f"aten::{form}", key] = out_form(form, schemas.get(form), base, key)
        for name, compute in _AUTOGRAD.items():
            above = name, f"Autograd{key}"
            if above in overrides:
                whole = traceable(name, schemas.get(name), compute, "exact_")
                found[(f"aten::{name}", above[1])] = _Kernel(name, whole, overrides[above])
        for (name, at), override in overrides.items():
            op = coverage.base_name(name)
            if at == key and op in BOTH - _STAYS and (f"aten::{name}", at) not in found:
                found[(f"aten::{name}", at)] = _Kernel(name, _refusal(op), override)
    return found


def _refusal(op: str) -> Kernel:
    """For forms of an exact operation that have no exact contract, such as statistics of a norm."""

    def run(*args: Any, **kwargs: Any) -> Any:
        _only(op, False, "this form of the operation")

    return run
