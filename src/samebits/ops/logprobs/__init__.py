"""What a language model thought of given tokens: a trainer's side of training-inference agreement.

An engine samples a token and records its log-probability; a trainer runs the model again, in other
batches, without a cache and with gradients. While the switch is on both have the same bits, so that
the ratio of new to old probability is exactly 1 until the weights change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import torch

from samebits.errors import DTypeError, ShapeError
from samebits.ops.attention.autograd import needs_grad
from samebits.ops.softmax import softmax, token_logprob

#: What `kept_apart` notes while a model runs rows of several sequences.
_apart: ContextVar[list[bool] | None] = ContextVar("samebits_kept_apart", default=None)
#: Models that take positions and do not keep sequences apart by them.
_unaware: WeakSet[Any] = WeakSet()


def kept_apart() -> None:
    """Said by attention that computes each of a row's sequences by itself."""
    noted = _apart.get()
    if noted is not None:
        noted.append(True)


def token_logprobs(
    model: Callable[..., Any],
    ids: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """``log p(ids[:, t + 1] | ids[:, : t + 1])`` by one forward pass, with gradients if wanted.

    The bits are those of `token_logprob` on the engine's logits: the same for any micro-batch,
    padded or packed, while the switch is on.

    Args:
        model: a causal language model: one of transformers (called with ``input_ids``,
            ``attention_mask``, ``position_ids``), or one called as ``model(ids, attention_mask=)``
            like the bundled one. It returns logits [B, T, V], or an object with ``.logits``.
        ids: [B, T] integers.
        mask: [B, T], 0 or False at padding, on either side.
        positions: [B, T]: for rows that hold several sequences, the position of each token in its
            sequence, from 0; not together with `mask`.
        temperature: logits are divided by it first, in fp32.

    Returns:
        [B, T - 1] fp32; +0 where a token, or the one before it, is padding or of another sequence.

    Raises:
        ShapeError, DTypeError: `ids`, `mask` or `positions` do not fit.
    """
    _check(ids, mask, positions, temperature)
    known = torch.ones_like(ids[:, 1:], dtype=torch.bool)
    if mask is not None:
        known = mask[:, 1:].to(torch.bool) & mask[:, :-1].to(torch.bool)
    elif positions is not None:
        known = positions[:, 1:] == positions[:, :-1] + 1
    logits = _logits(model, ids, mask, positions)[:, :-1]
    if temperature != 1.0:
        logits = logits.to(torch.float32) / temperature
    targets = ids[:, 1:].contiguous()
    if needs_grad(logits):
        found: torch.Tensor = _TokenLogprob.apply(logits, targets)  # type: ignore[no-untyped-call]
    else:
        found = token_logprob(logits, targets, dtype=torch.float32)
    return torch.where(known, found, 0.0)


def _check(
    ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None, heat: float
) -> None:
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype is torch.bool:
        raise DTypeError(f"token_logprobs: ids are integers, not {ids.dtype}")
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise ShapeError(f"token_logprobs: ids must be [B, T >= 1], not {tuple(ids.shape)}")
    for name, x in (("mask", mask), ("positions", positions)):
        if x is not None and x.shape != ids.shape:
            raise ShapeError(
                f"token_logprobs: {name} {tuple(x.shape)} must have the shape of ids, "
                f"{tuple(ids.shape)}"
            )
    if mask is not None and positions is not None:
        raise ShapeError("token_logprobs: give mask (padded rows) or positions (packed), not both")
    if not 0.0 < heat < float("inf"):
        raise ShapeError(f"token_logprobs: temperature={heat} must be positive and finite")


def _logits(
    model: Callable[..., Any],
    ids: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor | None,
) -> torch.Tensor:
    """[B, T, V]."""
    names = inspect.signature(getattr(model, "forward", model)).parameters
    several = positions is not None and bool((positions.diff() != 1).any())
    if "position_ids" in names and not (several and model in _unaware):
        places = positions
        if mask is not None:
            places = (mask.to(torch.int64).cumsum(1) - 1).clamp(min=0)
        noted: list[bool] = []
        token = _apart.set(noted)
        try:
            out = model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False)
        finally:
            _apart.reset(token)
        if noted or not several:
            return _of(out)
        with suppress(TypeError):  # no weak reference: found out anew each time
            _unaware.add(model)
    if positions is not None:
        return _unpacked(model, ids, positions)
    return _of(model(ids, attention_mask=None if mask is None else mask.to(torch.bool)))


def _of(out: Any) -> torch.Tensor:
    logits: torch.Tensor = getattr(out, "logits", out)
    return logits


def _unpacked(
    model: Callable[..., Any], ids: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Packed rows, for a model that knows only padded ones. The bits are the same."""
    flat, places = ids.reshape(-1), positions.reshape(-1)
    owner = (places == 0).cumsum(0) - 1  # a sequence starts at position 0, a row with one
    count, longest = int(owner[-1]) + 1, int(places.max()) + 1
    rows = flat.new_zeros(count, longest)
    rows[owner, places] = flat
    real = torch.zeros(count, longest, dtype=torch.bool, device=ids.device)
    real[owner, places] = True
    logits = _logits(model, rows, real, None)
    return logits[owner, places].view(*ids.shape, -1)


class _TokenLogprob(torch.autograd.Function):
    """`token_logprob` in fp32, with the gradient (one hot - softmax) for the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits, ids)
        return token_logprob(logits, ids, dtype=torch.float32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, ids = ctx.saved_tensors
        slope = -softmax(logits, -1, dtype=torch.float32)
        at = ids.to(torch.int64)[..., None]
        slope = slope.scatter(-1, at, slope.gather(-1, at) + 1.0)
        # Rows that were not asked for may hold anything.
        wanted = torch.where(grad[..., None] != 0, slope * grad[..., None], 0.0)
        return wanted.to(logits.dtype), None
