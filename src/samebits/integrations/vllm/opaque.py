"""Calls into samebits.ops that torch.compile records whole.

A tracer cannot look into kernels that are launched from addresses, and must not: Inductor would
make loops of its own. While a graph is traced each function here stands for one operation
``torch.ops.vllm.samebits_*``; otherwise it calls samebits.ops directly.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits import ops
from samebits.ops.linear.packed import PackedWeight

_PREFIX = "samebits_"


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tree: str, wide: bool
) -> torch.Tensor:
    out_dtype = torch.float32 if wide else None
    return ops.linear(x, weight, bias, out_dtype=out_dtype, tree=tree or None)


def _linear_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tree: str, wide: bool
) -> torch.Tensor:
    shape = (*x.shape[:-1], weight.shape[0])
    return x.new_empty(shape, dtype=torch.float32 if wide else x.dtype)


def _linear_packed(
    x: torch.Tensor, words: torch.Tensor, ranges: torch.Tensor, n: int, bias: torch.Tensor | None
) -> torch.Tensor:
    return ops.linear(x, PackedWeight(n, x.shape[-1], x.dtype, words, ranges), bias)


def _linear_packed_fake(
    x: torch.Tensor, words: torch.Tensor, ranges: torch.Tensor, n: int, bias: torch.Tensor | None
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return ops.rms_norm(x, x.shape[-1:], weight, eps)


def _rms_norm_fake(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return x.new_empty(x.shape)


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return ops.rms_norm(x, x.shape[-1:], weight, eps, residual=residual)


def _add_rms_norm_fake(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    if activation == "silu":
        return ops.silu_mul(gate, up)
    return ops.gelu_mul(gate, up, "tanh" if activation == "gelu_tanh" else "none")


def _gated_fake(x: torch.Tensor, activation: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _rotary(
    x: torch.Tensor, cache: torch.Tensor, positions: torch.Tensor, head: int, interleaved: bool
) -> torch.Tensor:
    cos, sin = cache.chunk(2, -1)
    turned, heads = cache.shape[1], x.view(*positions.shape, -1, head)
    if turned == head:
        return ops.rotary(heads, cos, sin, interleaved, positions=positions).view(x.shape)
    front = ops.rotary(heads[..., :turned], cos, sin, interleaved, positions=positions)
    return torch.cat((front, heads[..., turned:]), -1).view(x.shape)


def _rotary_fake(
    x: torch.Tensor, cache: torch.Tensor, positions: torch.Tensor, head: int, interleaved: bool
) -> torch.Tensor:
    return x.new_empty(x.shape)


def _rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cache: torch.Tensor,
    positions: torch.Tensor,
    head: int,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cache.chunk(2, -1)
    turned = ops.rotary_qk(
        q.view(len(q), -1, head), k.view(len(k), -1, head), cos, sin, positions,
        q_weight=q_weight, k_weight=k_weight, eps=eps,
    )  # fmt: skip
    return turned[0].flatten(1), turned[1].flatten(1)


def _rotary_qk_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    cache: torch.Tensor,
    positions: torch.Tensor,
    head: int,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _moe(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    activation: str,
    several: bool,
) -> torch.Tensor:
    group: Any = "alone"
    if several:
        from vllm.distributed.parallel_state import get_ep_group

        group = get_ep_group().device_group
    return ops.expert_parallel_moe(
        x, w_gate_up, w_down, ids, weights,
        activation=activation, group=group,  # type: ignore[arg-type]
    )  # fmt: skip


def _moe_fake(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    activation: str,
    several: bool,
) -> torch.Tensor:
    return x.new_empty(x.shape)


_OPS: dict[str, tuple[Any, Any]] = {
    "linear": (_linear, _linear_fake),
    "linear_packed": (_linear_packed, _linear_packed_fake),
    "rms_norm": (_rms_norm, _rms_norm_fake),
    "add_rms_norm": (_add_rms_norm, _add_rms_norm_fake),
    "gated": (_gated, _gated_fake),
    "rotary": (_rotary, _rotary_fake),
    "rotary_qk": (_rotary_qk, _rotary_qk_fake),
    "moe": (_moe, _moe_fake),
}


def define() -> None:
    """Registers the operations, once in a process."""
    from vllm.utils.torch_utils import direct_register_custom_op

    for name, (run, fake) in _OPS.items():
        if not hasattr(torch.ops.vllm, _PREFIX + name):
            direct_register_custom_op(_PREFIX + name, run, fake_impl=fake)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tree: str = "",
    wide: bool = False,
) -> torch.Tensor:
    """`ops.linear`; an empty `tree` is the contract's own; `wide` leaves the result in fp32."""
    if torch.compiler.is_compiling():
        result: torch.Tensor = torch.ops.vllm.samebits_linear(x, weight, bias, tree, wide)
        return result
    return _linear(x, weight, bias, tree, wide)


def linear_packed(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """`ops.linear` with a packed weight."""
    if torch.compiler.is_compiling():
        result: torch.Tensor = torch.ops.vllm.samebits_linear_packed(
            x, weight.words, weight.ranges, weight.n, bias
        )
        return result
    return ops.linear(x, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """`ops.rms_norm` over the last axis."""
    if torch.compiler.is_compiling():
        result: torch.Tensor = torch.ops.vllm.samebits_rms_norm(x, weight, eps)
        return result
    return _rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + residual``, and that sum."""
    if torch.compiler.is_compiling():
        result: tuple[torch.Tensor, torch.Tensor] = torch.ops.vllm.samebits_add_rms_norm(
            x, residual, weight, eps
        )
        return result
    return _add_rms_norm(x, residual, weight, eps)


def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """The first half of the last axis through an activation, times the second half."""
    if torch.compiler.is_compiling():
        result: torch.Tensor = torch.ops.vllm.samebits_gated(x, activation)
        return result
    return _gated(x, activation)


def rotary(
    x: torch.Tensor, cache: torch.Tensor, positions: torch.Tensor, head: int, interleaved: bool
) -> torch.Tensor:
    """Heads of x [T, heads * head] turned by rows of cache [P, turned], cosines then sines."""
    if torch.compiler.is_compiling():
        result: torch.Tensor = torch.ops.vllm.samebits_rotary(
            x, cache, positions, head, interleaved
        )
        return result
    return _rotary(x, cache, positions, head, interleaved)


def rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cache: torch.Tensor,
    positions: torch.Tensor,
    head: int,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ops.rotary_qk` of q [T, Hq * head] and k [T, Hk * head], over a cache [P, head]."""
    if torch.compiler.is_compiling():
        result: tuple[torch.Tensor, torch.Tensor] = torch.ops.vllm.samebits_rotary_qk(
            q, k, cache, positions, head, q_weight, k_weight, eps
        )
        return result
    return _rotary_qk(q, k, cache, positions, head, q_weight, k_weight, eps)


def moe(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    activation: str,
    several: bool,
) -> torch.Tensor:
    """`ops.moe`; `several`: of experts that lie on all ranks, `ops.expert_parallel_moe`."""
    if torch.compiler.is_compiling():
        result: torch.Tensor = torch.ops.vllm.samebits_moe(
            x, w_gate_up, w_down, ids, weights, activation, several
        )
        return result
    return _moe(x, w_gate_up, w_down, ids, weights, activation, several)
