"""Row operations on CUDA tensors through the front door: layouts, positions, neighbours, errors."""

from __future__ import annotations

import pytest
import torch

from samebits import bits, ops
from samebits.errors import DTypeError

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def rows_of(m: int, n: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    g = torch.Generator(device="cuda").manual_seed(m * n)
    return torch.randn(m, n, generator=g, device="cuda").to(dtype)


OPERATIONS = {
    "softmax": lambda x: ops.softmax(x),
    "log_softmax": lambda x: ops.log_softmax(x),
    "logsumexp": lambda x: ops.logsumexp(x, -1),
    "token_logprob": lambda x: ops.token_logprob(x, torch.zeros(len(x), dtype=torch.int64).cuda()),
    "sum": lambda x: ops.sum(x, -1),
    "var": lambda x: ops.var(x, -1),
    "rms_norm": lambda x: ops.rms_norm(x, (x.shape[-1],)),
    "layer_norm": lambda x: ops.layer_norm(x, (x.shape[-1],)),
    "silu": lambda x: ops.silu(x),
}


@pytest.mark.parametrize("n", [1765, 9000])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_row_has_its_bits_in_every_batch(name: str, n: int) -> None:
    """ROW, POS and LAYOUT: F1 (odd lengths), L2 (norms), L5 and Q2 (log-softmax)."""
    run = OPERATIONS[name]
    x = rows_of(600, n)
    whole = run(x)
    for m in (1, 2, 3, 7, 64, 133, 257, 599):
        assert bits.equal(run(x[:m]), whole[:m]), m
        assert bits.equal(run(x[-m:]), whole[-m:]), m
    order = torch.randperm(600, device="cuda")
    assert bits.equal(run(x[order]), whole[order])
    padded = torch.empty(600, n + 3, dtype=x.dtype, device="cuda")[:, 1 : n + 1].copy_(x)
    assert bits.equal(run(padded), whole)
    assert bits.equal(run(x.t().contiguous().t()), whole)
    dirty = x.clone()
    dirty[1::2] = torch.nan
    assert bits.equal(run(dirty)[::2], whole[::2])


@pytest.mark.parametrize("dim", [0, 1, (0, 2), None])
@pytest.mark.parametrize("name", ["sum", "var", "prod"])
def test_any_axes_have_the_tree_of_the_last(name: str, dim: int | tuple[int, ...] | None) -> None:
    x = rows_of(30, 77 * 13, torch.float32).view(30, 77, 13)
    axes = tuple(range(3)) if dim is None else (dim,) if isinstance(dim, int) else dim
    kept = [a for a in range(3) if a not in axes]
    flat = x.permute(*kept, *axes).reshape(*(x.shape[a] for a in kept), -1).contiguous()
    run = getattr(ops, name)
    assert bits.equal(run(x, dim), run(flat, -1))


def test_layer_norm_of_many_rows() -> None:
    """L2: 24 sequences of 493 tokens against 23 of them."""
    x = torch.tanh(rows_of(24 * 493, 768)).view(24, 493, 768)
    whole = ops.layer_norm(x, (768,))
    for m in (1, 16, 17, 23):
        assert bits.equal(ops.layer_norm(x[:m], (768,)), whole[:m])


def test_fused_is_unfused() -> None:
    """H1: a residual, a gate, a log-probability have the bits of the separate operations."""
    x, r, w = rows_of(300, 4096), rows_of(300, 4096) * 3, rows_of(1, 4096)[0]
    y, total = ops.rms_norm(x, (4096,), w, 1e-6, residual=r)
    assert bits.equal(total, x + r)
    assert bits.equal(y, ops.rms_norm(x + r, (4096,), w, 1e-6))
    assert bits.equal(ops.silu_mul(x, r), ops.silu(x) * r)
    assert bits.equal(ops.gelu_mul(x, r), ops.gelu(x) * r)
    assert bits.equal(ops.gelu_mul(x, r, "tanh"), ops.gelu(x, "tanh") * r)
    logits = rows_of(9, 128256)
    ids = torch.arange(9, device="cuda") * 1000
    want = ops.log_softmax(logits, dtype=torch.float32).gather(1, ids[:, None])[:, 0]
    assert bits.equal(ops.token_logprob(logits, ids, dtype=torch.float32), want)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_log_probabilities_do_not_see_the_micro_batch(batch: int) -> None:
    """Q1: the ratio of a policy to itself is exactly one."""
    logits = rows_of(64, 128256)
    ids = torch.randint(0, 128256, (64,), device="cuda")
    whole = ops.token_logprob(logits, ids, dtype=torch.float32)
    parts = [
        ops.token_logprob(logits[i : i + batch], ids[i : i + batch], dtype=torch.float32)
        for i in range(0, 64, batch)
    ]
    assert bits.equal(torch.cat(parts), whole)


def test_rotary_of_every_layout() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 7, 96, generator=g).bfloat16()
    cos, sin = (torch.rand(50, 48, generator=g).bfloat16() for _ in range(2))
    at = torch.randint(0, 50, (2, 5), generator=g)
    for interleaved in (False, True):
        for c, s in ((cos, sin), (cos.repeat(1, 2), sin.repeat(1, 2))):
            want = ops.rotary(x, c, s, interleaved, positions=at)
            moved = [t.cuda() for t in (x, c, s)]
            got = ops.rotary(*moved, interleaved, positions=at.cuda())
            assert bits.equal(got.cpu(), want)
            view = x.transpose(1, 2).cuda()  # [B, heads, T, D], as in transformers
            factors = [f[at][:, None].cuda() for f in (c, s)]
            got = ops.rotary(view, factors[0], factors[1], interleaved)
            assert bits.equal(got.cpu(), want.transpose(1, 2))


def test_what_is_refused() -> None:
    x = rows_of(2, 8)
    with pytest.raises(DTypeError, match="one device"):
        ops.rms_norm(x, (8,), torch.ones(8))
    with pytest.raises(DTypeError, match="CPU or CUDA"):
        ops.softmax(x.double())
    with pytest.raises(DTypeError, match="in CPU memory"):
        ops.softplus(x)
    for mixed in (
        lambda: ops.silu_mul(x, x.cpu()),
        lambda: ops.rotary(x, x.cpu(), x),
        lambda: ops.rotary(x.cpu(), x, x.cpu()),
        lambda: ops.layer_norm(x.cpu(), (8,), x[0]),
        lambda: ops.token_logprob(x, torch.tensor([1, 2])),
        lambda: ops.linear(x, x.cpu()),
        lambda: ops.linear(x.cpu(), x),
        lambda: ops.mm(x, x.cpu().mT),
        lambda: ops.embedding(torch.tensor([1]), x),
        lambda: ops.scatter_add(x, 0, torch.zeros(2, 8, dtype=torch.int64), x),
        lambda: ops.attention(*(t.view(1, 1, 2, 8) for t in (x, x.cpu(), x))),
    ):
        with pytest.raises(DTypeError, match="cpu"):
            mixed()
    assert ops.token_logprob(x, torch.tensor([8, -1]).cuda()).isnan().all()
    cache = torch.ones(3, 4, dtype=x.dtype, device="cuda")
    at = torch.tensor([3, -1]).cuda()
    assert ops.rotary(x[:, None], cache, cache, positions=at).isnan().all()
