"""A mixture whose experts lie on the ranks of a group."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from samebits.ops.checks import dense
from samebits.ops.moe import Activation, check, moe, moe_combine
from samebits.ops.parallel.join import EXCHANGE_FROM
from samebits.ops.parallel.ranks import Group, Ranks, calls, ranks_of


def expert_parallel_moe(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    activation: Activation = "silu",
    group: Group = None,
) -> torch.Tensor:
    """`moe` with the weights of all experts, which lie on the ranks of a group.

    A token's slots are computed whole, each on the rank that has its expert, and travel as they
    are; `moe_combine` adds them in the order of slots, which is the router's and knows no ranks.

    Args:
        x: [T, H], the same on every rank, like `topk_ids` and `topk_weights`.
        w_gate_up: [E / ranks, 2 I, H]: this rank's experts, the ranks in order.
        w_down: [E / ranks, H, I].
        topk_ids: [T, k] int32 or int64 in 0 .. E - 1; negative: a slot without an expert.
        topk_weights: [T, k] float32 or dtype of x.
        activation: "silu", "gelu" or "gelu_tanh".
        group: the ranks; None: the default group, if there is one; "alone": this process.

    Returns:
        [T, H], the same on every rank.

    Raises:
        ShapeError, DTypeError, IndexError: as `moe`.
        RankError: the ranks do not agree, or one of them failed.
    """
    dense("expert_parallel_moe", x, w_gate_up, w_down, topk_ids, topk_weights)
    ranks = ranks_of("expert_parallel_moe", group)
    if ranks is None:
        return moe(x, w_gate_up, w_down, topk_ids, topk_weights, activation=activation)
    x, w_gate_up, w_down, topk_weights = check(
        "expert_parallel_moe", x, w_gate_up, w_down, topk_ids, topk_weights, activation, ranks.size
    )
    own = w_down.shape[0]
    local = topk_ids - ranks.index * own
    # Too large for every rank stays too large; another rank's is a slot without an expert.
    elsewhere = (local < 0) | ((local >= own) & (topk_ids < own * ranks.size))
    y = _slots(x, w_gate_up, w_down, local.masked_fill(elsewhere, -1), activation)
    call = calls(
        "expert_parallel_moe", x, topk_ids, x=x, experts=w_down, activation=activation,
        topk_ids=topk_ids,
    )  # fmt: skip
    owner = torch.div(topk_ids, max(own, 1), rounding_mode="floor").clamp(0, ranks.size - 1)
    if x.shape[0] < EXCHANGE_FROM:
        return moe_combine(_chosen(ranks.gather(y, call), owner), topk_weights)
    ranks.alike(call)
    return _exchanged(ranks, y, owner, topk_weights)


def _exchanged(
    ranks: Ranks, y: torch.Tensor, owner: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Every rank combines its share of the tokens, and all gather them."""
    count, k, hidden = y.shape
    share = -(-count // ranks.size)
    short = share * ranks.size - count
    mine = slice(ranks.index * share, (ranks.index + 1) * share)
    y = F.pad(y, (0, 0, 0, 0, 0, short)).view(ranks.size, share, k, hidden)
    chosen = _chosen(ranks.exchange(y), F.pad(owner, (0, 0, 0, short))[mine])
    combined = moe_combine(chosen, F.pad(weights, (0, 0, 0, short))[mine])
    return ranks.gather(combined).flatten(0, 1)[:count]


def _slots(
    x: torch.Tensor,
    w_gate_up: torch.Tensor,
    w_down: torch.Tensor,
    ids: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """[T, k, H]: what this rank's experts say, +0 elsewhere."""
    if x.is_cuda:
        from samebits.ops.moe import cuda

        return cuda.slots(x, w_gate_up, w_down, ids, activation)
    from samebits.ops.moe import cpu

    return cpu.slots(x, w_gate_up, w_down, ids, activation)


def _chosen(y: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """[T, k, H] from [ranks, T, k, H]: every slot from the rank that has its expert."""
    tokens, k = owner.shape
    token = torch.arange(tokens, device=y.device)[:, None]
    return y[owner.to(torch.int64), token, torch.arange(k, device=y.device)]
