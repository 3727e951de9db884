"""The kernels of the portable contracts, in Triton's interpreter or on a GPU, against a CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from samebits.bits import view as words
from samebits.contract import portable_attention, portable_linear
from samebits.engines import family
from samebits.engines.cpu import pointwise as cpu
from samebits.engines.triton.attention import run
from samebits.engines.triton.attention.schedule import AttentionSchedule
from samebits.engines.triton.linear.run import run as run_linear
from samebits.engines.triton.linear.schedule import GemmSchedule
from samebits.engines.triton.rows import pointwise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Where functions have their edges, besides the numbers that are drawn.
EDGES = (
    0.0, -0.0, 1.0, -1.0, 0.5, 4.0, 20.0, -20.0, 88.7, 89.0, -88.0, -103.9, -104.0, 127.0, 128.0,
    -126.0, -149.0, -150.5, 1e-45, -1e-45, 1.2e-38, 3.4e38, -3.4e38, math.inf, -math.inf, math.nan,
    -64330.40234375, 102233.7421875,  # a multiple of pi / 2 takes nearly all of them
    131071.9, 131072.0, 1e10, -1e22, 3.0e38, 3.1415927, 1.5707964, 0.70710677, 1.4142135,
)  # fmt: skip


@pytest.fixture
def portable() -> Any:
    family.put_in_force("portable")
    yield
    family.put_in_force("device")


def numbers(count: int) -> torch.Tensor:
    """Edges, then numbers of every magnitude."""
    bits = torch.randint(-(2**31), 2**31 - 1, (count,), generator=torch.Generator().manual_seed(1))
    near = torch.randn(count, generator=torch.Generator().manual_seed(2)) * 8
    return torch.cat([torch.tensor(EDGES), bits.to(torch.int32).view(torch.float32), near])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(pointwise.PORTABLE_FUNCTIONS))
def test_functions_have_the_bits_of_a_cpu(portable: None, name: str, dtype: torch.dtype) -> None:
    x = numbers(400 if DEVICE == "cpu" else 1 << 20).to(dtype)
    got = pointwise.unary(name, x.to(DEVICE)).cpu()
    want = cpu.unary(name, x)
    different = words(got) != words(want)
    assert not different.any(), (x[different][:4], got[different][:4], want[different][:4])


def operands(
    heads: tuple[int, int], rows: int, keys: int, d: int, dv: int, dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(2, h, t, c, generator=g).to(dtype)
        for h, t, c in ((heads[0], rows, d), (heads[1], keys, d), (heads[1], keys, dv))
    )
    return q, k, v


def holds(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, start: int = 0,
    mask: torch.Tensor | None = None, hides: float = -math.inf, **options: Any,
) -> None:  # fmt: skip
    """Runs the kernel and compares results and logsumexps with the contract's own."""
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[q.dtype]
    contract = portable_attention(name)
    scale = options.pop("scale", 1 / math.sqrt(q.size(-1)))
    batch, heads, rows, _ = q.shape
    keys = k.size(2)
    full = None if mask is None else mask.expand(batch, heads, rows, keys)
    sinks = options.get("sinks")
    on_device = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    out, lse = run.dense(
        contract, AttentionSchedule(block_m=16), q.to(DEVICE), k.to(DEVICE), v.to(DEVICE),
        run.Options(scale, lse=True, **on_device), q_start=start,
        mask=None if full is None else full.to(DEVICE), masked_at=hides,
    )  # fmt: skip
    assert lse is not None
    position = start + np.arange(rows)[:, None]
    key = np.arange(keys)[None]
    seen = np.ones((batch, heads, rows, keys), bool)
    if options.get("causal"):
        seen &= key <= position
    if options.get("window"):
        seen &= (key > position - options["window"]) & (key < position + options["window"])
    bias = None
    if full is not None and full.dtype is torch.bool:
        seen &= full.numpy()
    elif full is not None:
        bias = full.float().numpy()
        seen &= ~(bias <= hides)
    group = heads // k.size(1)
    for b in range(batch):
        for h in range(heads):
            call = {
                "seen": seen[b, h], "scale": scale, "softcap": options.get("softcap"),
                "bias": None if bias is None else bias[b, h],
                "sink": None if sinks is None else float(sinks[h]),
            }  # fmt: skip
            mine = q[b, h], k[b, h // group], v[b, h // group]
            want = contract.evaluate(*mine, out_dtype=name, **call)
            assert torch.equal(words(out[b, h].cpu()), words(want)), (b, h, options)
            sums = contract.logsumexp(*mine, **call)
            assert torch.equal(words(lse[b, h].cpu()), words(sums)), (b, h, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_counts_seen_keys(dtype: torch.dtype) -> None:
    holds(*operands((4, 2), 5, 5, 24, 16, dtype, 1), causal=True)
    holds(*operands((2, 2), 3, 70, 33, 40, dtype, 2))
    holds(*operands((2, 1), 2, 1100, 16, 16, dtype, 3), causal=True, start=1098)
    holds(*operands((2, 1), 3, 620, 16, 16, dtype, 4), causal=True, start=617, window=530)
    holds(*operands((2, 1), 3, 40, 16, 16, dtype, 5), window=7, softcap=2.0, start=12)


def test_attention_with_masks_sinks_and_a_negative_scale() -> None:
    q, k, v = operands((4, 2), 4, 600, 16, 16, torch.float32, 6)
    g = torch.Generator().manual_seed(7)
    mask = torch.rand(2, 1, 4, 600, generator=g) > 0.05
    mask[1, :, 2] = False  # a row that sees nothing
    holds(q, k, v, mask=mask)
    holds(q, k, v, mask=mask[:, :, :1], causal=True, start=596)
    added = torch.randn(1, 4, 4, 600, generator=g)
    added[..., 5] = -math.inf
    holds(q, k, v, mask=added, scale=-0.3)
    sinks = torch.tensor([0.5, -math.inf, 40.0, -60.0])
    holds(q, k, v, mask=mask, sinks=sinks)


def test_what_a_row_does_not_see_touches_nothing() -> None:
    q, k, v = operands((2, 1), 6, 64, 16, 16, torch.float32, 8)
    v[0, 0, 3], v[1, 0, 2], k[1, 0, 5] = math.inf, math.nan, math.nan
    v[0, 0, 4] = -math.inf
    holds(q, k, v, causal=True)
    # A chain that has underflowed to -0 keeps its sign, whatever other rows of its tile see.
    q, k, v = operands((1, 1), 6, 40, 16, 16, torch.float32, 9)
    q, k = q * 30, k * 30
    v = -torch.full_like(v, 1e-44)
    holds(q, k, v, causal=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_16_bits_are_chains_of_fma(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(3)
    x, w = (torch.randn(r, 75, generator=g).to(dtype) for r in (20, 18))
    name = "bf16" if dtype is torch.bfloat16 else "fp16"
    contract = portable_linear(name, name)
    y = torch.empty(20, 18, dtype=torch.float32, device=DEVICE)
    schedule = GemmSchedule(block_m=16, block_n=16, block_k=32)
    run_linear(contract, schedule, x.to(DEVICE), w.to(DEVICE), y)
    assert torch.equal(words(y.cpu()), words(contract.evaluate(x, w)))
