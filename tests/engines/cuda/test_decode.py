"""The Hopper decode kernel: the contract's bits for any run of leaves, length, page and garbage."""

from __future__ import annotations

import math

import decode_cases
import pytest
import torch
from decode_cases import DTYPES, contract, evaluated, hopper, operands, same

from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.attention.decode import HEAD_DIMS, constants, covers, cubin, decode
from samebits.engines.cuda.attention.schedule import DecodeSchedule
from samebits.errors import DeviceError


def run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: int = 132, **more: object
) -> torch.Tensor:
    q, k, v = (x.cuda() for x in (q, k, v))
    out = torch.full_like(q, math.nan)
    keys = more.pop("keys", k.size(2))
    decode(
        contract(q.dtype), DecodeSchedule(blocks=blocks), q, k, v, out,
        scale=q.size(-1) ** -0.5, keys=keys, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return out.cpu()


@pytest.mark.parametrize("d", HEAD_DIMS)
def test_compiles_without_a_gpu(d: int) -> None:
    try:
        nvrtc.version()
    except DeviceError as error:
        pytest.skip(str(error))
    assert cubin(constants(d, 512, True, 64)).startswith(b"\x7fELF")


def test_takes_what_the_copy_engine_can_read() -> None:
    q, k, v = operands(2, 8, 2, 64, 128, torch.bfloat16)
    c = contract(q.dtype)
    assert covers(c, q, k, v, None) and covers(c, q, k, v, 16) and covers(c, q, k, v, 128)
    assert not covers(c, q, k, v, 24)
    assert not covers(c, q, k, v[..., :64], None)
    assert not covers(c, q, k[:, :, :, ::2], v, None)
    assert not covers(c, q, k[:1].expand(2, 2, 64, 128), v, None)
    wide = torch.zeros(1, 130, 128, dtype=torch.bfloat16)
    assert not covers(c, wide, k[:1, :1], v[:1, :1], None)


@hopper
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize("keys", [1, 64, 511, 700, 1600])
def test_bits_of_the_contract(keys: int, d: int, dtype: torch.dtype) -> None:
    q, k, v = operands(2, 6, 2, keys + 70, d, dtype)
    k[:, :, keys:] = v[:, :, keys:] = math.nan  # nobody sees what lies behind
    want = evaluated(q, k, v, keys)
    for blocks in (1, 5, 132):
        assert same(run(q, k, v, blocks, keys=keys), want)


@hopper
@pytest.mark.parametrize("heads", [1, 8, 9, 33, 64])
def test_any_number_of_query_heads_for_a_kv_head(heads: int) -> None:
    q, k, v = operands(1, heads, 1, 600, 64, torch.bfloat16)
    assert same(run(q, k, v), evaluated(q, k, v, 600))


@hopper
def test_lengths_windows_and_pages() -> None:
    decode_cases.lengths_windows_and_pages(run, (16, 64, 128))


@hopper
def test_what_is_not_finite_stays_where_it_is_seen() -> None:
    decode_cases.what_is_not_finite_stays_where_it_is_seen(run)


@hopper
def test_attention_runs_it_where_the_schedule_has_it() -> None:
    decode_cases.attention_runs_it(DecodeSchedule(spread=0, leaves=1), keys=4096)
