"""A vocabulary whose rows lie on the ranks of a group: the embedding, and the head's logprobs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from samebits.errors import DTypeError, ShapeError
from samebits.ops.checks import one_device
from samebits.ops.embedding import embedding
from samebits.ops.parallel.linear import part_of_columns, refuse_gradients, side_by_side
from samebits.ops.parallel.ranks import Group, Ranks, calls, ranks_of
from samebits.ops.softmax import token_logprob

#: Bytes of logits that a rank holds at a time, beside those of its own words.
_MOST_LOGITS = 1 << 29


def vocab_parallel_embedding(
    ids: torch.Tensor, weight: torch.Tensor, *, group: Group = None
) -> torch.Tensor:
    """``embedding(ids, whole weight)`` for a table whose rows lie on the ranks of a group.

    A row is moved from the rank that has it, byte for byte.

    Args:
        ids: [...] int32 or int64 in 0 .. V - 1, the same on every rank.
        weight: [V / ranks, dim], any dtype: this rank's words, the ranks in order.
        group: the ranks; None: the default group, if there is one; "alone": this process.

    Returns:
        [..., dim], the same on every rank.

    Raises:
        ShapeError, DTypeError: operands do not fit.
        IndexError: an id is out of range, on every rank. (A GPU is not waited for: there the row of
            such an id is +0.)
        RankError: the ranks do not agree, or one of them failed.
    """
    refuse_gradients("vocab_parallel_embedding", ids, weight)
    ranks = ranks_of("vocab_parallel_embedding", group)
    if ranks is None:
        return embedding(ids, weight)
    if weight.dim() != 2:
        raise ShapeError(f"vocab_parallel_embedding: weight must be [rows, dim], not "
                         f"{tuple(weight.shape)}")  # fmt: skip
    if ids.dtype not in (torch.int32, torch.int64) or ids.device != weight.device:
        raise DTypeError(
            f"vocab_parallel_embedding: ids are int32 or int64 on {weight.device}, not {ids.dtype} "
            f"on {ids.device}"
        )
    own = weight.shape[0]
    if ids.is_cpu and ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= own * ranks.size:
            raise IndexError(
                f"vocab_parallel_embedding: id {low if low < 0 else high} is outside "
                f"[0, {own * ranks.size})"
            )
    local = ids - ranks.index * own
    here = (local >= 0) & (local < own)
    rows = (
        embedding(local.where(here, 0), weight)
        if own
        else weight.new_zeros(*ids.shape, weight.shape[1])
    )
    ranks.alike(calls("vocab_parallel_embedding", weight, ids, ids=ids, weight=weight))
    rows.view(torch.uint8).masked_fill_(~here[..., None], 0)  # not every dtype can be filled
    return ranks.unite(rows)


def vocab_parallel_logprobs(
    x: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    *,
    group: Group = None,
) -> torch.Tensor:
    """``token_logprob(linear(x, whole weight), ids)`` in fp32, for a head cut by its words.

    Logits are rounded to the dtype of x first, as a head gives them. Rows are shared among the
    ranks: each gets the logits of its rows from all of them, and sums them as one rank would, so
    the bits are the same for every number of ranks and no rank holds all logits.

    Args:
        x: [..., K], the same on every rank.
        weight: [V / ranks, K], dtype of x: this rank's words, the ranks in order.
        ids: [...] integers in 0 .. V - 1, the same on every rank.
        group: the ranks; None: the default group, if there is one; "alone": this process.

    Returns:
        [...] fp32, the same on every rank.

    Raises:
        ShapeError: shapes do not fit; an id is out of range (a GPU is not waited for: there it
            gives NaN).
        DTypeError, ContractError: as `linear` and `token_logprob`.
        RankError: the ranks do not agree, or one of them failed.
    """
    refuse_gradients("vocab_parallel_logprobs", x, weight, ids)
    one_device("vocab_parallel_logprobs", x, weight, ids)
    ranks = ranks_of("vocab_parallel_logprobs", group)
    if x.dim() == 0 or x.shape[:-1] != ids.shape:
        raise ShapeError(
            f"vocab_parallel_logprobs: x {tuple(x.shape)} needs ids of shape "
            f"{tuple(x.shape[:-1])}, not {tuple(ids.shape)}"
        )
    if ranks is None:
        return token_logprob(part_of_columns(None, x, weight), ids, dtype=torch.float32)
    words = weight.shape[0] * ranks.size
    _check_ids(ids, words)
    ranks.alike(calls("vocab_parallel_logprobs", x, ids, ids=ids, x=x, weight=weight))
    rows, wanted = x.reshape(-1, x.shape[-1]), ids.reshape(-1)
    step = max(1, _MOST_LOGITS // max(1, words * x.element_size())) * ranks.size
    found = [
        _logprobs(ranks, rows[start : start + step], weight, wanted[start : start + step])
        for start in range(0, rows.shape[0], step)
    ]
    if not found:
        return torch.empty(ids.shape, dtype=torch.float32, device=x.device)
    return (found[0] if len(found) == 1 else torch.cat(found)).view(ids.shape)


def _logprobs(
    ranks: Ranks, x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Of [M, K] rows and [M] ids: [M] fp32."""
    count = x.shape[0]
    share = -(-count // ranks.size)
    logits = part_of_columns(ranks, x, weight)
    logits = F.pad(logits, (0, 0, 0, share * ranks.size - count))
    whole = side_by_side(ranks.exchange(logits.view(ranks.size, share, -1)))
    mine = F.pad(ids, (0, share * ranks.size - count))[ranks.index * share :][:share]
    return ranks.gather(token_logprob(whole, mine, dtype=torch.float32)).flatten()[:count]


def _check_ids(ids: torch.Tensor, words: int) -> None:
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype is torch.bool:
        raise DTypeError(f"vocab_parallel_logprobs: ids are integers, not {ids.dtype}")
    if ids.is_cpu and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < words:
        raise ShapeError(f"vocab_parallel_logprobs: an id is outside [0, {words})")
