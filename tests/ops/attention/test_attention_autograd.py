"""Gradients of attention: right against fp64, and as reproducible as the result."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_cases import qkv

from samebits import bits
from samebits.ops.attention import attention, reference


def exact(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    sinks: torch.Tensor,
    softcap: float | None = None,
    **positions: Any,
) -> torch.Tensor:
    """Attention in fp64 out of differentiable parts."""
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    seen = torch.from_numpy(reference.visible_keys(q.size(2), k.size(2), **positions))
    s = torch.cat([(s + mask).masked_fill(~seen, -torch.inf),
                   sinks[None, :, None, None].expand(*s.shape[:3], 1)], -1)  # fmt: skip
    return s.softmax(-1)[..., :-1] @ v


def gradients(f: Any, leaves: list[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    leaves = [x.to(dtype).detach().requires_grad_() for x in leaves]
    out = f(*leaves)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    return torch.autograd.grad((out * weight).sum(), leaves)


CASES: list[dict[str, Any]] = [
    {},
    {"causal": True, "q_start": 13},
    {"causal": True, "q_start": 13, "window": 9},
    {"softcap": 1.5},
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("shape", [(2, 1, 40, 53), (2, 4, 40, 53), (1, 1, 20, 33)])
def test_gradients(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    q, k, v = qkv(0, 2, 4, 2, 40, 53, 16, 24)
    g = torch.Generator().manual_seed(1)
    leaves = [q, k, v, torch.randn(shape[0], shape[1], 40, 53, generator=g),
              torch.randn(4, generator=g)]  # fmt: skip

    def ours(q: Any, k: Any, v: Any, mask: Any, sinks: Any) -> Any:
        return attention(q, k, v, mask=mask, sinks=sinks, **options)

    got = gradients(ours, leaves, torch.float32)
    want = gradients(lambda *x: exact(*x, **options), leaves, torch.float64)
    for a, b, x in zip(got, want, leaves, strict=True):
        assert a.shape == x.shape
        assert torch.allclose(a.double(), b, atol=2e-5), float((a - b).abs().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    leaves = [x.float() for x in qkv(2, 1, 4, 2, 30, 30, 16, 16, dtype)]
    got = gradients(lambda *x: attention(*x, causal=True), leaves, dtype)
    zero = torch.full((4,), -torch.inf).double()
    want = gradients(
        lambda *x: exact(*x, torch.zeros(1).double(), zero, causal=True), leaves, torch.float64
    )
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert torch.allclose(a.double(), b, atol=0.05, rtol=0.02)


def test_neighbours_threads_and_padding() -> None:
    """A sequence's gradients do not depend on the batch, the threads or poisoned padding."""
    q, k, v = qkv(3, 3, 4, 2, 40, 40)
    before = torch.get_num_threads()

    def run(x: list[torch.Tensor], **options: Any) -> tuple[torch.Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in x]
        out = attention(*leaves, **options)
        assert isinstance(out, torch.Tensor)
        return torch.autograd.grad(out.float().square().nan_to_num(0).sum(), leaves)

    try:
        whole = run([q, k, v], causal=True)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert all(map(bits.equal, run([q, k, v], causal=True), whole))
            for i in range(3):
                alone = run([x[i : i + 1] for x in (q, k, v)], causal=True)
                assert all(bits.equal(a[0], b[i]) for a, b in zip(alone, whole, strict=True))
    finally:
        torch.set_num_threads(before)
    long = [torch.nn.functional.pad(x, (0, 0, 0, 8), value=float("nan")) for x in (k, v)]
    seen = (torch.arange(48) < 40) & torch.ones(40, 48, dtype=torch.bool).tril()
    padded = run([q, *long], mask=seen)
    assert bits.equal(padded[0], whole[0])
    for a, b in zip(padded[1:], whole[1:], strict=True):
        assert bits.equal(a[:, :, :40], b)
        assert not a[:, :, 40:].any()


def test_no_gradient_is_recorded_without_need() -> None:
    q, k, v = qkv(4, 1, 2, 2, 3, 3)
    assert not attention(q, k, v).requires_grad
    with torch.no_grad():
        assert not attention(q.requires_grad_(), k, v).requires_grad
    out, lse = attention(q, k, v, return_lse=True)
    assert out.requires_grad
    assert not lse.requires_grad
