"""Mixture of experts: a token's bits are its own (faults I1, I5, I6)."""

from __future__ import annotations

import pytest
import torch

import samebits as sb
from interpreter import INTERPRETED
from samebits import bits
from samebits.contract import LinearContract
from samebits.errors import DTypeError, SamebitsError, ShapeError
from samebits.ops.moe import reference

DEVICE = "cpu" if INTERPRETED else "cuda"
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def values(seed: int, *shape: int, dtype: torch.dtype, spread: int = 6) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    return (x * 2.0 ** torch.randint(-spread, spread, shape, generator=g)).to(dtype)


def cpu_contract(dtype: torch.dtype) -> LinearContract:
    return sb.contract_of("grouped_linear", dtype=dtype, device="cpu")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("with_bias", [False, True])
def test_router_is_its_reference(
    dtype: torch.dtype, scoring: str, renormalize: bool, with_bias: bool
) -> None:
    logits = values(1, 33, 60, dtype=dtype, spread=2)
    logits[3, 10:30] = logits[3, 10]  # ties
    logits[4] = 0
    logits[5, 7] = float("nan")
    logits[6, 50] = float("inf")
    logits[7] = float("-inf")
    bias = values(2, 60, dtype=dtype, spread=1) if with_bias else None
    want_weights, want_ids = reference.router_topk(logits, 8, renormalize, scoring, bias)
    weights, ids = sb.ops.router_topk(
        logits, 8, renormalize=renormalize, scoring=scoring, bias=bias
    )
    assert ids.tolist() == want_ids.tolist()
    assert bits.equal(weights, torch.from_numpy(want_weights))
    one = sb.ops.router_topk(logits[9], 8, renormalize=renormalize, scoring=scoring, bias=bias)
    assert bits.equal(one[0], weights[9]) and bits.equal(one[1], ids[9])


def test_router_ties_at_the_edge() -> None:
    """I5: 15 of 256 random bf16 rows had a tie exactly at the edge of the top 8 of 128."""
    logits = values(0, 256, 128, dtype=torch.bfloat16, spread=1)
    _, ids = sb.ops.router_topk(logits, 8)
    ordered = logits.float().sort(dim=-1, descending=True, stable=True)
    assert (ordered.values[:, 7] == ordered.values[:, 8]).any()
    assert ids.tolist() == ordered.indices[:, :8].tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_grouped_linear_is_linear_by_expert(dtype: torch.dtype) -> None:
    x, weight = values(1, 37, 48, dtype=dtype), values(2, 5, 24, 48, dtype=dtype)
    bias = values(3, 5, 24, dtype=dtype)
    ids = torch.randint(-1, 5, (37, 3), generator=torch.Generator().manual_seed(4))
    y = sb.ops.grouped_linear(x, weight, ids, bias=bias)
    want = reference.grouped_linear(cpu_contract(dtype), x, weight, ids, bias)
    assert bits.equal(y.flatten(0, 1), want)
    for i, j in ((0, 0), (5, 2), (36, 1)):
        e = int(ids[i, j])
        alone = sb.ops.linear(x[i], weight[e], bias[e]) if e >= 0 else torch.zeros(24, dtype=dtype)
        assert bits.equal(y[i, j], alone)
    for size in (1, 2, 16):  # I6: few tokens and many
        assert bits.equal(sb.ops.grouped_linear(x[:size], weight, ids[:size], bias=bias), y[:size])
    wide = sb.ops.grouped_linear(x, weight, ids[:, 0], out_dtype=torch.float32)
    sorted_ids, order = ids[:, 0].clamp(min=0).sort(stable=True)
    offsets = torch.searchsorted(sorted_ids, torch.arange(6))
    by_offsets = sb.ops.grouped_linear(x[order], weight, offsets=offsets, out_dtype=torch.float32)
    real = ids[order, 0] >= 0
    assert bits.equal(by_offsets[real], wide[order][real])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_moe_is_its_parts_in_any_company(dtype: torch.dtype, top_k: int) -> None:
    tokens, experts, hidden, inner = 19, 6, 32, 24
    x = values(1, tokens, hidden, dtype=dtype, spread=2)
    gate_up = values(2, experts, 2 * inner, hidden, dtype=dtype, spread=2)
    down = values(3, experts, hidden, inner, dtype=dtype, spread=2)
    weights, ids = sb.ops.router_topk(values(4, tokens, experts, dtype=dtype), top_k)
    y = sb.ops.moe(x, gate_up, down, ids, weights)
    contract = cpu_contract(dtype)
    both = reference.grouped_linear(contract, x, gate_up, ids)
    inside = reference.grouped_linear(contract, reference.silu_mul(both), down, ids.reshape(-1))
    want = reference.combine(inside.view(tokens, top_k, hidden), weights)
    assert bits.equal(y, want)
    for i in range(0, tokens, 5):
        one = sb.ops.moe(x[i : i + 1], gate_up, down, ids[i : i + 1], weights[i : i + 1])
        assert bits.equal(one[0], y[i])
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))
    assert bits.equal(sb.ops.moe(x[order], gate_up, down, ids[order], weights[order]), y[order])


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_other_activations(activation: str) -> None:
    x, gate_up = values(1, 5, 16, dtype=torch.float32), values(2, 3, 16, 16, dtype=torch.float32)
    down = values(3, 3, 16, 8, dtype=torch.float32)
    weights, ids = sb.ops.router_topk(values(4, 5, 3, dtype=torch.float32), 2)
    y = sb.ops.moe(x, gate_up, down, ids, weights, activation=activation)
    both = sb.ops.grouped_linear(x, gate_up, ids).flatten(0, 1)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    opened = sb.ops.gelu_mul(both[:, :8], both[:, 8:], approximate)
    inside = sb.ops.grouped_linear(opened, down, ids.reshape(-1))
    assert bits.equal(y, sb.ops.moe_combine(inside.view(5, 2, 16), weights))


def test_errors() -> None:
    x, weight = torch.zeros(4, 8), torch.zeros(2, 6, 8)
    ids = torch.zeros(4, dtype=torch.int64)
    for change, error, match in [
        ({"x": x[:, :7]}, ShapeError, "must be"),
        ({"x": x.bfloat16()}, DTypeError, "bfloat16"),
        ({"x": x.long()}, DTypeError, "dense"),
        ({"ids": ids[:3]}, ShapeError, "ids"),
        ({"ids": ids.float()}, DTypeError, "int32 or int64"),
        ({"ids": ids + 2}, IndexError, "out of range"),
        ({"ids": None}, ShapeError, "either"),
        ({"bias": torch.zeros(2, 5)}, ShapeError, "bias"),
        ({"out_dtype": torch.bfloat16}, DTypeError, "out_dtype"),
        ({"x_scale": torch.ones(4, 1)}, DTypeError, "scales"),
        ({"weight": weight.requires_grad_()}, SamebitsError, "backward"),
    ]:
        arguments = {"x": x, "weight": weight.detach(), "ids": ids} | change
        with pytest.raises(error, match=match):
            sb.ops.grouped_linear(**arguments)
    with pytest.raises(ShapeError, match="k=0"):
        sb.ops.router_topk(x, 0)
    with pytest.raises(ShapeError, match="activation"):
        sb.ops.moe(x, torch.zeros(2, 4, 8), torch.zeros(2, 8, 2), ids[:, None], x[:, :1],
                   activation="relu")  # fmt: skip
    with pytest.raises(ShapeError, match="moe_combine"):
        sb.ops.moe_combine(x, x)


def test_nothing() -> None:
    weight, ids = torch.zeros(2, 6, 8), torch.zeros(0, 2, dtype=torch.int64)
    assert sb.ops.grouped_linear(torch.zeros(0, 8), weight, ids).shape == (0, 2, 6)
    assert sb.ops.moe(torch.zeros(0, 8), torch.zeros(2, 4, 8), torch.zeros(2, 8, 2), ids,
                      torch.zeros(0, 2)).shape == (0, 8)  # fmt: skip
