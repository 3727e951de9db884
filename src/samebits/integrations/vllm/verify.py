"""Speculative decoding: a draft is accepted where it is the token that would have been drawn.

Each position of a draft is drawn as if there were no draft: same row of logits, same seed, same
position. So speculation changes speed and never a token, for greedy and for seeded requests.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits.integrations.vllm import sampler
from samebits.integrations.vllm.patches import Patches

Tensor = torch.Tensor
_REJECTED = -1


def install(patches: Patches) -> None:
    """Replaces the rejection sampler of the model runner that CPUs and older models have."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    patches.set(RejectionSampler, "forward", _verify)


def accepted(tokens: Tensor, drafts: Tensor, request: Tensor, step: Tensor, shape: Any) -> Tensor:
    """The tokens that requests keep: drawn ones up to and including the first that was not drafted.

    Args:
        tokens: [R] drawn for every row: all drafted rows, then one more for each request.
        drafts: [D] drafted tokens; rows 0 .. D - 1 of `tokens` belong to them.
        request, step: [R] whose a row is, and how many of its drafts it comes after.
        shape: (requests, most drafts + 1).

    Returns:
        [requests, most drafts + 1] int32, filled up with -1.
    """
    drawn = torch.full(shape, _REJECTED, dtype=torch.int32, device=tokens.device)
    drawn[request, step] = tokens.to(torch.int32)
    hit = torch.zeros(shape, dtype=torch.int32, device=tokens.device)
    count = drafts.shape[0]
    hit[request[:count], step[:count]] = (tokens[:count] == drafts).to(torch.int32)
    kept = torch.ones_like(hit)
    kept[:, 1:] = hit[:, :-1].cumprod(1)
    return torch.where(kept > 0, drawn, _REJECTED)


def rows_of(counts: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """`request` and `step` of `accepted` for `counts` drafts of each request."""
    number = torch.tensor(counts, dtype=torch.int64)
    requests = torch.arange(len(counts))
    drafted = torch.repeat_interleave(requests, number)
    first = torch.repeat_interleave(number.cumsum(0) - number, number)
    step = torch.arange(len(drafted)) - first
    return (
        torch.cat((drafted, requests)).to(device, non_blocking=True),
        torch.cat((step, number)).to(device, non_blocking=True),
    )


def _verify(
    self: Any,
    metadata: Any,
    draft_probs: Tensor | None,
    logits: Tensor,
    sampling_metadata: Any,
) -> Any:
    from vllm.v1.outputs import SamplerOutput

    raw = logits[metadata.target_logits_indices].to(torch.float32)
    raw_last = logits[metadata.bonus_logits_indices].to(torch.float32)
    rows = torch.cat(
        (
            self.apply_logits_processors(raw.clone(), sampling_metadata, metadata),
            self.sampler.apply_logits_processors(raw_last.clone(), sampling_metadata, True),
        )
    )
    request, step = rows_of(metadata.num_draft_tokens, logits.device)
    batch = len(metadata.num_draft_tokens)
    if sampling_metadata.all_greedy:
        tokens = sampler.greedy(rows)
    else:
        options = sampler.parameters(sampling_metadata, batch, logits.device)
        tokens = sampler.drawn(rows, options.at(request, step))
    kept = accepted(
        tokens, metadata.draft_token_ids, request, step, (batch, metadata.max_spec_len + 1)
    )
    scores = None
    if sampling_metadata.max_num_logprobs is not None:
        scores = self._get_logprobs_tensors(
            sampling_metadata.max_num_logprobs, metadata, logits, raw, raw_last, kept
        )
    return SamplerOutput(sampled_token_ids=kept, logprobs_tensors=scores)
