"""Mixture of experts on the Triton engine. Operands are validated by the caller."""

from __future__ import annotations

import torch

from samebits.contract import ContractKey, LinearContract, Tree
from samebits.contract.operands import dtype_name
from samebits.engines.triton import contract_class
from samebits.engines.triton.grouped import combine as combining
from samebits.engines.triton.grouped import router, routing, run
from samebits.engines.triton.grouped.schedule import GroupedSchedule
from samebits.errors import DTypeError, ShapeError
from samebits.plan.contracts import contract_for
from samebits.plan.planner import row_for


def router_topk(
    logits: torch.Tensor, k: int, renormalize: bool, softmax: bool, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return router.router_topk(logits, k, renormalize=renormalize, softmax=softmax, bias=bias)


def _plan(
    x: torch.Tensor,
    weight: torch.Tensor,
    slots: int,
    out_dtype: torch.dtype,
    scaling: str | None = None,
    tree: Tree | str | None = None,
) -> tuple[LinearContract, GroupedSchedule]:
    """The contract of one expert's weight, and the schedule for so many slots."""
    experts, n, k = weight.shape
    key = ContractKey(
        op="grouped_linear", dtype=dtype_name(x.dtype), out_dtype=dtype_name(out_dtype),
        device=contract_class(x.device.index), n=n, k=k, scaling=scaling,
        tree=None if tree is None else str(tree),
    )  # fmt: skip
    contract = contract_for(key)
    schedule = row_for(key, experts=experts).at(max(1, slots))
    assert isinstance(contract, LinearContract) and isinstance(schedule, GroupedSchedule)
    return contract, schedule


def grouped_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor | None,
    offsets: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    x_scale: torch.Tensor | None,
    w_scale: torch.Tensor | None,
    tree: Tree | str | None = None,
) -> torch.Tensor:
    experts, n, _ = weight.shape
    scaling = _scaling(x, weight, x_scale, w_scale)
    x = x if x.stride(1) == 1 else x.contiguous()
    if bias is not None and bias.stride(1) != 1:
        bias = bias.contiguous()
    if ids is None:
        assert offsets is not None
        groups = routing.contiguous_groups(offsets, x.shape[0])
        slots_per_row, shape = None, x.shape[:1]
    else:
        groups = routing.group_slots(ids.reshape(-1).contiguous(), experts)
        slots_per_row, shape = (ids.shape[1] if ids.dim() == 2 else 1), ids.shape
    y = run.grouped_linear(
        *_plan(x, weight, shape.numel(), out_dtype, scaling, tree), x, weight, groups,
        out_dtype=out_dtype, bias=bias, x_scale=x_scale, w_scale=w_scale,
        slots_per_row=slots_per_row, scatter=ids is not None,
    )  # fmt: skip
    return y.view(*shape, n)


def _scaling(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor | None,
    w_scale: torch.Tensor | None,
) -> str | None:
    """How the operands are scaled, as a contract key says it.

    Raises:
        DTypeError, ShapeError: scales that do not fit the operands.
    """
    if x.element_size() > 1:
        if x_scale is not None or w_scale is not None:
            raise DTypeError(f"grouped_linear: scales are for fp8 operands, not for {x.dtype}")
        return None
    if weight.stride(2) != 1:
        raise DTypeError("grouped_linear: K must be contiguous in fp8 weights")
    if x_scale is None and w_scale is None:
        return "none"
    if x_scale is None or w_scale is None:
        raise ShapeError("grouped_linear: give both x_scale and w_scale")
    (experts, n, k), rows = weight.shape, x.shape[0]
    shapes = (tuple(x_scale.shape), tuple(w_scale.shape))
    blocks = -(-k // 128)
    if x_scale.dtype is not torch.float32 or w_scale.dtype is not torch.float32:
        raise DTypeError("grouped_linear: scales are float32")
    if x_scale.stride(-1) != 1 or w_scale.stride(-1) != 1 or not w_scale.is_contiguous():
        raise DTypeError("grouped_linear: scales must be contiguous")
    if shapes == ((rows, blocks), (experts, -(-n // 128), blocks)):
        return "block"
    if shapes == ((rows, 1), (experts, n, 1)):
        return "row"
    raise ShapeError(f"grouped_linear: scales {shapes} are neither of rows nor of blocks")


def moe(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    y = slots(x, w_gate_up, w_down, topk_ids, activation)
    return combine(y.flatten(0, 1), topk_weights)


def slots(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """[T, k, H]: what each chosen expert says, +0 for a slot without one."""
    x = x if x.stride(1) == 1 else x.contiguous()
    groups = routing.group_slots(topk_ids.reshape(-1).contiguous(), w_down.shape[0])
    top_k = topk_ids.shape[1]
    fused, count = activation == "silu", topk_ids.numel()
    opened = run.grouped_linear(
        *_plan(x, w_gate_up, count, x.dtype), x, w_gate_up, groups,
        out_dtype=x.dtype, slots_per_row=top_k, scatter=False, gated=fused,
    )  # fmt: skip
    if not fused:
        from samebits.ops.pointwise import gelu_mul

        gate, up = opened.chunk(2, dim=1)
        opened = gelu_mul(gate, up, "tanh" if activation == "gelu_tanh" else "none")
    y = run.grouped_linear(
        *_plan(opened, w_down, count, x.dtype), opened, w_down, groups, out_dtype=x.dtype
    )
    return y.view(*topk_ids.shape, w_down.shape[1])


def combine(y: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
    y = y if y.stride(1) == 1 else y.contiguous()
    return combining.combine(y, topk_weights.contiguous(), y.dtype)
