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


def test_gradients() -> None:
    """Autograd through the switch is autograd through the op, and close to torch's own."""
    tensors = qkv()
    mask = torch.randn(4, 70, 70, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(2, 4, 70, 16, generator=torch.Generator().manual_seed(2))

    def gradients(f, dtype=torch.float32):  # type: ignore[no-untyped-def]
        leaves = [x.to(dtype).requires_grad_() for x in (*tensors, mask)]
        out = f(*leaves)
        return torch.autograd.grad((out * weight.to(dtype)).sum(), leaves)

    def sdpa(q, k, v, m):  # type: ignore[no-untyped-def]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    want = gradients(lambda q, k, v, m: attention(q, k, v, mask=m))
    exact = gradients(sdpa, torch.float64)
    with sb.deterministic():
        got = gradients(sdpa)
        leaves = [x.clone().requires_grad_() for x in tensors]
        out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*leaves, 0.0, True)
        flash = torch.autograd.grad((out * weight).sum(), leaves)
        leaves = [x.clone().requires_grad_() for x in tensors]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        causal = torch.autograd.grad((out * weight).sum(), leaves)
    assert all(bits.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(torch.allclose(a.double(), b, atol=1e-5) for a, b in zip(got, exact, strict=True))
    assert all(bits.equal(a, b) for a, b in zip(flash, causal, strict=True))


def test_function_transforms() -> None:
    """torch.func.grad, vmap and torch.compile reach the same kernels."""
    q, k, v = qkv()

    def loss(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=TRIANGLE).sum()

    leaf = q.clone().requires_grad_()
    with sb.deterministic():
        (want,) = torch.autograd.grad(loss(leaf), leaf)
        assert bits.equal(torch.func.grad(loss)(q), want)
        sdpa = F.scaled_dot_product_attention
        full = sdpa(q, k, v)
        assert bits.equal(torch.vmap(sdpa)(q, k, v), full)
        assert bits.equal(torch.vmap(torch.vmap(sdpa))(q, k, v), full)
        by_head = torch.vmap(sdpa, (1, None, 1), 1)(q, k[:, 0], v)
        spread = k[:, :1].expand(-1, 4, -1, -1)
        assert bits.equal(by_head, sdpa(q, spread, v))
        masked = torch.vmap(lambda q, k, v: sdpa(q, k, v, TRIANGLE))(q, k, v)
        assert bits.equal(masked, sdpa(q, k, v, TRIANGLE))
        each = torch.vmap(torch.func.grad(lambda q, k, v: sdpa(q, k, v).sum()))(q, k, v)
        assert bits.equal(each, torch.func.grad(lambda q: sdpa(q, k, v).sum())(q))
        compiled = torch.compile(loss, fullgraph=True)
        assert bits.equal(compiled(q), loss(q))
        (got,) = torch.autograd.grad(compiled(leaf), leaf)
        assert bits.equal(got, want)


def test_modules() -> None:
    """nn.MultiheadAttention and the encoder layer: a row of the batch is the row alone."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    mha = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(5, 40, 32)
    pad = torch.zeros(5, 40, dtype=torch.bool)
    pad[:, 37:] = True
    with sb.deterministic(), torch.no_grad():
        for weights in (False, True):
            whole = mha(x, x, x, need_weights=weights, key_padding_mask=pad)[0]
            for i in range(5):
                row = slice(i, i + 1)
                alone = mha(x[row], x[row], x[row], need_weights=weights,
                            key_padding_mask=pad[row])[0]  # fmt: skip
                assert bits.equal(alone, whole[row])
        whole = layer(x, src_key_padding_mask=pad)
        for i in range(5):
            row = slice(i, i + 1)
            assert bits.equal(layer(x[row], src_key_padding_mask=pad[row]), whole[row])
            short = layer(x[row, :37])
            assert bits.equal(short, whole[row, :37])


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
