"""Ranks on the GPUs of this machine: partial sums joined, exact sums, and layers.

Held against a stock all-reduce.

A process a GPU. Contenders are captured as CUDA graphs with the same number of calls on every rank,
and replayed in turns; the ranks' GPUs meet before each replay. A call takes as long as on the
slowest rank; the median of the rounds counts.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from queue import Empty
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from samebits import ops
from samebits.bench import gpu_timing
from samebits.bench.gpu import OURS, Line
from samebits.bench.gpu_timing import Ceilings, sets_for
from samebits.engines.replay import Captured, Work
from samebits.errors import DeviceError, RankError
from samebits.ops.parallel.join import join
from samebits.ops.parallel.ranks import Ranks, agree

WIDTH = 4096
#: Rows of bf16 results: messages of 8 KB to 64 MB.
ROWS = tuple(2**i for i in range(14))
#: Row-parallel weights (n, k) of Qwen3-8B, and numbers of rows.
WEIGHTS = {"o": (4096, 4096), "down": (4096, 12288)}
TOKENS = (1, 8, 64, 256, 1024, 2048, 8192)
#: Up to so many rows it is a decode; how much longer than stock decode and prefill may take.
DECODE, LONGER = 256, (1.1, 1.3)
#: How much longer an exact all-reduce may take.
EXACT = 2.0
STOCK, MESSAGES = "all_reduce", "messages"
ROUNDS, SECONDS, MOST_CALLS = 7, 5e-3, 256
#: Seconds that a rank may take to start, or to give its next line.
PATIENCE = 120.0


def lines(quick: bool = False, ranks: int | None = None) -> Iterator[Line]:
    """One line for each size, as they come.

    Args:
        quick: every third size.
        ranks: how many; None: as many as GPUs are visible, 8 at most.

    Raises:
        DeviceError: fewer than two GPUs are visible, or than `ranks`.
        RankError: a rank failed or gave nothing for `PATIENCE` seconds.
    """
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    size = min(visible, 8) if ranks is None else ranks
    if not 2 <= size <= visible:
        raise DeviceError(
            f"bench ranks needs two GPUs or more, one for each rank: {visible} visible"
            + ("" if ranks is None else f", {ranks} ranks asked for")
        )
    context: Any = mp.get_context("spawn")
    said = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        children = [
            context.Process(target=_rank, args=(i, size, folder, quick, said), daemon=True)
            for i in range(size)
        ]
        for child in children:
            child.start()
        try:
            yield from _heard(said)
        finally:
            for child in children:
                child.kill()
                child.join()


def ceilings() -> Ceilings:
    """Of one GPU; bytes are those that a copy moves from it to the next one."""
    found = gpu_timing.ceilings()
    if torch.cuda.device_count() < 2:
        return found
    source = torch.zeros(2**28, dtype=torch.uint8, device="cuda:0")
    target = source.to("cuda:1")
    event: Any = torch.cuda.Event
    best = 0.0
    for _ in range(ROUNDS):
        start, stop = event(enable_timing=True), event(enable_timing=True)
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        best = max(best, source.nbytes / start.elapsed_time(stop) * 1e3)
    return replace(found, bandwidth=best, moved="copied from one GPU to another")


def _heard(said: Any) -> Iterator[Line]:
    while True:
        try:
            word = said.get(timeout=PATIENCE)
        except Empty:
            raise RankError(f"bench ranks: no rank said anything for {PATIENCE:g} s") from None
        if word is None:
            return
        if isinstance(word, str):
            raise RankError(f"bench ranks: a rank failed:\n{word}")
        yield word


def _rank(index: int, size: int, folder: str, quick: bool, said: Any) -> None:
    try:
        torch.cuda.set_device(index)
        dist.init_process_group(
            "nccl", init_method=f"file://{folder}/meet", rank=index, world_size=size,
            timeout=timedelta(seconds=PATIENCE), device_id=torch.device("cuda", index),
        )  # fmt: skip
        group = dist.group.WORLD
        assert group is not None
        ranks = agree(group, timeout=PATIENCE)
        with torch.inference_mode():
            for line in measured(ranks, quick):
                if index == 0:
                    said.put(line)
        if index == 0:
            said.put(None)
            said.close()
            said.join_thread()
    except BaseException:
        said.put(traceback.format_exc())
        raise


def measured(ranks: Ranks, quick: bool = False) -> Iterator[Line]:
    """What every rank measures, in the same order."""
    for rows in ROWS[:: 3 if quick else 1]:
        yield _joined(ranks, rows)
    for dtype in (torch.float32, torch.bfloat16):
        for rows in ROWS[:: 3 if quick else 1]:
            yield _exact(ranks, rows, dtype)
    for name, (n, k) in WEIGHTS.items():
        for tokens in TOKENS[:: 3 if quick else 1]:
            yield _layer(ranks, name, n, k, tokens)


def _joined(ranks: Ranks, rows: int) -> Line:
    """Partial sums that lie there already: fp32 for us, rounded for a stock all-reduce."""
    size = rows * WIDTH * 2
    sets = min(sets_for(size * 3), 32)
    partial = [torch.randn(rows, WIDTH, device="cuda") for _ in range(sets)]
    narrow = [x.bfloat16() for x in partial]
    dtype = torch.bfloat16
    contenders: dict[str, Work] = {
        OURS: lambda i: join(ranks, partial[i], None, dtype),
        MESSAGES: lambda i: join(ranks, partial[i], None, dtype, rows >= 64),
        STOCK: lambda i: dist.all_reduce(narrow[i], group=ranks.group),
    }
    seconds = race(ranks, contenders, sets, guess=2e-5 + size / 2e11)
    moved = size * 2 * (ranks.size - 1) / ranks.size
    return _line(f"join, {ranks.size} ranks", _amount(size), seconds, rows, size=moved)


def _exact(ranks: Ranks, rows: int, dtype: torch.dtype) -> Line:
    """Every rank holds all numbers; their exact sums, and what NCCL's all-reduce makes of them."""
    size = rows * WIDTH * dtype.itemsize
    sets = min(sets_for(size * 2), 32)
    x = [torch.randn(rows, WIDTH, device="cuda").to(dtype) for _ in range(sets)]
    y = [torch.zeros_like(t) for t in x]
    contenders: dict[str, Work] = {
        OURS: lambda i: ops.exact.all_reduce(x[i], ranks.group),
        STOCK: lambda i: dist.all_reduce(y[i], group=ranks.group),
    }
    seconds = race(ranks, contenders, sets, guess=5e-5 + size / 1e11)
    moved = size * 2 * (ranks.size - 1) / ranks.size
    group = f"exact {str(dtype).removeprefix('torch.')}, {ranks.size} ranks"
    return _line(group, _amount(size), seconds, rows, size=moved, longer=EXACT)


def _amount(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def _layer(ranks: Ranks, name: str, n: int, k: int, tokens: int) -> Line:
    """A row-parallel layer: the product of this rank's columns, and what makes it whole."""
    own = k // ranks.size
    sets = min(sets_for((n + tokens) * own * 2), 16)
    weight = [torch.randn(n, own, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    x = [torch.randn(tokens, own, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]

    def stock(i: int) -> object:
        y = F.linear(x[i], weight[i])
        dist.all_reduce(y, group=ranks.group)
        return y

    contenders: dict[str, Work] = {
        OURS: lambda i: ops.row_parallel_linear(x[i], weight[i], group=ranks.group),
        f"F.linear + {STOCK}": stock,
    }
    flops = 2.0 * tokens * n * own
    guess = 4e-5 + flops / 6e14 + n * own * 2 / 3e12 + tokens * n * 2 / 2e11
    seconds = race(ranks, contenders, sets, guess=guess)
    return _line(f"{name} {n}x{k}, {ranks.size} ranks", f"M={tokens}", seconds, tokens, flops=flops)


def _line(
    group: str, case: str, seconds: dict[str, float], rows: int, flops: float = 0.0,
    size: float = 0.0, longer: float | None = None,
) -> Line:  # fmt: skip
    against = tuple(name for name in seconds if STOCK in name)
    return Line("ranks", group, case, seconds, against, flops, size,
                target=1 / (longer or LONGER[rows > DECODE]), x=rows)  # fmt: skip


def race(ranks: Ranks, contenders: Mapping[str, Work], sets: int, guess: float) -> dict[str, float]:
    """Median seconds of one call of each contender on the slowest rank.

    Args:
        guess: about how long a call takes, the same on every rank: it decides how many calls a
            graph has, which all ranks must agree on.
    """
    calls = max(sets, min(MOST_CALLS, int(SECONDS / guess)))
    graphs = {}
    for name, work in contenders.items():
        for index in range(min(sets, 2)):
            work(index)
        torch.cuda.synchronize()
        graphs[name] = Captured(work, sets, calls)
    token = torch.zeros(1, device="cuda")
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + 1):
        for name, graph in graphs.items():
            dist.all_reduce(token, group=ranks.group)
            taken = graph.seconds()
            if turn:
                found[name].append(taken)
    return _slowest(ranks, {name: median(times) for name, times in found.items()})


def _slowest(ranks: Ranks, mine: dict[str, float]) -> dict[str, float]:
    heard = ranks.hear(mine)
    return {name: max(of[name] for of in heard) for name in mine}
