"""Decoding by clusters: the contract's bits for any number of leaves, length, page and garbage."""

from __future__ import annotations

import math

import decode_cases
import pytest
import torch
from decode_cases import DTYPES, contract, evaluated, hopper, operands, same

from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.attention.schedule import DecodeSchedule
from samebits.engines.cuda.attention.spread import (
    HEAD_DIMS,
    LEAVES,
    constants,
    covers,
    cubin,
    leaves_seen,
    spread,
)
from samebits.errors import DeviceError


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: object) -> torch.Tensor:
    q, k, v = (x.cuda() for x in (q, k, v))
    out = torch.full_like(q, math.nan)
    keys = more.pop("keys", k.size(2))
    spread(contract(q.dtype), q, k, v, out, scale=q.size(-1) ** -0.5, keys=keys, **more)  # type: ignore[arg-type]
    return out.cpu()


@pytest.mark.parametrize("leaves", [1, 4, LEAVES])
@pytest.mark.parametrize("d", HEAD_DIMS)
def test_compiles_without_a_gpu(d: int, leaves: int) -> None:
    try:
        nvrtc.version()
    except DeviceError as error:
        pytest.skip(str(error))
    assert cubin(constants(d, 512, True, leaves)).startswith(b"\x7fELF")


def test_leaves_that_a_row_sees() -> None:
    assert [leaves_seen(512, keys, 0) for keys in (0, 1, 512, 513)] == [0, 1, 1, 2]
    for keys in (1, 512, 1000, 5000):
        for window in (1, 2, 100, 512, 513, 514, 2000):
            most = max(
                (end - 1) // 512 - max(0, end - window) // 512 + 1 for end in range(1, keys + 1)
            )
            assert most <= leaves_seen(512, keys, window) <= most + 1


def test_where_a_schedule_takes_work() -> None:
    schedule = DecodeSchedule()
    assert schedule.spreads(8, 4) and schedule.spreads(32, 1) and schedule.spreads(8, 0)
    assert not schedule.spreads(9, 4) and not schedule.spreads(11, 3) and not schedule.spreads(1, 5)
    assert schedule.runs(64, 16) and not schedule.runs(65, 16) and not schedule.runs(8, 3)


def test_takes_few_rows_and_whole_pieces() -> None:
    q, k, v = operands(2, 8, 2, 64, 128, torch.bfloat16)
    c = contract(q.dtype)
    assert covers(c, q, k, v)
    assert not covers(c, q, k, v[..., :64])
    assert not covers(c, q, k[:, :, :, ::2], v)
    wide = torch.zeros(1, 34, 128, dtype=torch.bfloat16)
    assert not covers(c, wide, k[:1], v[:1])


@hopper
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize("keys", [1, 64, 511, 700, 1600, 2100])
def test_bits_of_the_contract(keys: int, d: int, dtype: torch.dtype) -> None:
    q, k, v = operands(2, 6, 2, keys + 70, d, dtype)
    k[:, :, keys:] = v[:, :, keys:] = math.nan  # nobody sees what lies behind
    assert same(run(q, k, v, keys=keys), evaluated(q, k, v, keys))


@hopper
@pytest.mark.parametrize("heads", [1, 8, 9, 16])
def test_any_number_of_query_heads_for_a_kv_head(heads: int) -> None:
    q, k, v = operands(1, heads, 1, 600, 64, torch.bfloat16)
    assert same(run(q, k, v), evaluated(q, k, v, 600))


@hopper
def test_lengths_windows_and_pages() -> None:
    decode_cases.lengths_windows_and_pages(run, (16, 24, 128))


@hopper
def test_what_is_not_finite_stays_where_it_is_seen() -> None:
    decode_cases.what_is_not_finite_stays_where_it_is_seen(run)


@hopper
def test_attention_runs_it_where_the_schedule_has_it() -> None:
    decode_cases.attention_runs_it(DecodeSchedule(spread=8), keys=2000)
