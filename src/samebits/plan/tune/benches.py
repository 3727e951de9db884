"""Which operands a key is measured on: a bench for every family that can be tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from samebits.engines.schedule import ScheduleKey
from samebits.errors import PlanError
from samebits.plan import stack
from samebits.plan.tune.search import Bench

#: Opens the operands of a key on the device, and frees them.
Open = Callable[[ScheduleKey], AbstractContextManager[Bench]]


def measurable(key: ScheduleKey) -> bool:
    """Whether there is a bench for the key's family and dtype; others keep their defaults."""
    return key.op in ("linear", "grouped") and key.dtype in ("bf16", "fp16", "fp32")


def benches(device_class: str) -> Open:
    """Opens the operands of a key on this machine's GPU of a device class.

    Raises:
        PlanError: there is no such GPU; on opening: the family has no bench.
    """
    index = stack.gpu_of(device_class)
    if index is None:
        raise PlanError(
            f"schedules for {device_class} are measured on such a device: there is none"
        )
    from samebits.plan.tune.gpu import DTYPES, Pools
    from samebits.plan.tune.grouped import GroupedBench
    from samebits.plan.tune.linear import LinearBench

    device = torch.device("cuda", index)
    pools: dict[str, Pools] = {}

    @contextmanager
    def opened(key: ScheduleKey) -> Iterator[Bench]:
        if not measurable(key):
            raise PlanError(f"{key}: no bench makes operands for it")
        if key.dtype not in pools:
            pools[key.dtype] = Pools(device, DTYPES[key.dtype])
        with torch.cuda.device(device):
            kind = LinearBench if key.op == "linear" else GroupedBench
            yield kind(key, pools[key.dtype])
            torch.cuda.synchronize()

    return opened
