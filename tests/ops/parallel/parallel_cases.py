"""What ranks compute, and what they say of it: run in processes of their own.

A case builds whole operands from a seed, cuts out its rank's part, and gives the result that every
rank must have, or this rank's part of one (`Part`), which is laid beside the others'.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from samebits import ops
from samebits.engines.replay import Captured

Tensor = torch.Tensor
EXPERTS, TOP_K = 8, 2


@dataclass(frozen=True)
class Sizes:
    """Of all operands; every one but `tokens` is a multiple of 8 ranks."""

    hidden: int = 256
    inner: int = 1024
    vocab: int = 512
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 64
    tokens: tuple[int, ...] = (1, 2, 3, 5, 8, 63, 64, 65, 129)
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)
    repeats: int = 2


CPU = Sizes()
#: 1 to 8193 at powers of two and one beside.
EDGES = tuple(sorted({max(1, 2**i + d) for i in range(14) for d in (-1, 0, 1)}))
GPU = Sizes(
    hidden=2048, inner=4096, vocab=16384, heads=16, kv_heads=8, head_dim=128, tokens=EDGES,
    dtypes=(torch.bfloat16, torch.float16), repeats=200,
)  # fmt: skip


@dataclass(frozen=True)
class Rank:
    """This process among its group."""

    index: int
    size: int
    group: dist.ProcessGroup
    device: torch.device
    sizes: Sizes
    dtype: torch.dtype
    graphs: bool = False

    def noise(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        return noise(shape, seed, scale, self.device, self.dtype)

    def rows(self, x: Tensor) -> Tensor:
        """This rank's share of the first axis."""
        return x.chunk(self.size)[self.index].contiguous()

    def columns(self, x: Tensor) -> Tensor:
        """This rank's share of the last axis."""
        return x.chunk(self.size, -1)[self.index].contiguous()


Work = Callable[[int], Tensor]


@lru_cache(maxsize=8)
def noise(
    shape: tuple[int, ...], seed: int, scale: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """The same on every rank: GPUs of one kind draw alike."""
    made = torch.Generator(device).manual_seed(seed)
    return (torch.randn(shape, generator=made, device=device) * scale).to(dtype)


def row_parallel(r: Rank) -> Work:
    """Terms of very different sizes, so that another tree has other bits."""
    s = r.sizes
    w, b = r.noise(s.hidden, s.inner, seed=1), r.noise(s.hidden, seed=2)
    own, wide = r.columns(w), torch.logspace(-3, 3, s.inner, device=r.device)

    def work(tokens: int) -> Tensor:
        x = r.columns((r.noise(tokens, s.inner, seed=tokens).float() * wide).to(r.dtype))
        return ops.row_parallel_linear(x, own, b, group=r.group)

    return work


def row_parallel_gathered(r: Rank) -> Work:
    s = r.sizes
    own = r.columns(r.noise(s.hidden, s.inner, seed=3))

    def work(tokens: int) -> Tensor:
        x = r.columns(r.noise(tokens, s.inner, seed=tokens))
        return ops.row_parallel_linear(x, own, group=r.group, exchange=False)

    return work


def column_parallel(r: Rank) -> Work:
    s = r.sizes
    own, b = r.rows(r.noise(s.inner, s.hidden, seed=4)), r.rows(r.noise(s.inner, seed=5))

    def work(tokens: int) -> Tensor:
        x = r.noise(tokens, s.hidden, seed=tokens)
        return ops.column_parallel_linear(x, own, b, group=r.group, gather=True)

    return work


def vocab_embedding(r: Rank) -> Work:
    table = r.noise(r.sizes.vocab, r.sizes.hidden, seed=6)
    table[3, :2] = torch.tensor([float("nan"), -0.0])
    own = r.rows(table)

    def work(tokens: int) -> Tensor:
        return ops.vocab_parallel_embedding(
            words(r.sizes.vocab, tokens, r.device), own, group=r.group
        )

    return work


def vocab_logprobs(r: Rank) -> Work:
    own = r.rows(r.noise(r.sizes.vocab, r.sizes.hidden, seed=7))

    def work(tokens: int) -> Tensor:
        x = r.noise(tokens, r.sizes.hidden, seed=tokens, scale=0.1)
        return ops.vocab_parallel_logprobs(
            x, own, words(r.sizes.vocab, tokens, r.device), group=r.group
        )

    return work


def attention_heads(r: Rank) -> Work:
    """Heads of a rank, then the projection that adds them up."""
    s = r.sizes
    wide = s.heads * s.head_dim
    own = r.columns(r.noise(s.hidden, wide, seed=8))

    def work(tokens: int) -> Tensor:
        q, k, v = (
            r.noise(h, 1, tokens, s.head_dim, seed=tokens + i)
            .chunk(r.size)[r.index]
            .transpose(0, 1)
            for i, h in enumerate((s.heads, s.kv_heads, s.kv_heads))
        )
        y = ops.attention(q, k, v, causal=True)
        x = y.transpose(1, 2).reshape(tokens, -1)
        return ops.row_parallel_linear(x, own, group=r.group, parts=4 if wide < 1024 else 8)

    return work


def experts(r: Rank) -> Work:
    s = r.sizes
    inner = s.inner // 8
    w1 = r.rows(r.noise(EXPERTS, 2 * inner, s.hidden, seed=9, scale=0.1))
    w2 = r.rows(r.noise(EXPERTS, s.hidden, inner, seed=10, scale=0.1))

    def work(tokens: int) -> Tensor:
        x = r.noise(tokens, s.hidden, seed=tokens)
        weights, ids = ops.router_topk(r.noise(tokens, EXPERTS, seed=tokens + 1), TOP_K)
        ids[:1, :1] = -1
        return ops.expert_parallel_moe(x, w1, w2, ids, weights, group=r.group)

    return work


def stock_row_parallel(r: Rank) -> Work:
    """What frameworks do: a product of each rank's columns, rounded, then an all-reduce."""
    s = r.sizes
    own = r.columns(r.noise(s.hidden, s.inner, seed=1))

    def work(tokens: int) -> Tensor:
        y = F.linear(r.columns(r.noise(tokens, s.inner, seed=tokens)), own)
        dist.all_reduce(y, group=r.group)
        return y

    return work


CASES: dict[str, Callable[[Rank], Work]] = {
    made.__name__: made
    for made in (
        row_parallel, row_parallel_gathered, column_parallel, vocab_embedding, vocab_logprobs,
        attention_heads, experts, stock_row_parallel,
    )
}  # fmt: skip
STOCK = "stock_row_parallel"


@lru_cache(maxsize=1)
def words(vocab: int, tokens: int, device: torch.device) -> Tensor:
    """[tokens] ids, the first of them of a row with a NaN and -0."""
    made = torch.Generator(device).manual_seed(tokens)
    ids = torch.randint(vocab, (tokens,), generator=made, device=device)
    ids[0] = 3
    return ids


def digests(r: Rank, name: str) -> Iterator[tuple[str, str]]:
    """(case, digest of the result's bytes) for all numbers of tokens.

    Repeats that differ from the first one are counted in the digest's place. On GPUs a repeat is a
    replay of a CUDA graph, unless ranks talk over the host.
    """
    work = CASES[name](r)
    for tokens in r.sizes.tokens:
        first = work(tokens)
        wrong = torch.zeros((), dtype=torch.int64, device=r.device)

        def again(tokens: int = tokens, first: Tensor = first, wrong: Tensor = wrong) -> None:
            wrong.add_((as_bytes(work(tokens)) != as_bytes(first)).any())

        repeat = again if r.device.type == "cpu" or not r.graphs else captured(again)
        for _ in range(r.sizes.repeats - 1):
            repeat()
        digest = hashlib.sha256(as_bytes(first).cpu().numpy().tobytes()).hexdigest()
        if int(wrong):
            digest = f"{int(wrong)} of {r.sizes.repeats} repeats differ"
        yield f"{name} {str(r.dtype).removeprefix('torch.')} {tokens}", digest


def captured(work: Callable[[], None]) -> Callable[[], None]:
    """The replay of a CUDA graph of `work`, which ran once before."""
    torch.cuda.synchronize()
    return Captured(lambda _: work(), 1, 1).graph.replay


def as_bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def run(
    index: int, counts: tuple[int, ...], folder: str, device: str, backend: str, sizes: Sizes,
    names: list[str],
) -> None:  # fmt: skip
    """One process of a spawn: a rank of each number of ranks that has it, one after another.

    Over NCCL a GPU is a rank's alone, unless ranks seem to be on hosts of their own; then they talk
    by way of the network.

    Writes its digests to ``{ranks}-{index}.json``, and why where a case has none.
    """
    torch.set_num_threads(1)
    place = torch.device(device)
    if device == "cuda":
        place = torch.device("cuda", index % torch.cuda.device_count())
        torch.cuda.set_device(place)
        if backend == "nccl" and max(counts) > torch.cuda.device_count():
            os.environ["NCCL_HOSTID"] = f"rank {index}"
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meet", rank=index, world_size=max(counts),
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    groups = {size: dist.new_group(list(range(size))) for size in counts}
    for size, group in groups.items():
        if index >= size:
            continue
        found: dict[str, str] = {}
        for dtype, name in product(sizes.dtypes, names):
            start = time.monotonic()
            rank = Rank(index, size, group, place, sizes, dtype, graphs=backend == "nccl")
            try:
                with torch.no_grad():
                    found.update(digests(rank, name))
            except Exception as error:
                found[f"{name} {dtype}"] = f"no result: {error!r}"[:600]
            print(f"rank {index} of {size}: {name} {dtype} {time.monotonic() - start:.1f} s")
        Path(folder, f"{size}-{index}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
