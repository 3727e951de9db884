"""Attention under the switch: every route to it gives the bits of samebits.ops.attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samebits as sb
from samebits import bits
from samebits.errors import DTypeError, ShapeError, UncoveredError
from samebits.ops.attention import attention


def qkv(dtype: torch.dtype = torch.float32, heads: int = 4) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = ((2, heads, 70, 16), (2, 4, 70, 16), (2, 4, 70, 16))
    return [torch.randn(*shape, generator=g).to(dtype) for shape in shapes]


TRIANGLE = torch.ones(70, 70, dtype=torch.bool).tril()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_route(dtype: torch.dtype) -> None:
    q, k, v = qkv(dtype)
    want = attention(q, k, v, causal=True)
    additive = torch.zeros(70, 70, dtype=dtype).masked_fill(~TRIANGLE, -torch.inf)
    stock = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with sb.deterministic():
        routes = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
            F.scaled_dot_product_attention(q, k, v, attn_mask=TRIANGLE),
            F.scaled_dot_product_attention(q, k, v, attn_mask=additive),
            F.scaled_dot_product_attention(q[0], k[0], v[0], is_causal=True)[None],
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0],
        ]
        with torch.inference_mode():
            routes.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        for backend in (nn.attention.SDPBackend.MATH, nn.attention.SDPBackend.FLASH_ATTENTION):
            with nn.attention.sdpa_kernel(backend):
                routes.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    for route in routes:
        assert bits.equal(route, want[: len(route)])
    # stock is back
    assert bits.equal(F.scaled_dot_product_attention(q, k, v, is_causal=True), stock)


def test_top_left_causal_as_in_torch() -> None:
    """is_causal with more keys than queries keeps torch's meaning: row i sees keys 0..i."""
    q, k, v = qkv()
    with sb.deterministic():
        got = F.scaled_dot_product_attention(q[:, :, :9], k, v, is_causal=True)
    stock = F.scaled_dot_product_attention(q[:, :, :9], k, v, is_causal=True)
    assert torch.allclose(got, stock, atol=1e-5)


def test_decode_equals_prefill() -> None:
    q, k, v = qkv(heads=8)
    with sb.deterministic():
        full = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        for t in range(70):
            row = slice(t, t + 1)
            step = F.scaled_dot_product_attention(
                q[:, :, row], k[:, :, : t + 1], v[:, :, : t + 1], enable_gqa=True
            )
            assert bits.equal(step, full[:, :, row])


def test_refusals() -> None:
    q, k, v = qkv()
    with sb.deterministic():
        with pytest.raises(UncoveredError, match="dropout"):
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        with pytest.raises(UncoveredError, match="float64"):
            F.scaled_dot_product_attention(q.double(), k.double(), v.double())
        with pytest.raises(DTypeError, match="float16"):
            F.scaled_dot_product_attention(q, k.half(), v)
        with pytest.raises(ShapeError, match="enable_gqa"):
            F.scaled_dot_product_attention(torch.cat([q, q], 1), k, v)
        with pytest.raises(UncoveredError, match="_native_multi_head_attention"):
            torch._native_multi_head_attention(
                q[0], q[0], q[0], 16, 2, torch.zeros(48, 16), torch.zeros(48), torch.zeros(16, 16),
                torch.zeros(16), None, False,
            )  # fmt: skip
