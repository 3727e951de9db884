"""AttentionContract.evaluate: one row's bits are the same in every company, on both machines."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from samebits import bits
from samebits.contract import IEEE_FMA, AttentionContract, hopper_attention
from samebits.contract import numerics as nx
from samebits.contract.attention import fold_leaves, power
from samebits.errors import ContractError, DTypeError, ShapeError

CPU = AttentionContract(IEEE_FMA, "bf16", "bf16", leaf=64)
HOPPER = hopper_attention("bf16", leaf=64)
BOTH = pytest.mark.parametrize("contract", [CPU, HOPPER], ids=["cpu", "sm_90"])


def qkv(rows: int, keys: int, d: int = 32, dv: int = 8) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(keys)
    return [torch.randn(s, generator=g).bfloat16() for s in ((rows, d), (keys, d), (keys, dv))]


@BOTH
def test_prefill_chunks_and_decode_agree(contract: AttentionContract) -> None:
    q, k, v = qkv(150, 150)
    whole = contract.evaluate(q, k, v, causal=True)
    assert whole.shape == (150, 8)
    for start, stop in ((0, 1), (63, 65), (100, 150), (149, 150)):
        part = contract.evaluate(q[start:stop], k[:stop], v[:stop], causal=True)
        assert bits.equal(part, whole[start:stop])


@BOTH
def test_keys_that_are_not_seen_may_hold_anything(contract: AttentionContract) -> None:
    q, k, v = qkv(3, 200)
    seen = np.random.default_rng(0).random((3, 200)) < 0.5
    seen[:, 128:192] = False  # a leaf that nobody sees
    seen[2] = False
    want = contract.evaluate(q, k, v, seen=seen)
    for i in range(3):
        poisoned = [t.clone() for t in (k, v)]
        for t in poisoned:
            t[~torch.from_numpy(seen[i])] = torch.nan
        got = contract.evaluate(q[i : i + 1], *poisoned, seen=seen[i : i + 1])
        assert bits.equal(got, want[i : i + 1])
    assert (bits.view(want[2]) == 0).all()


def test_seen_keys_are_counted_on_a_cpu_and_placed_on_a_gpu() -> None:
    """Left padding moves no bit where seen keys are counted; where leaves are absolute it may."""
    q, k, v = qkv(2, 150)
    pad = [torch.cat([torch.full((37, t.shape[1]), torch.nan).bfloat16(), t]) for t in (k, v)]
    seen = np.arange(187) >= 37
    assert bits.equal(CPU.evaluate(q, *pad, seen=seen), CPU.evaluate(q, k, v))
    assert not bits.equal(HOPPER.evaluate(q, *pad, seen=seen), HOPPER.evaluate(q, k, v))


@BOTH
def test_it_is_attention(contract: AttentionContract) -> None:
    q, k, v = (t[None] for t in qkv(5, 130))
    bias = torch.randn(5, 130, generator=torch.Generator().manual_seed(1))
    got = contract.evaluate(q, k, v, bias=bias.numpy())
    want = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=bias.double()
    )
    assert (got - want).abs().max() < 0.02  # p is rounded to bf16: 2^-9
    capped = contract.evaluate(q, k, v, softcap=2.0, scale=0.5, sink=0.7)
    s = 2 * torch.tanh(q.double() @ k.double().mT * 0.5 / 2)
    e = torch.exp(s)
    want = e @ v.double() / (e.sum(-1, keepdim=True) + math.exp(0.7))
    assert (capped - want).abs().max() < 0.02


def test_a_maximum_may_be_raised_at_any_time() -> None:
    """Rescaling by a power of two rounds nothing: in one step, in two, or early, the same bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(16).astype(np.float32) for _ in range(2))
    m = [np.float32(x) for x in (-3, 4, 9)]
    direct = fold_leaves(m[0], a, m[2], b)[1]
    raised = nx.mul32(a, power(m[0] - m[1]))
    assert (fold_leaves(m[1], raised, m[2], b)[1].view(np.uint32) == direct.view(np.uint32)).all()
    assert power(np.float32(-126)) == 2.0**-126
    assert power(np.float32(-127)) == power(np.float32(-np.inf)) == power(np.float32(np.nan)) == 0


def test_what_cannot_be_evaluated() -> None:
    q, k, v = qkv(2, 9)
    for call, error in [
        (lambda: CPU.evaluate(q, k, v, out_dtype="fp16"), ContractError),
        (lambda: CPU.evaluate(q, k.float(), v), DTypeError),
        (lambda: CPU.evaluate(q, k[:8], v), ShapeError),
        (lambda: CPU.evaluate(q, k[:, :5], v), ShapeError),
        (lambda: CPU.evaluate(q, k, v, engine="abacus"), ContractError),
    ]:
        with pytest.raises(error):
            call()
