"""The sampler of vLLM's second model runner, which dense models have on GPUs.

Its states hold a seed for every request, and it knows every row's position, so that only the draw,
the acceptance of drafts and the logarithms of probabilities are replaced. Biases, penalties and bad
words are applied by its own kernels, each element by itself.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from samebits import ops
from samebits.errors import SwitchError
from samebits.integrations.vllm.patches import Patches

Tensor = torch.Tensor


def install(patches: Patches) -> None:
    """Replaces draws, verification and logprobs.

    Raises:
        SwitchError: this release's runner has another sampler than the one this was written for.
    """
    from vllm.v1.worker.gpu.sample import logprob, sampler
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    for theirs, ours in (
        (sampler.Sampler.sample, _sample),
        (rejection_sampler.RejectionSampler.__call__, _verify),
    ):
        if list(inspect.signature(theirs).parameters) != list(inspect.signature(ours).parameters):
            raise SwitchError(
                f"{theirs.__qualname__} of this vLLM takes other arguments than that of 0.26: set "
                "VLLM_USE_V2_MODEL_RUNNER=0"
            )

    patches.set(sampler.Sampler, "sample", _sample)
    patches.set(rejection_sampler.RejectionSampler, "__call__", _verify)
    patches.set(logprob, "compute_token_logprobs", token_logprobs)


def token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """``log_softmax(logits)`` at [rows, n] ids, fp32: `ops.token_logprob` for each column."""
    columns = [
        ops.token_logprob(logits, ids, dtype=torch.float32)
        for ids in token_ids.to(torch.int64).unbind(1)
    ]
    return torch.stack(columns, 1)


def _biased(
    self: Any, logits: Tensor, idx: Tensor, idx_np: Any, pos: Tensor, ids: Tensor, local: Tensor
) -> Tensor:
    """Logits after everything that changes single elements; a copy if raw ones are still needed."""
    if self.logprobs_mode.startswith("raw_") and self.returns_logprobs(idx_np):
        logits = logits.clone()
    self.logit_bias_state.apply_logit_bias(logits, idx, idx_np, pos)
    self.penalties_state.apply_penalties(logits, idx, idx_np, ids, local)
    self.bad_words_state.apply_bad_words(logits, idx, idx_np, ids, local)
    return logits


def _drawn(self: Any, logits: Tensor, idx: Tensor, idx_np: Any, pos: Tensor) -> Tensor:
    states = self.sampling_states
    top_k, top_p = states.get_top_k_top_p(idx, idx_np)
    any_min_p = bool((states.min_p.np[idx_np] != 0).any())
    return ops.sample(
        logits, seeds=states.seeds.gpu[idx], positions=pos, temperature=states.temperature.gpu[idx],
        top_k=top_k, top_p=top_p, min_p=states.min_p.gpu[idx] if any_min_p else None,
    ).tokens  # fmt: skip


def _sample(
    self: Any,
    logits: Tensor,
    expanded_idx_mapping: Tensor,
    idx_mapping_np: Any,
    pos: Tensor,
    input_ids: Tensor,
    expanded_local_pos: Tensor,
    return_logprobs: bool = False,
) -> tuple[Tensor, Tensor]:
    rows = _biased(
        self, logits, expanded_idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos
    )
    return _drawn(self, rows, expanded_idx_mapping, idx_mapping_np, pos), rows


def _verify(self: Any, logits: Tensor, input_batch: Any, draft_logits: Tensor | None = None) -> Any:
    from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
    from vllm.v1.worker.gpu.sample.output import SamplerOutput

    sampler, batch = self.sampler, input_batch
    idx, idx_np, local = batch.expanded_idx_mapping, batch.idx_mapping_np, batch.expanded_local_pos
    inputs, pos = batch.input_ids[batch.logits_indices], batch.positions[batch.logits_indices]
    rows = _biased(sampler, logits, idx, idx_np, pos, inputs, local)
    tokens = _drawn(sampler, rows, idx, idx_np, pos)
    kept, count = keep(tokens, inputs, batch.cu_num_logits, local, self.num_speculative_steps)
    scores = self._get_logprobs_tensors(batch, kept, count, logits)
    sampled, rejected = get_num_sampled_and_rejected(
        count, batch.seq_lens, batch.cu_num_logits, batch.idx_mapping,
        sampler.req_states.prefill_len.gpu,
    )  # fmt: skip
    return SamplerOutput(
        sampled_token_ids=kept, logprobs_tensors=scores, num_nans=None, num_sampled=sampled,
        num_rejected=rejected,
    )  # fmt: skip


def keep(
    tokens: Tensor, inputs: Tensor, offsets: Tensor, step: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """Drawn tokens up to and including the first that was not drafted, without a wait.

    Args:
        tokens: [R] drawn for every row.
        inputs: [R] what the model was given there: a row's draft is the next row's input.
        offsets: [requests + 1] where a request's rows begin.
        step: [R] number of a row in its request.
        most: drafts of a request at most.

    Returns:
        [requests, most + 1] tokens, and how many of each request are kept, int32.
    """
    requests, last = offsets.shape[0] - 1, tokens.shape[0] - 1
    row = torch.arange(tokens.shape[0], device=tokens.device)
    request = torch.searchsorted(offsets[1:].to(torch.int64), row, right=True)
    drafted = torch.where(row < last, inputs.roll(-1), -1)
    has_draft = row + 1 < offsets[1:].to(torch.int64)[request]
    hit = (has_draft & (tokens == drafted)).to(torch.int32)
    shape = (requests, most + 1)
    drawn, hits = tokens.new_zeros(shape), hit.new_zeros(shape)
    drawn[request, step] = tokens
    hits[request, step] = hit
    return drawn, 1 + hits.cumprod(1).sum(1, dtype=torch.int32)
