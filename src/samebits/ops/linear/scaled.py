"""``scaled_linear``: y = x @ weight.T of fp8 operands, scaled by rows or by blocks."""

from __future__ import annotations

import math

import torch

from samebits.contract import Tree
from samebits.contract.operands import SCALE_BLOCK
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.linear.operands import check_device, cuda_products

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_RESULTS = (torch.bfloat16, torch.float16, torch.float32)


def scaled_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    tree: Tree | str | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias`` for fp8 operands with fp32 scales; one rounding at the end.

    The shapes of the scales say what they belong to. Rows: the sum over k, one chain on the tensor
    core, is multiplied by x_scale * weight_scale. Blocks of 128 along k (and 128 x 128 of the
    weight): each block's chain is added with its own factor, in ascending order. Element [m, n]
    depends on row m of x and x_scale only; a scale taken from a whole batch would not be invariant,
    so a scale of one number for all of x must be a constant, expanded by the caller.

    Args:
        x: [..., K], float8_e4m3fn or float8_e5m2.
        weight: [N, K], dtype of x.
        x_scale: fp32 [..., 1] for rows, or [..., ceil(K / 128)] for blocks.
        weight_scale: fp32 [N, 1], or [ceil(N / 128), ceil(K / 128)].
        bias: [N] of `out_dtype` or fp32, or None.
        out_dtype: bfloat16, float16 or float32.
        tree: another tree than the contract's own; blocks have none.

    Returns:
        [..., N] of `out_dtype`.

    Raises:
        ShapeError: the shapes do not fit.
        DTypeError: other dtypes or devices.
        SamebitsError: a gradient is required: there is none through fp8.
    """
    for name, t, kinds in (
        ("x", x, _FP8), ("weight", weight, (x.dtype,)), ("x_scale", x_scale, (torch.float32,)),
        ("weight_scale", weight_scale, (torch.float32,)),
        ("bias", bias, (out_dtype, torch.float32)),
    ):  # fmt: skip
        if t is not None and (t.dtype not in kinds or t.layout is not torch.strided):
            raise DTypeError(f"scaled_linear: {name} must be dense {kinds}, not {t.dtype}")
    if out_dtype not in _RESULTS:
        raise DTypeError(f"scaled_linear: out_dtype must be one of {_RESULTS}, not {out_dtype}")
    if not x.is_cuda:
        raise DTypeError(f"scaled_linear: x is on {x.device}; fp8 has contracts on CUDA only")
    check_device(
        "scaled_linear", x, weight=weight, x_scale=x_scale, weight_scale=weight_scale, bias=bias
    )
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x_scale, weight_scale, bias)
    ):
        raise SamebitsError("scaled_linear has no backward: use torch.no_grad()")
    x_scale, weight_scale = x_scale.resolve_neg(), weight_scale.resolve_neg()
    bias = None if bias is None else bias.resolve_neg()
    scaling = scaling_of(x, weight, x_scale, weight_scale, bias)
    lead, n, k = x.shape[:-1], *weight.shape
    m = math.prod(lead)
    y: torch.Tensor = cuda_products().scaled(
        x.reshape(m, k), weight, x_scale.reshape(m, x_scale.shape[-1]), weight_scale, bias,
        out_dtype, scaling, tree,
    )  # fmt: skip
    return y.view(*lead, n)


def scaling_of(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
) -> str:
    """ "row" or "block": what the shapes of the scales say.

    Raises:
        ShapeError: neither, or operands that do not fit.
    """
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"scaled_linear: x {tuple(x.shape)}, weight {tuple(weight.shape)}")
    n, k = weight.shape
    if bias is not None and bias.shape != (n,):
        raise ShapeError(f"scaled_linear: bias must be [N] = [{n}], not {tuple(bias.shape)}")
    blocks = -(-k // SCALE_BLOCK)
    for scaling, left, right in (
        ("row", (*x.shape[:-1], 1), (n, 1)),
        ("block", (*x.shape[:-1], blocks), (-(-n // SCALE_BLOCK), blocks)),
    ):
        if x_scale.shape == left and weight_scale.shape == right:
            return scaling
    raise ShapeError(
        f"scaled_linear: x_scale {tuple(x_scale.shape)} and weight_scale "
        f"{tuple(weight_scale.shape)} are neither [..., 1] and [{n}, 1] nor [..., {blocks}] and "
        f"[{-(-n // SCALE_BLOCK)}, {blocks}]"
    )
