"""Seeded sampling: a token is a function of its row of logits, its parameters, seed and position.

Nothing else has an influence: not the other rows, nor their number, order or parameters, nor how
many tokens were drawn before, nor the device. There is no generator and no state.

Contract, of one row, in fp32 unless said otherwise:

1. Greedy rows (temperature <= 0 or top_k = 1) take the largest logit.
2. ``z = logits / temperature``. Tokens are ordered by z, the largest first, ties by their id.
   ``m = max z``; a row whose m is not finite (NaN counts as the largest) skips the filters.
3. ``top_k`` leaves the first k tokens. ``min_p`` leaves those with ``z - m >= log(min_p)``.
4. ``top_p`` leaves the fewest of the first tokens whose mass reaches the share top_p of all mass
   that 3. left. A token's mass is ``exp(z - m)`` cut to a multiple of 2^-40, so that sums are exact
   integers, without a tree; the threshold is ``ceil(fp64(sum) * fp64(top_p))``, at least one unit.
5. Of what is left, the token with the largest ``z + g`` is taken, g = -log(-log(1 - v)), where v is
   ``(w + 1/2) 2^-32`` (at most 1 - 2^-24) and w the token's word of Philox-4x32-10: word id mod 4
   of counter (id / 4, position, 0), key seed.

exp, log and log1p are those of `samebits.contract`; every other operation is an IEEE one. Ties go
to the lowest id everywhere.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch

from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.sampling import cpu
from samebits.ops.sampling.penalties import apply_penalties
from samebits.ops.softmax import token_logprob

__all__ = ["Sample", "apply_penalties", "sample"]

#: A parameter: one number for all rows, or a tensor with one for each.
Parameter: TypeAlias = "float | torch.Tensor"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Sample(NamedTuple):
    """What `sample` returns; logarithms are None unless asked for."""

    tokens: torch.Tensor  #: [R] int64
    raw_logprobs: torch.Tensor | None  #: [R] float32: `token_logprob` of the given logits
    logprobs: torch.Tensor | None  #: [R] float32: of the distribution that was drawn from


def sample(
    logits: torch.Tensor,
    *,
    seeds: int | torch.Tensor,
    positions: int | torch.Tensor,
    temperature: Parameter = 1.0,
    top_k: int | torch.Tensor | None = None,
    top_p: Parameter | None = None,
    min_p: Parameter | None = None,
    logprobs: bool = False,
) -> Sample:
    """Draws one token for each row.

    Args:
        logits: [R, V] float32, bfloat16 or float16, V < 2**31.
        seeds: a request's seed, any 64-bit integer.
        positions: the token's position in its request: two draws of one seed at one position use
            the same noise.
        temperature: 0 or less: greedy.
        top_k: how many tokens stay; 0 or less: all.
        top_p: share of the mass that stays; 1 or more: all.
        min_p: least probability, as a share of the largest; 0: all.
        logprobs: return logarithms of probabilities too.

    Returns:
        `Sample`. A greedy row's `logprobs` is 0. ``logprobs`` is ``(z - m) - log(mass left)``.

    Raises:
        ShapeError: shapes do not fit, or V = 0.
        DTypeError: other dtypes or devices.
    """
    if logits.dtype not in FLOATS or logits.layout is not torch.strided:
        raise DTypeError(f"sample: logits are float32, bfloat16 or float16, not {logits.dtype}")
    if logits.dim() != 2 or logits.shape[1] == 0 or logits.shape[1] >= 2**31:
        raise ShapeError(f"sample: logits must be [R, V] with 0 < V, not {tuple(logits.shape)}")
    if logits.requires_grad and torch.is_grad_enabled():
        raise SamebitsError("samebits.ops.sample has no backward; use torch.no_grad()")
    logits = logits.resolve_neg()
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    seeds = _rows("seeds", seeds, logits, torch.int64)
    positions = _rows("positions", positions, logits, torch.int64)
    heat = _rows("temperature", temperature, logits, torch.float32)
    kept = None if top_k is None else _rows("top_k", top_k, logits, torch.int32)
    share = None if top_p is None else _rows("top_p", top_p, logits, torch.float32)
    least = None if min_p is None else _rows("min_p", min_p, logits, torch.float32)
    if logits.is_cuda:
        from samebits.ops.sampling import cuda

        tokens, scores = cuda.draw(logits, seeds, positions, heat, kept, share, least, logprobs)
    else:
        tokens, scores = cpu.draw(logits, seeds, positions, heat, kept, share, least, logprobs)
    raw = token_logprob(logits, tokens, dtype=torch.float32) if logprobs else None
    return Sample(tokens, raw, scores)


def _rows(name: str, value: Parameter, logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A parameter of every row, [R] contiguous."""
    rows = logits.shape[0]
    if not isinstance(value, torch.Tensor):
        return torch.full((rows,), value, dtype=dtype, device=logits.device)
    if value.dtype.is_complex or (value.dtype.is_floating_point and not dtype.is_floating_point):
        raise DTypeError(f"sample: {name} must be integers, not {value.dtype}")
    if value.device != logits.device:
        raise DTypeError(f"sample: {name} is on {value.device} and logits on {logits.device}")
    if value.shape not in ((), (1,), (rows,)):
        raise ShapeError(f"sample: {name} must be one number or [{rows}], not {tuple(value.shape)}")
    return value.to(dtype).resolve_neg().expand(rows).contiguous()
