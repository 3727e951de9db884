"""vLLM's sampler: a token is a function of its row of logits, options, seed and position.

The seed is the request's own. A request without one gets a seed made of the engine's and the
request's id, so that all ranks draw alike and two requests draw differently. The position is the
index of the last token that the model has seen, prompt included: it does not depend on how often a
request was preempted, nor on drafts.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import torch

from samebits import ops
from samebits.integrations.vllm.patches import Patches

Tensor = torch.Tensor
#: vLLM's: a temperature below it is greedy.
GREEDY_BELOW = 1e-5


def install(patches: Patches, engine_seed: int) -> None:
    """Replaces the sampler of the model runner that CPUs and older models have."""
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.gpu_input_batch import InputBatch

    patches.set(InputBatch, "add_request", _adding(InputBatch.add_request, engine_seed))
    patches.set(InputBatch, "_make_sampling_metadata", _making(InputBatch._make_sampling_metadata))
    patches.set(Sampler, "sample", _sampling(Sampler.sample))
    patches.set(Sampler, "greedy_sample", staticmethod(greedy))
    patches.set(Sampler, "apply_penalties", staticmethod(penalised))
    patches.set(Sampler, "gather_specific_token_logprobs", _named_logprobs)


def seed_of(request_id: str, engine_seed: int) -> int:
    """The seed of a request that brings none: 63 bits of BLAKE2b."""
    text = f"{engine_seed}:{request_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Draws:
    """Seeds and positions of a batch's rows, for one arrangement of the rows."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        known: dict[str, int] = vars(batch).setdefault("samebits_seeds", {})
        ids = batch.req_ids
        batch.samebits_seeds = {name: known.get(name, 0) for name in ids}
        self._seeds = torch.tensor([known.get(name, 0) for name in ids], dtype=torch.int64)

    def now(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Seeds and positions [rows] of the next draws."""
        rows = len(self._seeds)
        positions = torch.from_numpy(self.batch.num_tokens_no_spec[:rows].astype("int64") - 1)
        return (
            self._seeds.to(device, non_blocking=True),
            positions.to(device, non_blocking=True),
        )


def _adding(original: Callable[..., int], engine_seed: int) -> Callable[..., int]:
    def add_request(self: Any, request: Any) -> int:
        index = original(self, request)
        params = request.sampling_params
        if params is not None:
            seed = params.seed
            if seed is None:
                seed = seed_of(request.req_id, engine_seed)
            vars(self).setdefault("samebits_seeds", {})[request.req_id] = seed
            self.generators.pop(index, None)  # nothing is left that draws from it
        return index

    return add_request


def _making(original: Callable[..., Any]) -> Callable[..., Any]:
    def _make_sampling_metadata(self: Any) -> Any:
        metadata = original(self)
        metadata.samebits = Draws(self)
        if metadata.logprob_token_ids:
            named = Named(metadata.logprob_token_ids)
            named.most, metadata.logprob_token_ids = metadata.max_num_logprobs or 0, named
        return metadata

    return _make_sampling_metadata


class Named(dict[int, list[int]]):
    """Token ids whose logprobs rows ask for (``logprob_token_ids``), by row.

    Attributes:
        most: largest logprobs that the other rows ask for.
    """

    most: int = 0


def _named_logprobs(
    self: Any, logprobs: Tensor, logprob_token_ids: dict[int, list[int]], sampled: Tensor
) -> Any:
    """vLLM's ``LogprobsTensors`` of a batch in which some rows name the ids.

    vLLM would give the other rows -Inf for id 0, too, instead of the likeliest tokens. A row reads
    as many columns as it asked for.
    """
    most: int = getattr(logprob_token_ids, "most", 0)
    found = self.gather_logprobs(logprobs, most, token_ids=sampled)
    short = max(map(len, logprob_token_ids.values())) - most
    if short > 0:
        found = found._replace(
            logprob_token_ids=torch.nn.functional.pad(found.logprob_token_ids, (0, short)),
            logprobs=torch.nn.functional.pad(found.logprobs, (0, short), value=float("-inf")),
        )
    for row, named in logprob_token_ids.items():
        ids, end = torch.tensor(named, device=logprobs.device), len(named) + 1
        found.logprob_token_ids[row, 1:end] = ids.to(found.logprob_token_ids.dtype)
        found.logprobs[row, 1:end] = logprobs[row, ids]
    return found


@dataclasses.dataclass
class Parameters:
    """What `ops.sample` takes for each row, [rows] or None."""

    seeds: Tensor
    positions: Tensor
    temperature: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None

    def at(self, rows: Tensor, steps: Tensor) -> Parameters:
        """Those of given rows, `steps` positions further on."""

        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[rows]

        return Parameters(
            self.seeds[rows], self.positions[rows] + steps, self.temperature[rows],
            of(self.top_k), of(self.top_p), of(self.min_p),
        )  # fmt: skip


def parameters(metadata: Any, rows: int, device: torch.device) -> Parameters:
    """The options of a batch's rows, out of vLLM's metadata."""
    draws = getattr(metadata, "samebits", None)
    if draws is None:  # a dry run
        seeds = positions = torch.zeros(rows, dtype=torch.int64, device=device)
    else:
        seeds, positions = draws.now(device)
    heat = metadata.temperature
    if heat is None:
        heat = torch.zeros(rows, dtype=torch.float32, device=device)
    heat = torch.where(heat < GREEDY_BELOW, 0.0, heat)
    return Parameters(seeds, positions, heat, metadata.top_k, metadata.top_p, _min_p(metadata))


def _min_p(metadata: Any) -> Tensor | None:
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor

    for processor in metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, MinPLogitsProcessor) and processor.min_p_count:
            shares: Tensor = processor.min_p.flatten()
            return shares
    return None


def others(metadata: Any) -> list[Any]:
    """The user's own processors that leave the largest in place; min-p is ours."""
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor

    found = metadata.logitsprocs.argmax_invariant
    return [processor for processor in found if not isinstance(processor, MinPLogitsProcessor)]


def processed(logits: Tensor, p: Parameters, processors: list[Any]) -> Tensor:
    """Draws behind processors that, as in vLLM, see logits over the temperature. Greedy rows take
    the largest that was there before."""
    random = p.temperature > 0
    heat = torch.where(random, p.temperature, 1.0)
    best, logits = greedy(logits), logits / heat.unsqueeze(1)
    for processor in processors:
        logits = processor.apply(logits)
    unheated = dataclasses.replace(p, temperature=torch.ones_like(heat))
    return torch.where(random, drawn(logits, unheated), best)


def drawn(logits: Tensor, p: Parameters) -> Tensor:
    """The token of each row, [rows] int64."""
    return ops.sample(
        logits, seeds=p.seeds, positions=p.positions, temperature=p.temperature, top_k=p.top_k,
        top_p=p.top_p, min_p=p.min_p,
    ).tokens  # fmt: skip


def greedy(logits: Tensor) -> Tensor:
    """The largest logit of each row; ties to the lowest id."""
    return ops.argmax(logits, -1)


def _sampling(original: Callable[..., Any]) -> Callable[..., Any]:
    def sample(
        self: Any, logits: Tensor, sampling_metadata: Any, logprobs_mode_override: Any = None
    ) -> tuple[Tensor, Tensor | None]:
        metadata = sampling_metadata
        if str(self.logprobs_mode).startswith("processed"):  # run by policy="warn" only
            result: tuple[Tensor, Tensor | None] = original(self, logits, metadata)
            return result
        if metadata.all_greedy:
            return greedy(logits), None
        options = parameters(metadata, logits.shape[0], logits.device)
        processors = others(metadata)
        if processors:
            return processed(logits, options, processors), None
        return drawn(logits, options), None

    return sample


def penalised(logits: Tensor, sampling_metadata: Any, output_token_ids: list[list[int]]) -> Tensor:
    """Repetition, frequency and presence penalties by `ops.apply_penalties`."""
    metadata = sampling_metadata
    if metadata.no_penalties:
        return logits
    from vllm.model_executor.layers.utils import get_token_bin_counts_and_mask
    from vllm.v1.sample.ops.penalties import _convert_to_tensors

    rows, vocabulary = logits.shape
    outputs = _convert_to_tensors(output_token_ids, vocabulary, logits.device)
    outputs.masked_fill_(outputs == -1, vocabulary)

    def counts(ids: Tensor) -> Tensor:
        found: Tensor = get_token_bin_counts_and_mask(ids, vocabulary, rows)[0]
        return found

    return ops.apply_penalties(
        logits, output_counts=counts(outputs), prompt_counts=counts(metadata.prompt_token_ids),
        repetition=metadata.repetition_penalties, frequency=metadata.frequency_penalties,
        presence=metadata.presence_penalties,
    )  # fmt: skip
