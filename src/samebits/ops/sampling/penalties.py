"""Penalties for tokens that were used before: a pure function of a row and its counts."""

from __future__ import annotations

import torch

from samebits.errors import DTypeError, ShapeError


def apply_penalties(
    logits: torch.Tensor,
    *,
    output_counts: torch.Tensor,
    prompt_counts: torch.Tensor | None = None,
    repetition: torch.Tensor | float = 1.0,
    frequency: torch.Tensor | float = 0.0,
    presence: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Logits after repetition, frequency and presence penalties, in this order.

    Contract, in fp32, every step rounded once: a logit of a token in the prompt or the output is
    divided by `repetition` if it is positive, else multiplied by it; then
    ``x = x - frequency * count`` and ``x = x - presence`` for tokens with a count in the output.

    Args:
        logits: [R, V] float32, bfloat16 or float16.
        output_counts: [R, V] integers: how often each token was generated.
        prompt_counts: [R, V] integers or None: how often it occurs in the prompt.
        repetition, frequency, presence: one number, or [R].

    Returns:
        [R, V] float32.

    Raises:
        ShapeError, DTypeError: operands do not fit.
    """
    counts = {"output_counts": output_counts, "prompt_counts": prompt_counts}
    for name, count in counts.items():
        if count is not None and (count.dtype.is_floating_point or count.shape != logits.shape):
            raise ShapeError(
                f"apply_penalties: {name} must be integers of shape {tuple(logits.shape)}, not "
                f"{count.dtype} {tuple(count.shape)}"
            )
    if logits.dim() != 2 or not logits.dtype.is_floating_point or logits.dtype is torch.float64:
        raise DTypeError("apply_penalties: logits are [R, V] float32, bfloat16 or float16")
    x = logits.to(torch.float32)
    generated = output_counts > 0
    used = generated if prompt_counts is None else generated | (prompt_counts > 0)
    factor = _column("repetition", repetition, logits)
    x = torch.where(used, torch.where(x > 0, x / factor, x * factor), x)
    x = x - _column("frequency", frequency, logits) * output_counts.to(torch.float32)
    return torch.where(generated, x - _column("presence", presence, logits), x)


def _column(name: str, value: torch.Tensor | float, logits: torch.Tensor) -> torch.Tensor:
    """[R, 1] or [1, 1] float32."""
    if not isinstance(value, torch.Tensor):
        return torch.full((1, 1), value, dtype=torch.float32, device=logits.device)
    if value.shape not in ((), (1,), (logits.shape[0],)):
        raise ShapeError(
            f"apply_penalties: {name} must be one number or [{logits.shape[0]}], not "
            f"{tuple(value.shape)}"
        )
    return value.to(torch.float32).reshape(-1, 1)
