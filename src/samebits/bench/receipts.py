"""What receipts cost: writing, verifying, auditing. Wall time and processor time."""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samebits.engines.cpu.evaluate import products_per_second
from samebits.guard.receipts import Receipt, Recorder, verify
from samebits.guard.receipts.record import address
from samebits.guard.receipts.sums import row_sums
from samebits.plan import contract_of


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Attributes:
        name: what was done.
        rate: how often in a second of wall time; in a second of processor time.
        unit: of what.
        note: sizes.
    """

    name: str
    rate: float
    cpu_rate: float
    unit: str
    note: str = ""


def _timed(fn: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of this process' processor time, user and system."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    fn()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def figures(records: int = 100_000) -> Iterator[Figure]:
    """Writes, verifies and audits.

    Args:
        records: receipts in the file; each of 128 tokens of prompt and 64 of answer with their
            log-probabilities, and the checksums of 36 layers (2.9 KB).
    """
    with tempfile.TemporaryDirectory() as folder:
        for durability in ("process", "power"):
            path = Path(folder, durability)
            wall, cpu = _timed(lambda: _write(path, durability, records))  # noqa: B023
            size = f"{path.stat().st_size / records:.0f} bytes each, durability={durability!r}"
            yield Figure("write", records / wall, records / cpu, "receipts", size)
        wall, cpu = _timed(lambda: verify(path).whole)
        note = f"a million: {1e6 * wall / records:.1f} s, {1e6 * cpu / records:.1f} s of processor"
        yield Figure("verify", records / wall, records / cpu, "receipts", note)
    yield from _audits()
    x = torch.randn(64, 4096).bfloat16()
    wall, cpu = _timed(lambda: [row_sums(x) for _ in range(50)])
    yield Figure("checksum", 3200 / wall, 3200 / cpu, "rows", "of 4096 bf16, one layer and token")


def _write(path: Path, durability: str, records: int) -> None:
    draw = random.Random(0)
    ids = [draw.randrange(150_000) for _ in range(128)]
    output = [draw.randrange(150_000) for _ in range(64)]
    logprobs = [draw.randrange(2**32) for _ in range(64)]
    sums = [draw.randrange(-(2**63), 2**63) for _ in range(37)]
    identity = b'{"engine":"bench"}'
    name = address(identity)
    with Recorder(path, durability=durability) as recorder:
        for number in range(records):
            recorder.add(
                Receipt(
                    request=f"request-{number}", time=time.time_ns(), identity=name, input=ids,
                    output=output, logprobs=logprobs, sums=sums, covered=[(0, 191)], seed=number,
                    sampling={"temperature": 0.7, "top_p": 0.9}, finish="length",
                ),
                {name: identity},
            )  # fmt: skip


def _audits() -> Iterator[Figure]:
    whole = products_per_second()
    yield Figure("evaluate", whole, whole, "products", "hopper_mma, 64 x 64 x 2048, one core")
    noise = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise).bfloat16()

    x, weight = normal(1, 4096), normal(4, 4096)
    linear = contract_of("linear", n=4096, k=4096, dtype="bf16", device="sm_90")
    yield _rate("audit", lambda: linear.evaluate(x, weight, engine="cpu"), 4 * 4096,
                "linear, sm_90, 4 elements of a row, k = 4096")  # fmt: skip
    q, k, v = normal(1, 128), normal(4096, 128), normal(4096, 128)
    attention = contract_of("attention", head_dim=128, dtype="bf16", device="sm_90")
    yield _rate("audit", lambda: attention.evaluate(q, k, v, engine="cpu"), 4096 * 257,
                "attention, sm_90, a head of 128, 4096 keys")  # fmt: skip


def _rate(name: str, fn: Callable[[], Any], products: int, note: str) -> Figure:
    pairs = [_timed(fn) for _ in range(30)]
    wall, cpu = (float(np.median([pair[i] for pair in pairs])) for i in (0, 1))
    return Figure(name, products / wall, products / max(cpu, 1e-9), "products", note)
