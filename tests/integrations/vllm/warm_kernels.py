"""Program: what a server's requests ask of a GPU that `warm_up` did not, one kernel a line.

vLLM need not be there: of it only names of base classes are used.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
import recorded_gpu

recorded_gpu.install()


def _stand_in(name: str, **content: Any) -> None:
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)


class _Base:
    def __init__(self, *_: Any) -> None: ...

    def __class_getitem__(cls, _: Any) -> type:
        return cls


for _package in ("vllm", "vllm.v1", "vllm.v1.attention"):
    _stand_in(_package)
_stand_in(
    "vllm.v1.attention.backend", AttentionImpl=_Base, AttentionMetadataBuilder=_Base,
    AttentionCGSupport=SimpleNamespace(ALWAYS=1),
    AttentionType=SimpleNamespace(DECODER="decoder", ENCODER_ONLY="encoder_only"),
)  # fmt: skip

import torch  # noqa: E402

from samebits import ops  # noqa: E402
from samebits.integrations.vllm import layers, opaque, runner2, warm  # noqa: E402
from samebits.integrations.vllm.attention_gpu import GpuImpl, GpuMetadataBuilder  # noqa: E402

HIDDEN, HEADS, KV, HEAD, INNER, VOCABULARY = 512, 4, 2, 64, 1536, 10240
LIMITS = warm.Limits(tokens=1600, requests=20, keys=4100)
PLACE: dict[str, Any] = {"dtype": torch.bfloat16, "device": recorded_gpu.DEVICE}


class Linear(torch.nn.Module):
    """A layer as `layers._weights_ready` leaves it."""

    def __init__(self, n: int, k: int, **fields: Any) -> None:
        super().__init__()
        self.samebits_weight, self.samebits_tree = torch.empty(n, k, **PLACE), ""
        self.samebits_packed = self.bias = None
        self.tp_size, self.quant_method = 1, self
        vars(self).update(fields)

    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:  # type: ignore[override]
        return layers._apply(self, layer, x, bias)

    def forward(self, x: Any) -> Any:
        return self.apply(self, x)


class RMSNorm(torch.nn.Module):
    has_weight, variance_size_override, variance_epsilon = True, None, 1e-6
    forward = layers._rms_norm

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.empty(HIDDEN, **PLACE)


class SiluAndMul(torch.nn.Module):
    forward = layers._silu_and_mul


class Block(torch.nn.Module):
    """A layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.q_size, self.kv_size = HEADS * HEAD, KV * HEAD
        self.qkv_proj = Linear(self.q_size + 2 * self.kv_size, HIDDEN)
        self.gate_up_proj, self.act_fn = Linear(2 * INNER, HIDDEN), SiluAndMul()
        self.down_proj = Linear(HIDDEN, INNER, reduce_results=True)
        self.rank = Linear(HIDDEN, 1024, reduce_results=True, tp_size=2)  # of two
        self.norm, self.dtype = RMSNorm(), torch.bfloat16
        self.impl = GpuImpl(HEADS, HEAD, HEAD**-0.5, num_kv_heads=KV)

    def rotary_emb(self, positions: Any, q: Any, k: Any) -> Any:
        weight, cache = torch.empty(HEAD, **PLACE), torch.empty(8192, HEAD, **PLACE)
        return opaque.rotary_qk(q, k, cache, positions, HEAD, weight, weight, 1e-6)

    def forward(self, x: Any, step: list[tuple[int, int]]) -> Any:
        """Rows [T, hidden] of a step of requests (new tokens, keys), decoding ones in front."""
        positions = torch.zeros(len(x), dtype=torch.int64, device=PLACE["device"])
        x = self.norm(x, self.norm(x))[0]
        q, k, v = self.qkv_proj(x).split([self.q_size, self.kv_size, self.kv_size], -1)
        q, k = self.rotary_emb(positions, q, k)
        q, k, v = (t.view(len(x), -1, HEAD) for t in (q, k, v))
        cache, out = torch.empty(1, KV, 64, 2 * HEAD, **PLACE), torch.empty_like(q)
        self.impl.do_kv_cache_update(self, k, v, cache, positions - 1)
        self.impl.attend(self, q, k, v, cache, _metadata(step), out)
        warm.subtree(torch.empty(len(x), 1024, **PLACE), self.rank.samebits_weight, 4)
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


def _metadata(step: list[tuple[int, int]]) -> Any:
    new, keys = (torch.tensor(x, dtype=torch.int32) for x in zip(*step, strict=True))
    offsets = torch.cat((new.new_zeros(1), new.cumsum(0, dtype=torch.int32)))
    whole = torch.zeros(LIMITS.requests + 1, -(-LIMITS.keys // 64), dtype=torch.int32)
    table = whole.to(PLACE["device"])[: len(step)]
    common = SimpleNamespace(
        num_actual_tokens=int(offsets[-1]), num_reqs=len(step), max_query_len=int(new.max()),
        query_start_loc=offsets.to(PLACE["device"]), query_start_loc_cpu=offsets,
        seq_lens=keys.to(PLACE["device"]), seq_lens_cpu_upper_bound=keys, causal=True,
        block_table_tensor=table,
    )  # fmt: skip
    return GpuMetadataBuilder(None, [], None, PLACE["device"]).build(0, common)


def steps(count: int) -> Iterator[list[tuple[int, int]]]:
    """Random steps: prompts, chunks of them, drafts and decoding requests, in any company."""
    r = random.Random(1)
    for _ in range(count):
        room, step = LIMITS.tokens, []
        for _ in range(r.choice((1, 1, 2, 3, 6, 12, LIMITS.requests))):
            keys = r.choice((r.randint(1, 99), r.randint(1, 1000), r.randint(1, LIMITS.keys)))
            new = min(keys, r.choice((1, 1, 1, r.randint(1, 8), r.randint(1, 99), room)))
            if new <= room:
                step.append((new, r.choice((keys, new))))
                room -= new
        yield sorted(step, key=lambda request: request[0] != 1)


def drawn(head: Any, dtype: torch.dtype, count: int) -> None:
    """Logits of `count` requests, draws with all options, and logarithms of probabilities."""
    logits = head(torch.empty(count, HIDDEN, **PLACE)).to(dtype)
    whole = torch.ones(count, dtype=torch.int64, device=PLACE["device"])
    real, k = whole.float(), whole.int()
    for top_k in (None, k):
        for top_p in (None, real):
            for min_p in (None, real):
                ops.sample(
                    logits, seeds=whole, positions=whole, temperature=real, top_k=top_k,
                    top_p=top_p, min_p=min_p,
                )  # fmt: skip
    penalised = ops.apply_penalties(logits, output_counts=whole[:, None].expand_as(logits))
    ops.argmax(penalised.to(dtype), -1)
    for most in (0, 1, 3):  # as the second runner has them: the drawn token, and the likeliest
        runner2.token_logprobs(logits, whole[:, None].repeat(1, 1 + most))
    ops.log_softmax(logits, -1, dtype=torch.float32)
    for most in (0, 1, 2, 16, 20):
        ops.topk(logits, most)


def missing() -> set[recorded_gpu.Key]:
    """What `warm_up` leaves out."""
    place, runners = PLACE["device"], (torch.float32, torch.bfloat16)  # dtypes of their logits
    with recorded_gpu.recording() as warmed:
        head, block = Linear(VOCABULARY, HIDDEN, num_embeddings=VOCABULARY), Block()
        model = torch.nn.ModuleList((block, head))
        calls = [
            *warm.products(model, LIMITS), *warm.attention(model, LIMITS, place),
            *warm.elements(model, LIMITS, torch.empty(0, HIDDEN, **PLACE)),
        ]  # fmt: skip
        for dtype in runners:
            like = torch.empty(0, VOCABULARY, dtype=dtype, device=place)
            calls += warm.draws(like, LIMITS)
        for call in calls:
            call()
    with recorded_gpu.recording() as wanted:
        for step in steps(150):
            block(torch.empty(sum(new for new, _ in step), HIDDEN, **PLACE), step)
        for count in range(1, LIMITS.requests + 1):
            for dtype in runners:
                drawn(head, dtype, count)
    assert len(wanted) > 60, len(wanted)  # or this looks at nothing
    return wanted - warmed


if __name__ == "__main__":
    for name, classes in sorted(missing()):
        print(name, *classes)
