"""Compiles the kernels of a tuning session in many processes, before anything is timed.

Triton keeps what it has compiled on disk, so the session itself only loads it. A process compiles a
kernel by running it once, on operands of the sizes that it will be timed with.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from contextlib import suppress

from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.errors import PlanError
from samebits.plan import stack
from samebits.plan.families import candidates_at
from samebits.plan.tune.benches import measurable

#: A kernel to compile: the key, rows, the schedule.
Job = tuple[ScheduleKey, int, Schedule]


def precompile(keys: Iterable[ScheduleKey], device_class: str, workers: int) -> int:
    """Compiles what a session over `keys` will run. Returns how many kernels that was.

    What does not compile or run is left for the session to find out.

    Raises:
        PlanError: there is no such device.
    """
    index = stack.gpu_of(device_class)
    if index is None:
        raise PlanError(f"kernels for {device_class} are compiled on such a device: there is none")
    jobs = list(distinct(keys))
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_begin, initargs=(index,)) as pool:
        for _ in pool.imap_unordered(_compile, jobs, chunksize=1):
            pass
    return len(jobs)


def distinct(keys: Iterable[ScheduleKey]) -> Iterator[Job]:
    """One job for each kernel that Triton compiles anew, in the order of the keys.

    Triton compiles for a schedule and for what it sees of the arguments: which are 1, which are
    multiples of 16, whether blocks of k come out even, how many leaves there are. The smallest
    weight of those that share a kernel stands for all.
    """
    found: dict[object, Job] = {}
    for key in filter(measurable, keys):
        n, k = key.n or 0, key.k or 0
        for bucket, m in enumerate(BUCKETS):
            for schedule in candidates_at(key, bucket):
                seen = (
                    schedule, key.op, key.tree, key.dtype, key.out_dtype, key.experts,
                    k % 256 if k % 256 in (0, 128) else -1, n % 16 == 0, m == 1, m % 16 == 0,
                )  # fmt: skip
                if seen not in found or _size(key) < _size(found[seen][0]):
                    found[seen] = key, m, schedule
    yield from found.values()


def _size(key: ScheduleKey) -> int:
    return (key.n or 0) * (key.k or 0) * (key.experts or 1)


def _begin(index: int) -> None:
    import torch

    torch.cuda.set_device(index)


def _compile(job: Job) -> None:
    import torch

    from samebits.plan.tune import grouped, linear

    run_once = linear.run_once if job[0].op == "linear" else grouped.run_once
    with suppress(Exception):  # the session meets it again, and says so
        run_once(*job)
    torch.cuda.empty_cache()
