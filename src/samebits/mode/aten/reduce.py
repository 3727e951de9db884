"""Overrides for reductions, running sums, and losses that reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.errors import SamebitsError
from samebits.mode.fallback import EXACT_DTYPES, Stock, stock
from samebits.mode.registry import DENSE, aten
from samebits.ops import reduce, scan

Dims = Sequence[int] | None
_FLOAT32 = torch.float32


def _on_stock(name: Stock, self: torch.Tensor, *args: Any, dtype: torch.dtype | None) -> Any:
    """Integers are exact on stock; what is left is refused."""
    computed = dtype or self.dtype
    if computed in EXACT_DTYPES:
        return name(self, *args, dtype=dtype)
    return name.uncovered(f"no contract covers {computed}", self, *args, dtype=dtype)


def _reduced(
    name: Stock,
    kind: str,
    self: torch.Tensor,
    dim: Dims,
    keepdim: bool,
    dtype: torch.dtype | None,
    *stock_args: Any,
) -> Any:
    source = self
    if self.dtype not in DTYPE_CODE or (dtype is not None and dtype not in DTYPE_CODE):
        if dtype not in DTYPE_CODE or self.dtype.is_complex:
            return _on_stock(name, self, *stock_args, dtype=dtype)
        source = self.to(dtype)  # torch casts first, too
    return reduce.run(kind, source, dim, keepdim, dtype)


_SUM, _SUM_DIM = stock("sum"), stock("sum.dim_IntList")
_MEAN, _MEAN_DIM = stock("mean"), stock("mean.dim")
_PROD, _PROD_DIM = stock("prod"), stock("prod.dim_int")
_NANSUM = stock("nansum")


@aten("sum", key=DENSE)
def sum_all(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _reduced(_SUM, "sum", self, None, False, dtype)


@aten("sum.dim_IntList", key=DENSE)
def sum_dim(
    self: torch.Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return _reduced(_SUM_DIM, "sum", self, dim, keepdim, dtype, dim, keepdim)


@aten("mean", key=DENSE)
def mean_all(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _reduced(_MEAN, "mean", self, None, False, dtype)


@aten("mean.dim", key=DENSE)
def mean_dim(
    self: torch.Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return _reduced(_MEAN_DIM, "mean", self, dim, keepdim, dtype, dim, keepdim)


@aten("prod", key=DENSE)
def prod_all(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _reduced(_PROD, "prod", self, None, False, dtype)


@aten("prod.dim_int", key=DENSE)
def prod_dim(
    self: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return _reduced(_PROD_DIM, "prod", self, (dim,), keepdim, dtype, dim, keepdim)


@aten("nansum", key=DENSE)
def nansum(
    self: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return _reduced(_NANSUM, "nansum", self, dim, keepdim, dtype, dim, keepdim)


_TRACE = stock("trace")


@aten("trace", key=DENSE)
def trace(self: torch.Tensor) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _TRACE.by_dtype(self.dtype, self)
    if self.dim() != 2:
        return _TRACE(self)  # torch's own error
    return reduce.run("sum", self.diagonal())


# ---- moments -----------------------------------------------------------------------------------

_VAR, _STD = stock("var.correction"), stock("std.correction")
_VAR_MEAN, _STD_MEAN = stock("var_mean.correction"), stock("std_mean.correction")


def _moment(
    name: Stock, kind: str, self: torch.Tensor, dim: Dims, correction: Any, keepdim: bool
) -> Any:
    if self.dtype not in DTYPE_CODE:
        return name.by_dtype(self.dtype, self, dim, correction=correction, keepdim=keepdim)
    freedom = 1.0 if correction is None else float(correction)
    if name is _VAR or name is _STD:
        return reduce.run(kind, self, dim, keepdim, correction=freedom)
    return reduce.run_with_mean(kind, self, dim, keepdim, freedom)


@aten("var.correction", key=DENSE)
def var(
    self: torch.Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return _moment(_VAR, "var", self, dim, correction, keepdim)


@aten("std.correction", key=DENSE)
def std(
    self: torch.Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return _moment(_STD, "std", self, dim, correction, keepdim)


@aten("var_mean.correction", key=DENSE)
def var_mean(
    self: torch.Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return _moment(_VAR_MEAN, "var", self, dim, correction, keepdim)


@aten("std_mean.correction", key=DENSE)
def std_mean(
    self: torch.Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return _moment(_STD_MEAN, "std", self, dim, correction, keepdim)


# ---- norms -------------------------------------------------------------------------------------

_VECTOR_NORM, _FOREACH_NORM = stock("linalg_vector_norm"), stock("_foreach_norm.Scalar")


@aten("linalg_vector_norm", key=DENSE)
def vector_norm(
    self: torch.Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    wanted = dtype or self.dtype
    if self.dtype not in DTYPE_CODE or wanted not in DTYPE_CODE:
        reason = f"no contract covers a norm of {self.dtype} in {wanted}"
        return _VECTOR_NORM.uncovered(reason, self, ord, dim, keepdim, dtype=dtype)
    if ord not in reduce.NORM_ORDERS:
        reason = f"a norm of order {ord} has no contract: 0, 1, 2, inf and -inf have"
        return _VECTOR_NORM.uncovered(reason, self, ord, dim, keepdim, dtype=dtype)
    return reduce.norm_of_order(self, ord, dim, keepdim, dtype)


@aten("norm.Scalar", key=DENSE)
def norm(self: torch.Tensor, p: float = 2) -> Any:
    return vector_norm(self, p)


@aten("norm.ScalarOpt_dtype", key=DENSE)
def norm_dtype(self: torch.Tensor, p: float | None, *, dtype: torch.dtype) -> Any:
    return vector_norm(self, 2 if p is None else p, dtype=dtype)


@aten("norm.ScalarOpt_dim", key=DENSE)
def norm_dim(self: torch.Tensor, p: float | None, dim: Dims, keepdim: bool = False) -> Any:
    return vector_norm(self, 2 if p is None else p, dim, keepdim)


@aten("norm.ScalarOpt_dim_dtype", key=DENSE)
def norm_dim_dtype(
    self: torch.Tensor, p: float | None, dim: Dims, keepdim: bool, *, dtype: torch.dtype
) -> Any:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@aten("_foreach_norm.Scalar", key=DENSE)
def foreach_norm(
    self: Sequence[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> Any:
    return [vector_norm(x, ord, dtype=dtype) for x in self]


_LOGSUMEXP, _LOGSUMEXP_OUT = stock("logsumexp"), stock("logsumexp.out")


@aten("logsumexp", key=DENSE)
def logsumexp(self: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    if self.dtype in EXACT_DTYPES:
        self = self.to(torch.get_default_dtype())
    if self.dtype not in DTYPE_CODE:
        return _LOGSUMEXP.by_dtype(self.dtype, self, dim, keepdim)
    return reduce.run("logsumexp", self, dim, keepdim)


@aten("logsumexp.out", key=DENSE)
def logsumexp_out(
    self: torch.Tensor, dim: Sequence[int], keepdim: bool = False, *, out: torch.Tensor
) -> Any:
    result = logsumexp(self, dim, keepdim)
    if out.shape != result.shape or out.dtype is not result.dtype:
        _LOGSUMEXP_OUT(self, dim, keepdim, out=out)  # torch's errors, warnings and resizing
    return out.copy_(result)


# ---- scans -------------------------------------------------------------------------------------

_CUMSUM, _CUMPROD, _LOGCUMSUMEXP = stock("cumsum"), stock("cumprod"), stock("logcumsumexp")


def _scan(
    name: Stock, self: torch.Tensor, dim: int, dtype: torch.dtype | None, product: bool
) -> Any:
    if self.dtype not in DTYPE_CODE or (dtype is not None and dtype not in DTYPE_CODE):
        if dtype not in DTYPE_CODE or self.dtype.is_complex:
            return _on_stock(name, self, dim, dtype=dtype)
        self = self.to(dtype)
    return scan.run(self, dim, dtype, product)


@aten("cumsum", key=DENSE)
def cumsum(self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _scan(_CUMSUM, self, dim, dtype, False)


@aten("cumprod", key=DENSE)
def cumprod(self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _scan(_CUMPROD, self, dim, dtype, True)


@aten("logcumsumexp", key=DENSE)
def logcumsumexp(self: torch.Tensor, dim: int) -> Any:
    return _LOGCUMSUMEXP.uncovered("running log-sum-exp has no contract", self, dim)


# ---- losses: exact elementwise arithmetic in fp32, then a covered reduction over the batch -------

_NONE, _MEAN_REDUCTION = 0, 1


def _loss(terms: torch.Tensor, reduction: int, dtype: torch.dtype) -> torch.Tensor:
    if reduction == _NONE:
        return terms.to(dtype)
    return reduce.run("mean" if reduction == _MEAN_REDUCTION else "sum", terms).to(dtype)


def _both_floating(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype in DTYPE_CODE and b.dtype in DTYPE_CODE


_MSE, _SMOOTH_L1, _HUBER = stock("mse_loss"), stock("smooth_l1_loss"), stock("huber_loss")


@aten("mse_loss", key=DENSE)
def mse_loss(self: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> Any:
    if not _both_floating(self, target):
        return _MSE.uncovered(f"no contract covers {self.dtype}", self, target, reduction)
    d = self.to(_FLOAT32) - target.to(_FLOAT32)
    return _loss(d * d, reduction, torch.promote_types(self.dtype, target.dtype))


@aten("smooth_l1_loss", key=DENSE)
def smooth_l1_loss(
    self: torch.Tensor, target: torch.Tensor, reduction: int = 1, beta: float = 1.0
) -> Any:
    if not _both_floating(self, target):
        reason = f"no contract covers {self.dtype}"
        return _SMOOTH_L1.uncovered(reason, self, target, reduction, beta)
    d = (self.to(_FLOAT32) - target.to(_FLOAT32)).abs()
    terms = torch.where(d < beta, (d * 0.5 * d) / beta, d - 0.5 * beta)
    return _loss(terms, reduction, torch.promote_types(self.dtype, target.dtype))


@aten("huber_loss", key=DENSE)
def huber_loss(
    self: torch.Tensor, target: torch.Tensor, reduction: int = 1, delta: float = 1.0
) -> Any:
    if not _both_floating(self, target):
        reason = f"no contract covers {self.dtype}"
        return _HUBER.uncovered(reason, self, target, reduction, delta)
    d = (self.to(_FLOAT32) - target.to(_FLOAT32)).abs()
    terms = torch.where(d <= delta, d * 0.5 * d, (d - 0.5 * delta) * delta)
    return _loss(terms, reduction, torch.promote_types(self.dtype, target.dtype))


_BCE = stock("binary_cross_entropy")


@aten("binary_cross_entropy", key=DENSE)
def binary_cross_entropy(
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> Any:
    if not _both_floating(self, target) or (weight is not None and weight.dtype not in DTYPE_CODE):
        reason = f"no contract covers {self.dtype}"
        return _BCE.uncovered(reason, self, target, weight, reduction)
    within = "binary_cross_entropy: an element of input is not between 0 and 1"
    if self.is_cuda:  # as torch: without waiting for the GPU
        torch._assert_async(((self >= 0) & (self <= 1)).all(), within)
    elif self.numel() and (self.min() < 0 or self.max() > 1):
        raise SamebitsError(within)
    x, t = self.to(_FLOAT32), target.to(_FLOAT32)
    no, yes = torch.log1p(-x).clamp_min(-100), torch.log(x).clamp_min(-100)
    terms = (t - 1) * no - t * yes
    if weight is not None:
        terms = terms * weight.to(_FLOAT32)
    return _loss(terms, reduction, self.dtype)


_NLL, _NLL_2D = stock("nll_loss_forward"), stock("nll_loss2d_forward")


def _nll(
    rows: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` [N, classes], `target` [N]: the loss and the sum of the weights."""
    dtype = rows.dtype
    counts = target != ignore_index
    index = target.where(counts, 0).to(torch.int64)
    taken = rows.gather(1, index[:, None])[:, 0].to(_FLOAT32)
    w = counts.to(_FLOAT32) if weight is None else weight.to(_FLOAT32)[index].where(counts, 0)
    terms = (-taken * w).where(counts, 0)
    if reduction == _NONE:
        return terms.to(dtype), rows.new_zeros(())
    loss, total = reduce.run("sum", terms), reduce.run("sum", w)
    if reduction == _MEAN_REDUCTION:
        loss = loss / total
    return loss.to(dtype), total.to(dtype)


@aten("nll_loss_forward", key=DENSE)
def nll_loss_forward(
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _NLL.by_dtype(self.dtype, self, target, weight, reduction, ignore_index)
    if self.dim() == 1:
        loss, total = _nll(self[None], target.reshape(1), weight, reduction, ignore_index)
        return loss.reshape(()), total
    return _nll(self, target, weight, reduction, ignore_index)


@aten("nll_loss2d_forward", key=DENSE)
def nll_loss2d_forward(
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Any:
    if self.dtype not in DTYPE_CODE:
        return _NLL_2D.by_dtype(self.dtype, self, target, weight, reduction, ignore_index)
    rows = self.movedim(1, -1).reshape(-1, self.shape[1])
    loss, total = _nll(rows, target.reshape(-1), weight, reduction, ignore_index)
    return (loss.view(target.shape) if reduction == _NONE else loss), total


# Each element of these gradients is one product and one quotient: stock is exact.
_NLL_BACKWARD, _NLL_2D_BACKWARD = stock("nll_loss_backward"), stock("nll_loss2d_backward")


@aten("nll_loss_backward", key=DENSE)
def nll_loss_backward(*args: Any) -> Any:
    return _NLL_BACKWARD(*args)


@aten("nll_loss2d_backward", key=DENSE)
def nll_loss2d_backward(*args: Any) -> Any:
    return _NLL_2D_BACKWARD(*args)
