"""Weights that are laid out once for many products. Same contract, same bits, less work a call."""

from __future__ import annotations

import torch

from samebits.contract import Lanes, Tree
from samebits.engines import family
from samebits.engines.cpu import packed as engine
from samebits.errors import ContractError, DTypeError, ShapeError, UncoveredError
from samebits.ops.linear.operands import check_device, check_tensor, needs_graph, plain

PackedWeight = engine.Packed
_TREE = str(Lanes(16))


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """`weight` in the order in which the CPU's kernels read it, for `samebits.ops.linear`.

    Worth it for a weight that is used again and again: bf16 products with several rows take half
    the time or less. The copy is as large as the weight, whose later changes it does not see.

    Args:
        weight: [N, K], float32, bfloat16 or float16 in CPU memory, any strides.

    Raises:
        ShapeError, DTypeError: another kind of tensor.
    """
    weight = plain(weight)
    check_tensor("pack_weight", "weight", weight, weight.dtype)
    if weight.dim() != 2:
        raise ShapeError(f"pack_weight: weight must be [N, K], not {tuple(weight.shape)}")
    if not weight.is_cpu:
        raise DTypeError(
            "pack_weight: only the CPU engine reads packed weights; give it the tensor"
        )
    return engine.pack(weight.detach())


def forward(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    tree: Tree | str | None,
) -> torch.Tensor:
    """`samebits.ops.linear` with a packed weight.

    Raises:
        UncoveredError: a tensor needs a gradient, or the portable contracts are in force; otherwise
            as `samebits.ops.linear`.
    """
    if family.portable():
        raise UncoveredError(
            "linear", f"a packed weight has the tree {_TREE}, which is not portable",
            remedy="Give the weight itself",
        )  # fmt: skip
    dtype = weight.dtype
    if (  # the usual call
        x.dtype is not dtype
        or not x.is_cpu
        or x.layout is not torch.strided
        or x.dim() == 0
        or x.shape[-1] != weight.k
        or bias is not None
        or out_dtype is not None
        or tree is not None
    ):
        _check(x, weight, bias, out_dtype, tree)
    if needs_graph(x, x, bias):
        raise UncoveredError(
            "linear", "a packed weight has no backward", remedy="Train with the weight itself"
        )
    return engine.linear(x, weight, bias, out_dtype)


def _check(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    tree: Tree | str | None,
) -> None:
    check_tensor("linear", "x", x, weight.dtype)
    if not x.is_cpu:
        raise DTypeError(f"linear: a packed weight is for the CPU engine, but x is on {x.device}")
    if x.dim() == 0 or x.shape[-1] != weight.k:
        raise ShapeError(
            f"linear: the last axis of x {tuple(x.shape)} must have the size K of "
            f"weight [N, K] = {(weight.n, weight.k)}"
        )
    if bias is not None:
        check_tensor("linear", "bias", bias, weight.dtype)
        check_device("linear", x, bias=bias)
        if bias.shape != (weight.n,):
            raise ShapeError(f"linear: bias must be [N] = [{weight.n}], not {tuple(bias.shape)}")
    if out_dtype is not None and out_dtype not in (weight.dtype, torch.float32):
        raise DTypeError(
            f"linear: out_dtype must be {weight.dtype} or torch.float32, not {out_dtype}"
        )
    if tree is not None and str(tree) != _TREE:
        raise ContractError(f"linear: on a CPU the tree is {_TREE}, not {tree}")
