"""Overrides for ordering, scattering, histograms and embedding bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.mode.fallback import stock
from samebits.mode.registry import DENSE, aten
from samebits.ops import order, scatter
from samebits.ops.embedding_bag import MODES
from samebits.ops.embedding_bag import embedding_bag as reduce_bags

_STOCK_SORT_STABLE = stock("sort.stable")
_STOCK_INDEX_ADD = stock("index_add")
_STOCK_INDEX_REDUCE = stock("index_reduce")
_STOCK_SCATTER_ADD = stock("scatter_add")
_STOCK_SCATTER_REDUCE_TWO = stock("scatter_reduce.two")
_STOCK_SCATTER_REDUCE = stock("scatter.reduce")
_STOCK_SCATTER_VALUE_REDUCE = stock("scatter.value_reduce")
_STOCK_INDEX_PUT_IMPL = stock("_index_put_impl_")
_STOCK_PUT = stock("put_")
_STOCK_BINCOUNT = stock("bincount")
_STOCK_HISTOGRAM_BIN_CT = stock("histogram.bin_ct")
_STOCK_SEGMENT_REDUCE = stock("segment_reduce")
_STOCK_EMBEDDING_BAG_DENSE_BACKWARD = stock("_embedding_bag_dense_backward")
_STOCK_EMBEDDING_DENSE_BACKWARD = stock("embedding_dense_backward")


def _floating(x: torch.Tensor) -> bool:
    return x.dtype in DTYPE_CODE or x.dtype is torch.float64


# ---- ties --------------------------------------------------------------------------------------


@aten("topk", key=DENSE)
def topk(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    return order.topk(self, k, dim, largest)


@aten("sort", key=DENSE)
def sort(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    return order.sort(self, dim, descending)


@aten("sort.stable", key=DENSE)
def sort_stable(
    self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    if self.is_cuda and self.dtype.is_floating_point:  # torch takes negative NaNs for small there
        return order.sort(self, dim, descending)
    return _STOCK_SORT_STABLE(self, stable=True, dim=dim, descending=descending)


@aten("kthvalue", key=DENSE)
def kthvalue(self: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return order.kthvalue(self, k, dim, keepdim)


# ---- scatter -----------------------------------------------------------------------------------


@aten("index_add", key=DENSE)
def index_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> Any:
    if not _floating(self):
        return _STOCK_INDEX_ADD.by_dtype(self.dtype, self, dim, index, source, alpha=alpha)
    return scatter.index_add(self, dim, index, source, alpha)


@aten("index_reduce", key=DENSE)
def index_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    if not _floating(self):
        return _STOCK_INDEX_REDUCE.by_dtype(
            self.dtype, self, dim, index, source, reduce, include_self=include_self
        )
    return scatter.index_reduce(self, dim, index, source, reduce, include_self)


@aten("scatter_add", key=DENSE)
def scatter_add(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    if not _floating(self):
        return _STOCK_SCATTER_ADD.by_dtype(self.dtype, self, dim, index, src)
    return scatter.scatter_add(self, dim, index, src)


@aten("scatter_reduce.two", key=DENSE)
def scatter_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    if not _floating(self):
        return _STOCK_SCATTER_REDUCE_TWO.by_dtype(
            self.dtype, self, dim, index, src, reduce, include_self=include_self
        )
    return scatter.scatter_reduce(self, dim, index, src, reduce, include_self)


@aten("scatter.reduce", key=DENSE)
def scatter_with_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, reduce: str
) -> Any:
    if not _floating(self):
        return _STOCK_SCATTER_REDUCE.by_dtype(self.dtype, self, dim, index, src, reduce=reduce)
    return scatter.scatter_reduce(self, dim, index, src, reduce)


@aten("scatter.value_reduce", key=DENSE)
def scatter_value_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, reduce: str
) -> Any:
    if not _floating(self):
        return _STOCK_SCATTER_VALUE_REDUCE.by_dtype(
            self.dtype, self, dim, index, value, reduce=reduce
        )
    src = self.new_full(index.shape, value)
    return scatter.scatter_reduce(self, dim, index, src, reduce)


@aten("_index_put_impl_", key=DENSE)
def index_put_(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Any:
    if accumulate and _floating(self):
        return self.copy_(scatter.index_put_accumulate(self, indices, values))
    args = (self, indices, values, accumulate, unsafe)
    if accumulate:
        return _STOCK_INDEX_PUT_IMPL.by_dtype(self.dtype, *args)
    return _STOCK_INDEX_PUT_IMPL(*args)


@aten("put_", key=DENSE)
def put_(
    self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> Any:
    if not accumulate or not _floating(self):
        return _STOCK_PUT.by_dtype(self.dtype, self, index, source, accumulate)
    size = self.numel()
    flat = torch.where(index < 0, index + size, index).reshape(-1)
    out = scatter.index_add(self.reshape(-1), 0, flat, source.reshape(-1))
    return self.copy_(out.view(self.shape))


@aten("bincount", key=DENSE)
def bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
    if weights is None or self.numel() == 0:  # of nothing, torch counts in integers
        return _STOCK_BINCOUNT(self, None, minlength)
    return scatter.bincount(self, weights, minlength)


@aten("histogram.bins_tensor", key=DENSE)
def histogram(
    self: torch.Tensor,
    bins: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> Any:
    edges = bins.clone()
    return scatter.histogram(self, edges, weight, density), edges


@aten("histogram.bin_ct", key=DENSE)
def histogram_bin_ct(
    self: torch.Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> Any:
    # Stock computes the edges; they depend on the extremes of the data, which are exact.
    _, edges = _STOCK_HISTOGRAM_BIN_CT(self, bins, range=range)
    return scatter.histogram(self, edges, weight, density), edges


@aten("segment_reduce", key=DENSE)
def segment_reduce(
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    if lengths is None and offsets is not None:
        lengths = offsets.diff()
    if indices is not None or axis != 0 or lengths is None or lengths.dim() != 1:
        return _STOCK_SEGMENT_REDUCE.uncovered(
            "only 1-D lengths or offsets along axis 0 have a contract",
            data,
            reduce,
            lengths=lengths,
            indices=indices,
            offsets=offsets,
            axis=axis,
            unsafe=unsafe,
            initial=initial,
        )
    return scatter.segment_reduce(data, lengths, reduce, initial)


# ---- embeddings --------------------------------------------------------------------------------


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    bags = reduce_bags(
        weight,
        indices,
        offsets,
        MODES[mode],
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
    return bags.out, bags.bag_of, bags.counts, bags.chosen


@aten("_embedding_bag_dense_backward")
def embedding_bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> Any:
    if scale_grad_by_freq:
        return _STOCK_EMBEDDING_BAG_DENSE_BACKWARD.uncovered(
            "scale_grad_by_freq has no contract",
            grad,
            indices,
            offset2bag,
            bag_size,
            maximum_indices,
            num_weights,
            scale_grad_by_freq,
            mode,
            per_sample_weights,
            padding_idx,
        )
    zeros = grad.new_zeros(num_weights, grad.shape[1])
    if mode == 2:
        taken = maximum_indices.clamp(min=0)
        return scatter.scatter_add(zeros, 0, taken, grad.where(maximum_indices >= 0, 0))
    rows = grad[offset2bag]
    if mode == 1:
        rows = rows / bag_size[offset2bag][:, None].to(rows.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    keep = indices != padding_idx
    return scatter.index_add(zeros, 0, indices[keep], rows[keep])


@aten("embedding_dense_backward", key=DENSE)
def embedding_dense_backward(
    grad_output: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:
    if scale_grad_by_freq:
        return _STOCK_EMBEDDING_DENSE_BACKWARD.uncovered(
            "scale_grad_by_freq has no contract",
            grad_output,
            indices,
            num_weights,
            padding_idx,
            scale_grad_by_freq,
        )
    flat = indices.reshape(-1)
    rows = grad_output.reshape(flat.numel(), -1)
    keep = flat != padding_idx
    zeros = rows.new_zeros(num_weights, rows.shape[1])
    return scatter.index_add(zeros, 0, flat[keep], rows[keep])
