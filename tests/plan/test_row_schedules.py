"""Schedules of row operations: defaults and candidates that every kernel can run."""

from __future__ import annotations

import pytest

from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.engines.triton.rows.schedule import LANES, RowSchedule, leaves_of, width_of
from samebits.plan.families import FAMILIES, candidates_at

OPS = ["rms_norm", "layer_norm", "softmax", "log_softmax", "logsumexp"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n", [1, 2, 100, 128, 1024, 1765, 4096, 8192, 16384, 152064])
def test_every_bucket_has_schedules(op: str, n: int) -> None:
    assert op in FAMILIES
    key = ScheduleKey(op=op, device="sm_90", dtype="bf16", out_dtype="bf16", k=n)
    for bucket in range(len(BUCKETS) + 1):
        for schedule in candidates_at(key, bucket):
            assert isinstance(schedule, RowSchedule)
            assert schedule.num_warps in (1, 2, 4, 8, 16)
            assert schedule.rows & (schedule.rows - 1) == 0
            assert schedule.rows == 1 or width_of(n) < LANES


def test_cuts() -> None:
    assert [width_of(n) for n in (0, 1, 2, 3, 128, 129, 1024, 5000)] == [
        2, 2, 2, 4, 128, 256, 1024, 1024,
    ]  # fmt: skip
    assert [leaves_of(n) for n in (0, 1, 8192, 8193, 152064)] == [1, 1, 1, 2, 19]
