"""Overrides for ordering, scattering, histograms and embedding bags."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.engines.cpu import DTYPE_CODE
from samebits.mode.fallback import refuse, stock
from samebits.mode.registry import aten
from samebits.ops import embedding_bag as bag
from samebits.ops import order, scatter

Pair = tuple[torch.Tensor, torch.Tensor]


def _floating(x: torch.Tensor) -> bool:
    return x.dtype in DTYPE_CODE or x.dtype is torch.float64


# ---- ties --------------------------------------------------------------------------------------


@aten("topk")
def topk(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Pair:
    return order.topk(self, k, dim, largest)


@aten("sort")
def sort(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Pair:
    return order.sort(self, dim, descending)


@aten("sort.stable")
def sort_stable(
    self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Pair:
    values, indices = stock("sort.stable")(self, stable=True, dim=dim, descending=descending)
    return values, indices


@aten("kthvalue")
def kthvalue(self: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    return order.kthvalue(self, k, dim, keepdim)


# ---- scatter -----------------------------------------------------------------------------------


@aten("index_add")
def index_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> torch.Tensor:
    if not _floating(self):
        return _exact("index_add", self, dim, index, source, alpha=alpha)
    return scatter.index_add(self, dim, index, source, alpha)


@aten("index_reduce")
def index_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    if not _floating(self):
        return _exact("index_reduce", self, dim, index, source, reduce, include_self=include_self)
    return scatter.index_reduce(self, dim, index, source, reduce, include_self)


@aten("scatter_add")
def scatter_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> torch.Tensor:
    if not _floating(self):
        return _exact("scatter_add", self, dim, index, src)
    return scatter.scatter_add(self, dim, index, src)


@aten("scatter_reduce.two")
def scatter_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    if not _floating(self):
        return _exact(
            "scatter_reduce.two", self, dim, index, src, reduce, include_self=include_self
        )
    return scatter.scatter_reduce(self, dim, index, src, reduce, include_self)


@aten("scatter.reduce")
def scatter_with_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, reduce: str
) -> torch.Tensor:
    if not _floating(self):
        return _exact("scatter.reduce", self, dim, index, src, reduce=reduce)
    return scatter.scatter_reduce(self, dim, index, src, reduce)


@aten("scatter.value_reduce")
def scatter_value_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, reduce: str
) -> torch.Tensor:
    if not _floating(self):
        return _exact("scatter.value_reduce", self, dim, index, value, reduce=reduce)
    src = torch.full(index.shape, value, dtype=self.dtype)
    return scatter.scatter_reduce(self, dim, index, src, reduce)


@aten("_index_put_impl_")
def index_put_(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    if accumulate and _floating(self):
        return self.copy_(scatter.index_put_accumulate(self, indices, values))
    if accumulate and self.is_complex():
        refuse("aten::index_put", "complex numbers are not accumulated in a fixed order")
    result: torch.Tensor = stock("_index_put_impl_")(self, indices, values, accumulate, unsafe)
    return result


@aten("put_")
def put_(
    self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    if not accumulate or not _floating(self):
        return _exact("put_", self, index, source, accumulate)
    size = self.numel()
    flat = torch.where(index < 0, index + size, index).reshape(-1)
    out = scatter.index_add(self.reshape(-1), 0, flat, source.reshape(-1))
    return self.copy_(out.view(self.shape))


@aten("bincount")
def bincount(
    self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    if weights is None:
        counts: torch.Tensor = stock("bincount")(self, None, minlength)
        return counts
    return scatter.bincount(self, weights, minlength)


@aten("histogram.bins_tensor")
def histogram(
    self: torch.Tensor,
    bins: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> Pair:
    edges = bins.clone()
    return scatter.histogram(self, edges, weight, density), edges


@aten("histogram.bin_ct")
def histogram_bin_ct(
    self: torch.Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> Pair:
    # Stock computes the edges; they depend on the extremes of the data, which are exact.
    _, edges = stock("histogram.bin_ct")(self, bins, range=range)
    return scatter.histogram(self, edges, weight, density), edges


@aten("segment_reduce")
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
) -> torch.Tensor:
    if indices is not None or axis != 0:
        refuse("aten::segment_reduce", "only axis=0 with lengths or offsets has a contract")
    if lengths is None:
        assert offsets is not None
        lengths = offsets.diff()
    if lengths.dim() != 1:
        refuse("aten::segment_reduce", "only 1-D lengths have a contract")
    return scatter.segment_reduce(data, lengths, reduce, initial)


def _exact(op: str, self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """Integers and booleans: stock is exact. Complex numbers: refused."""
    if self.is_complex():
        refuse(f"aten::{op}", "complex numbers are not accumulated in a fixed order")
    result: torch.Tensor = stock(op)(self, *args, **kwargs)
    return result


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
    bags = bag.embedding_bag(
        weight,
        indices,
        offsets,
        bag.MODES[mode],
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
) -> torch.Tensor:
    if scale_grad_by_freq:
        refuse("aten::_embedding_bag_dense_backward", "scale_grad_by_freq has no contract")
    zeros = torch.zeros((num_weights, grad.shape[1]), dtype=grad.dtype)
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


@aten("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> torch.Tensor:
    if scale_grad_by_freq:
        refuse("aten::embedding_dense_backward", "scale_grad_by_freq has no contract")
    flat = indices.reshape(-1)
    rows = grad_output.reshape(flat.numel(), -1)
    keep = flat != padding_idx
    zeros = torch.zeros((num_weights, rows.shape[1]), dtype=grad_output.dtype)
    return scatter.index_add(zeros, 0, flat[keep], rows[keep])
