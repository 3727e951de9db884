"""Mixture of experts: router, grouped product, fused expert layer, combine.

A token's result depends on its own row, its own experts and their weights: not on which other
tokens chose an expert, how many did, or where in the batch it stands. Ties in the router go to the
lowest expert. Slots of a token are added in their order, without atomics. On a GPU nothing waits
for the host, so everything can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from samebits.contract import Lanes, Tree
from samebits.errors import ContractError, DTypeError, SamebitsError, ShapeError
from samebits.ops.moe import cpu

Scoring = Literal["softmax", "sigmoid"]
#: What the gate's half goes through before it multiplies the other half.
Activation = Literal["silu", "gelu", "gelu_tanh"]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP8 = (torch.float8_e4m3fn,)
_IDS = (torch.int32, torch.int64)


def router_topk(
    logits: torch.Tensor,
    k: int,
    *,
    renormalize: bool = True,
    scoring: Scoring = "softmax",
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best experts of every token, best first, ties to the lowest expert.

    Contract, in fp32: scores are ``exp(x - max)`` over their sum (an exact one, of terms cut to 40
    bits after the point), or ``sigmoid(x)``. Experts are ranked by their logits (softmax without a
    bias) or by their score plus the bias; a NaN ranks first, as in ``torch.sort``. With
    `renormalize` a chosen score is divided by the sum of the chosen ones, added in their order. The
    same bits on every device.

    Args:
        logits: [..., E] float32, bfloat16 or float16.
        k: 1 .. E.
        scoring: "softmax" or "sigmoid".
        bias: [E] or None: added to scores for the ranking only.

    Returns:
        weights [..., k] float32, ids [..., k] int32.

    Raises:
        ShapeError: k out of range, shapes that do not fit.
        DTypeError: other dtypes or devices.
    """
    logits, bias = _plain("router_topk", FLOATS, logits=logits, bias=bias)
    if logits.dim() < 1 or not 1 <= k <= logits.shape[-1]:
        raise ShapeError(f"router_topk: k={k} is out of range for logits {tuple(logits.shape)}")
    experts = logits.shape[-1]
    if bias is not None and bias.shape != (experts,):
        raise ShapeError(f"router_topk: bias must be [{experts}], not {tuple(bias.shape)}")
    if scoring not in ("softmax", "sigmoid"):
        raise ShapeError(f"router_topk: scoring={scoring!r} is not 'softmax' or 'sigmoid'")
    rows = logits.reshape(-1, experts)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    softmax = scoring == "softmax"
    if bias is not None:
        bias = bias.contiguous()
    if logits.is_cuda:
        from samebits.ops.moe import cuda

        weights, ids = cuda.router_topk(rows, k, renormalize, softmax, bias)
    else:
        weights, ids = cpu.router_topk(rows, k, renormalize, softmax, bias)
    return weights.view(*logits.shape[:-1], k), ids.view(*logits.shape[:-1], k)


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor | None = None,
    *,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    tree: Tree | str | None = None,
) -> torch.Tensor:
    """``x[i] @ weight[ids[i]].T``: every row with the weight that it picks.

    The contract is that of `linear` with one expert's weight [N, K] and one tree for all sizes
    (``chain`` on a GPU): a row has the bits of ``linear(x[i], weight[ids[i]], tree="chain")``.

    Args:
        x: [M, K] float32, bfloat16 or float16; float8_e4m3fn on a GPU.
        weight: [E, N, K], dtype of x, any strides (fp8: K contiguous).
        ids: [M] int32 or int64: the expert of each row, or [M, k] for k results of each row. A
            negative id is a slot without an expert and gives zeros. On a GPU, where nobody can wait
            for a check, an id of E or more gives NaN.
        offsets: [E + 1] instead of `ids`, from 0 upwards: expert e has rows offsets[e] ..
            offsets[e + 1] - 1; rows from offsets[E] on give zeros.
        bias: [E, N], dtype of x (of the result for fp8), or None.
        out_dtype: of the result: dtype of x (bfloat16 for fp8), or float32 for the accumulators.
        x_scale, w_scale: float32 scales of fp8 operands: [M, 1] and [E, N, 1], one a row, or
            [M, ceil(K / 128)] and [E, ceil(N / 128), ceil(K / 128)], one a block.
        tree: on a GPU, another tree than the chain, e.g. "balanced(8)" for weights that
            tensor-parallel ranks share.

    Returns:
        [M, N], or [M, k, N] for two-dimensional `ids`.

    Raises:
        ShapeError, DTypeError: operands do not fit.
        IndexError: an id is too large (CPU).
        ContractError: no contract has this tree.
    """
    kinds = (*FLOATS, *FP8) if x.is_cuda else FLOATS
    x, weight = _plain("grouped_linear", kinds, x=x, weight=weight)
    bias, x_scale, w_scale = _plain(
        "grouped_linear", FLOATS, like=x, bias=bias, x_scale=x_scale, w_scale=w_scale
    )
    if x.dtype is not weight.dtype:
        raise DTypeError(f"grouped_linear: x is {x.dtype} but weight is {weight.dtype}")
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[2]:
        raise ShapeError(
            f"grouped_linear: x {tuple(x.shape)} and weight {tuple(weight.shape)} must be [M, K] "
            "and [E, N, K]"
        )
    if (ids is None) == (offsets is None):
        raise ShapeError("grouped_linear: give either ids or offsets")
    _check_ids("grouped_linear", x, ids, offsets, weight.shape[0])
    if bias is not None and bias.shape != weight.shape[:2]:
        raise ShapeError(
            f"grouped_linear: bias must be {list(weight.shape[:2])}, not {tuple(bias.shape)}"
        )
    natural = torch.bfloat16 if x.dtype in FP8 else x.dtype
    out_dtype = natural if out_dtype is None else out_dtype
    if out_dtype not in (natural, torch.float32):
        raise DTypeError(
            f"grouped_linear: out_dtype is {natural} or torch.float32, not {out_dtype}"
        )
    if x.is_cuda:
        from samebits.ops.moe import cuda

        return cuda.grouped_linear(x, weight, ids, offsets, bias, out_dtype, x_scale, w_scale, tree)
    if tree is not None and str(tree) != str(Lanes(16)):
        raise ContractError(f"grouped_linear: on a CPU the tree is {Lanes(16)}, not {tree}")
    if x_scale is not None or w_scale is not None:
        raise DTypeError("grouped_linear: scales are for fp8 operands, on a GPU")
    return cpu.grouped_linear(x, weight, ids, offsets, bias, out_dtype)


def moe(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    activation: Activation = "silu",
) -> torch.Tensor:
    """The experts of a mixture: gated MLPs of the chosen experts, weighted and added.

    The bits are those of `grouped_linear`, ``silu_mul`` (or ``gelu_mul``), `grouped_linear` and
    `moe_combine`, one after another; on a GPU the first two are one kernel.

    Args:
        x: [T, H] float32, bfloat16 or float16.
        w_gate_up: [E, 2 I, H]: rows 0 .. I - 1 are the gate.
        w_down: [E, H, I].
        topk_ids: [T, k] int32 or int64; a negative id is a slot without an expert.
        topk_weights: [T, k] float32 or dtype of x.
        activation: "silu", "gelu" or "gelu_tanh".

    Returns:
        [T, H].

    Raises:
        ShapeError, DTypeError: operands do not fit.
    """
    x, w_gate_up, w_down, topk_weights = check(
        "moe", x, w_gate_up, w_down, topk_ids, topk_weights, activation
    )
    if x.is_cuda:
        from samebits.ops.moe import cuda

        return cuda.moe(x, w_gate_up, w_down, topk_ids, topk_weights, activation)
    return cpu.moe(x, w_gate_up, w_down, topk_ids, topk_weights, activation)


def check(
    op: str,
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    activation: str,
    ranks: int = 1,
) -> tuple[Any, ...]:
    """Raises the error that `moe` documents, if there is one; weights are of E / ranks experts.

    Returns:
        x, w_gate_up, w_down and topk_weights, with negations done that torch had put off.
    """
    x, w_gate_up, w_down, topk_weights = _plain(
        op, FLOATS, x=x, w_gate_up=w_gate_up, w_down=w_down, topk_weights=topk_weights
    )
    if not x.dtype is w_gate_up.dtype is w_down.dtype:
        raise DTypeError(f"{op}: x is {x.dtype}, weights {w_gate_up.dtype} and {w_down.dtype}")
    if x.dim() != 2 or w_gate_up.dim() != 3 or w_down.dim() != 3:
        raise ShapeError(f"{op}: x must be [T, H], w_gate_up [E, 2 I, H] and w_down [E, H, I]")
    experts, hidden, inner = w_down.shape
    if x.shape[1] != hidden or w_gate_up.shape != (experts, 2 * inner, hidden):
        raise ShapeError(
            f"{op}: x {tuple(x.shape)}, w_gate_up {tuple(w_gate_up.shape)} and w_down "
            f"{tuple(w_down.shape)} must be [T, H], [E, 2 I, H] and [E, H, I]"
        )
    if topk_ids.dim() != 2 or topk_ids.shape != topk_weights.shape:
        raise ShapeError(
            f"{op}: topk_ids {tuple(topk_ids.shape)} and topk_weights "
            f"{tuple(topk_weights.shape)} must be [T, k]"
        )
    _check_ids(op, x, topk_ids, None, experts * ranks)
    if activation not in ("silu", "gelu", "gelu_tanh"):
        raise ShapeError(f"{op}: activation={activation!r} is not silu, gelu or gelu_tanh")
    return x, w_gate_up, w_down, topk_weights


def moe_combine(y: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
    """``sum_j topk_weights[t, j] * y[t, j]`` in the order of the slots j.

    Contract: from +0, ``acc = acc + w * y`` in fp32, product and sum rounded each; one rounding to
    the dtype of y at the end. The same bits on every device.

    Args:
        y: [T, k, H] float32, bfloat16 or float16.
        topk_weights: [T, k] float32 or dtype of y.

    Returns:
        [T, H].
    """
    y, topk_weights = _plain("moe_combine", FLOATS, y=y, topk_weights=topk_weights)
    if y.dim() != 3 or y.shape[:2] != topk_weights.shape:
        raise ShapeError(
            f"moe_combine: y {tuple(y.shape)} must be [T, k, H] and topk_weights "
            f"{tuple(topk_weights.shape)} [T, k]"
        )
    if y.is_cuda:
        from samebits.ops.moe import cuda

        return cuda.combine(y.flatten(0, 1), topk_weights)
    return cpu.combine(y, topk_weights)


def _plain(
    op: str,
    dtypes: tuple[torch.dtype, ...],
    like: torch.Tensor | None = None,
    **operands: torch.Tensor | None,
) -> tuple[Any, ...]:
    """The operands, with negations done that torch had put off.

    Raises:
        DTypeError, SamebitsError: unless all are dense, on one device (that of `like`), of these
            dtypes, without gradients.
    """
    given = {name: x for name, x in operands.items() if x is not None}
    home = next(iter(given.values()), like) if like is None else like
    for name, x in given.items():
        if x.dtype not in dtypes or x.layout is not torch.strided:
            kinds = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
            raise DTypeError(f"{op}: {name} is {x.layout} {x.dtype}; it must be dense: {kinds}")
        if (home is not None and x.device != home.device) or x.device.type not in ("cpu", "cuda"):
            raise DTypeError(
                f"{op}: {name} is on {x.device}; operands are on one CPU or CUDA device"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise SamebitsError(f"samebits.ops.{op} has no backward; use torch.no_grad()")
    return tuple(x.resolve_neg() if x is not None and x.is_neg() else x for x in operands.values())


def _check_ids(
    op: str,
    x: torch.Tensor,
    ids: torch.Tensor | None,
    offsets: torch.Tensor | None,
    experts: int,
) -> None:
    index = ids if ids is not None else offsets
    assert index is not None
    if index.dtype not in _IDS or index.device != x.device:
        raise DTypeError(
            f"{op}: ids and offsets are int32 or int64 on {x.device}, not {index.dtype} on "
            f"{index.device}"
        )
    if ids is not None and (ids.dim() not in (1, 2) or ids.shape[0] != x.shape[0]):
        raise ShapeError(f"{op}: ids {tuple(ids.shape)} must be [M] or [M, k], M = {x.shape[0]}")
    if offsets is not None and offsets.shape != (experts + 1,):
        raise ShapeError(f"{op}: offsets must be [{experts + 1}], not {tuple(offsets.shape)}")
    if ids is not None and ids.is_cpu and ids.numel() and int(ids.max()) >= experts:
        raise IndexError(f"{op}: expert {int(ids.max())} is out of range for {experts} experts")
