"""Mixture-of-experts layers, through transformers' ExpertsInterface."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations import moe as stock

from samebits.ops import grouped_linear, moe, moe_combine
from samebits.ops.attention.autograd import needs_grad

#: Activation classes that `samebits.ops.moe` has fused.
_FUSED = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
}


def experts_forward(
    module: torch.nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The experts that each token chose, weighted and added in the order of its choices.

    Args:
        module: an experts class of transformers, weights [E, out, in] or transposed.
        hidden_states: [T, H].
        top_k_index, top_k_weights: [T, k].

    Returns:
        [T, H]. With gradients where they are wanted: the forward bits are the same.
    """
    parameters = tuple(module.parameters())
    if needs_grad(hidden_states, top_k_weights, *parameters):
        out: torch.Tensor = _Experts.apply(  # type: ignore[no-untyped-call]
            module, top_k_index, hidden_states, top_k_weights, *parameters
        )
        return out
    return _compute(module, hidden_states, top_k_index, top_k_weights)


def _compute(m: Any, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    if weights.dtype is not torch.float32:
        weights = weights.to(x.dtype)
    name = _FUSED.get(type(getattr(m, "act_fn", None)).__name__)
    own_gate = type(m)._apply_gate is not stock._default_apply_gate
    if m.has_gate and not (own_gate or m.has_bias or m.is_transposed) and name:
        fused: Any = name
        return moe(x, m.gate_up_proj, m.down_proj, index, weights, activation=fused)
    first = "gate_up_proj" if m.has_gate else "up_proj"
    opened = _linear(m, first, x, index).flatten(0, 1)
    opened = m._apply_gate(opened) if m.has_gate else m.act_fn(opened)
    y = _linear(m, "down_proj", opened.contiguous(), index.reshape(-1))
    return moe_combine(y.view(*index.shape, -1), weights)


def _linear(m: Any, name: str, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    weight = getattr(m, name)
    weight = weight.transpose(1, 2) if m.is_transposed else weight
    return grouped_linear(x, weight, index, bias=getattr(m, f"{name}_bias") if m.has_bias else None)


class _Experts(torch.autograd.Function):
    """Forward as without gradients; backward through the model's own loop over experts."""

    @staticmethod
    def forward(
        ctx: Any, module: Any, index: torch.Tensor, x: torch.Tensor, weights: torch.Tensor,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        ctx.module, ctx.parameters = module, parameters
        ctx.save_for_backward(index, x, weights)
        return _compute(module, x, index, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        index, x, weights = ctx.saved_tensors
        inputs = [x.detach().requires_grad_(), weights.detach().requires_grad_(), *ctx.parameters]
        with torch.enable_grad():
            loop = type(ctx.module).forward.__wrapped__
            out = loop(ctx.module, inputs[0], index, inputs[1])
        wanted = [t for t, need in zip(inputs, ctx.needs_input_grad[2:], strict=True) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, allow_unused=True))
        return None, None, *(next(found) if need else None for need in ctx.needs_input_grad[2:])
