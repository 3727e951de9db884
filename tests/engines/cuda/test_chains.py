"""Chains of fma in CUDA C++: what they take, that they compile, and their bits on a GPU."""

from __future__ import annotations

import pytest
import torch

from samebits.bits import view
from samebits.contract import LinearContract, Split, hopper_mma, portable_linear
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.linear import chains, few, fma
from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.errors import DeviceError
from samebits.plan import families

FP32 = portable_linear("fp32", "fp32")
#: All for few rows, a few of the others.
SAMPLE = (*few.TILES, *fma.TILES[:12], *fma.TILES[12::11], fma.TILES[-1])


def test_what_the_kernels_do_not_take_is_said() -> None:
    x, w, y = torch.zeros(8, 64), torch.zeros(16, 64), torch.zeros(8, 16)
    assert chains.refusal(FP32, x, w, y) is None
    assert chains.refusal(FP32, x, w, y, torch.zeros(16).expand(8, 16)) is None
    assert chains.refusal(FP32, x[:1], w, y[:1], torch.zeros(16).expand(1, 16)) is None
    tensor_core = LinearContract(Split(4), hopper_mma("bf16"), "bf16", "bf16")
    refused = {
        "the contract is no chain of fma": (tensor_core, x, w, y),
        "the product is batched": (FP32, x[None], w[None], y),
        "rows of x are not aligned": (FP32, x[:, 1:], w[:, 1:], y),
        "rows of w are not aligned": (FP32, x, torch.zeros(64, 16).t(), y),
        "columns of y are apart": (FP32, x, w, torch.zeros(16, 8).t()),
        "an axis is empty": (FP32, x[:0], w, y[:0]),
        "c is no row": (FP32, x, w, y, torch.zeros(8, 16)),
    }
    for why, operands in refused.items():
        assert (chains.refusal(*operands) or "").startswith(why)
    relu = portable_linear("fp32", "fp32", ("alpha", "bias", "relu"))
    assert "epilogue" in (chains.refusal(relu, x, w, y) or "")


@pytest.mark.parametrize("n", [24, 576, 4096, 14336])
def test_defaults_are_chosen_for_their_rows(n: int) -> None:
    for device, dtype in (("sm_90", "fp32"), ("portable", "bf16")):
        key = ScheduleKey(op="linear", device=device, dtype=dtype, out_dtype=dtype, tree="chain",
                          n=n, k=4096)  # fmt: skip
        for bucket, m in enumerate(BUCKETS):
            chosen = families.default_at(key, bucket)
            assert isinstance(chosen, few.FewSchedule) == few.faster(m, n)
            assert isinstance(chosen, chains.ChainSchedule) and chosen.rows < 2 * max(m, 4)
            assert families.candidates_at(key, bucket)[0] == chosen


def test_few_rows_get_low_tiles_and_all_processors_work() -> None:
    for m in (1, 2, 8, 16, 32, 64, 96, 128, 333, 512):
        chosen = chains.choose(m, 4096, 4096)
        tiles = chosen.tiles(m, 4096)
        assert chosen.rows < 2 * m and 112 <= tiles <= 264


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (1, 1024, (1, 8)), (1, 2048, (1, 16)), (2, 1024, (2, 8)), (4, 1024, (4, 8)),
        (8, 1024, (8, 8)), (2, 2048, (2, 16)), (4, 2048, (4, 16)), (8, 256, (2, 8)),
        (8, 2048, None), (1, 4096, None), (4, 4096, None), (16, 1024, None),
    ],
)  # fmt: skip
def test_few_rows_and_columns_get_a_warp_a_tile(
    m: int, n: int, tile: tuple[int, int] | None
) -> None:
    """As an H200's times have it, or as its times say of shapes beside those."""
    chosen = chains.choose(m, n, 4096)
    found = (chosen.rows, chosen.columns) if isinstance(chosen, few.FewSchedule) else None
    assert found == tile
    assert chosen.tiles(m, n) <= 132


def test_what_no_block_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 64 results of a warp"):
        few.FewSchedule(rows=8, columns=16)
    with pytest.raises(ValueError, match="bytes of shared memory"):
        fma.FmaSchedule(depth=64, stages=8)
    with pytest.raises(ValueError, match="more than ahead"):
        fma.FmaSchedule(ahead=3, unroll=2)
    with pytest.raises(ValueError, match="too few warps for blocks of 256"):
        fma.FmaSchedule(warp_columns=1, warp_rows=1, thread_rows=1, thread_columns=1, depth=256)


@pytest.mark.parametrize("types", [(0, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("schedule", (*few.TILES[::3], *fma.TILES[::29]), ids=repr)
def test_they_compile(schedule: chains.ChainSchedule, types: tuple[int, int]) -> None:
    try:
        nvrtc.version()
    except DeviceError:
        pytest.skip("no NVRTC here")
    assert chains.compiled(schedule, *types).startswith(b"\x7fELF")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("schedule", SAMPLE, ids=repr)
def test_their_bits_are_the_contracts(schedule: chains.ChainSchedule, dtype: torch.dtype) -> None:
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    contract = portable_linear(name, name)
    for m, n, k in ((1, 33, 5), (4, 130, 512), (61, 200, 1031), (9, 57, 2821)):
        g = torch.Generator().manual_seed(m)
        wide = -(-k // 8) * 8
        x, w, c = (
            torch.randn(*s, generator=g).to(dtype).cuda() for s in ((m, wide), (n, wide), (n,))
        )
        x[0, 3], w[n // 2, 2], x[-1] = float("nan"), float("inf"), -0.0
        x, w = x[:, :k], w[:, :k]
        for out in {dtype, torch.float32}:
            y = torch.empty(m, n, dtype=out, device="cuda")
            assert chains.run(contract, schedule, x, w, y, c.expand(m, n), 0.5, 2.0) is None
            want = contract.evaluate(
                x.cpu(), w.cpu(), c.cpu(), out, alpha=0.5, beta=2.0
            )  # fmt: skip
            assert torch.equal(view(y.cpu()), view(want))  # type: ignore[arg-type]
