"""Exact contracts on the CPU against stock torch: products, rows, and a sum over two ranks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from queue import Empty
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from samebits import ops
from samebits.bench.timing import Row, compare
from samebits.errors import RankError
from samebits.mode import stock

#: How many times stock's time each may take; a product is held against fp32.
PRODUCT, ROW, SUM = 8.0, 1.3, 2.0
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
#: M, N, K.
_PRODUCTS = ((1, 4096, 4096), (16, 2048, 2048), (128, 1024, 2048), (512, 1024, 1024))
_SHAPES = ((512, 4096), (512, 768), (16, 32000))
#: Numbers that each of two ranks holds.
_LENGTHS = (1 << 18, 1 << 20, 1 << 22)
ROUNDS, SECONDS, PATIENCE = 9, 0.05, 120.0


def rows() -> Iterator[Row]:
    """The lines of the table, one at a time."""
    with torch.no_grad():
        for name, dtype in _TYPES.items():
            for m, n, k in _PRODUCTS:
                yield _product(f"{name} {n}x{k} M={m}", torch.randn(m, k), torch.randn(n, k), dtype)
        for name, dtype in _TYPES.items():
            for shape in _SHAPES:
                yield from _along(f"{name} {list(shape)}", torch.randn(shape).to(dtype))
    yield from _sums()


def _product(name: str, x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype) -> Row:
    a, b = x.to(dtype), w.to(dtype)
    return compare(
        "exact linear", name, lambda: F.linear(x, w), ours=lambda: ops.exact.linear(a, b),
        target=1 / PRODUCT,
    )  # fmt: skip


def _along(name: str, x: torch.Tensor) -> Iterator[Row]:
    n = x.shape[1:]
    w = torch.randn(n).to(x.dtype)
    Case = tuple[Callable[[], object], Callable[[], object], float | None]
    cases: dict[str, Case] = {
        "sum": (lambda: x.sum(-1), lambda: ops.exact.sum(x, -1), 1 / ROW),
        "mean": (lambda: x.mean(-1), lambda: ops.exact.mean(x, -1), 1 / ROW),
        "rms_norm": (lambda: F.rms_norm(x, n, w, 1e-6), lambda: ops.exact.rms_norm(x, w), 1 / ROW),
        "layer_norm": (
            lambda: F.layer_norm(x, n, w, w), lambda: ops.exact.layer_norm(x, w, w), 1 / ROW
        ),
        "softmax": (lambda: x.softmax(-1), lambda: ops.exact.softmax(x, -1), None),
    }  # fmt: skip
    for op, (theirs, ours, target) in cases.items():
        yield compare("exact rows", f"{op} {name}", theirs, ours=ours, target=target, seconds=0.2)


def _sums() -> Iterator[Row]:
    """All-reduce over gloo: two processes on a thread each, which call in turns with stock."""
    context: Any = mp.get_context("spawn")
    said = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(i, folder, said), daemon=True) for i in range(2)
        ]
        for rank in ranks:
            rank.start()
        try:
            for _ in range(len(_TYPES) * len(_LENGTHS)):
                yield _heard(said, ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()


def _heard(said: Any, ranks: list[Any]) -> Row:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not any(rank.exitcode for rank in ranks):
        with suppress(Empty):
            row: Row = said.get(timeout=1)
            return row
    raise RankError("bench cpu_exact: a rank ended or hangs; its error is above")


def _rank(index: int, folder: str, said: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=index, world_size=2,
        timeout=timedelta(seconds=PATIENCE),
    )  # fmt: skip
    with stock(), torch.no_grad():
        for name, dtype in _TYPES.items():
            for n in _LENGTHS:
                theirs, ours = _sum(torch.randn(n).to(dtype))
                if index == 0:
                    said.put(Row("exact all_reduce", f"{name} 2^{n.bit_length() - 1} numbers, "
                                 "2 ranks over gloo", theirs, ours, 1 / SUM))  # fmt: skip
    dist.barrier()
    said.close()
    said.join_thread()


def _sum(x: torch.Tensor) -> tuple[float, float]:
    """Median seconds of a stock all-reduce and of ours, each call begun by both ranks together."""
    y = torch.zeros_like(x)
    work: tuple[Callable[[], object], ...] = (
        lambda: dist.all_reduce(y),
        lambda: ops.exact.all_reduce(x),
    )
    calls = max(1, int(SECONDS * 5e8 / x.nbytes))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 1):
        for call, found in zip(work, times, strict=True):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if turn:
                found.append((time.perf_counter() - start) / calls)
    return median(times[0]), median(times[1])
