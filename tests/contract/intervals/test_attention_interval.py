"""AttentionContract.interval: evaluation, fp64 stock torch lie inside; less precision does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from samebits.contract import IEEE_FMA, AttentionContract, Lanes, hopper_attention
from samebits.errors import ContractError

CPU = AttentionContract(IEEE_FMA, "fp32", "fp32", scores=Lanes(16))
HOPPER = hopper_attention("bf16")


def qkv(rows: int, keys: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(keys)
    return [torch.randn(2, n, 32, generator=g).to(dtype) for n in (rows, keys, keys)]


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **how: float
) -> np.ndarray:
    wide = None if mask is None or mask.dtype is torch.bool else mask.double()
    attended = F.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask if wide is None else wide, **how
    )
    return np.asarray(attended.numpy())


@pytest.mark.parametrize("contract", [CPU, HOPPER], ids=["cpu", "sm_90"])
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (5, 100), (9, 700)])
def test_orders_and_exactness(contract: AttentionContract, rows: int, keys: int) -> None:
    dtype = torch.float32 if contract is CPU else torch.bfloat16
    q, k, v = qkv(rows, keys, dtype)
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    exact = reference(q, k, v, mask)
    for order in ("contract", "any"):
        i = contract.interval(q, k, v, causal=True, order=order)
        assert i.contains(contract.evaluate(q, k, v, causal=True)).all()
        assert (i.exact_low - 1e-13 <= exact).all() and (exact <= i.exact_high + 1e-13).all()
        assert (i.exact_high - i.exact_low < 1e-11).all()
    stock = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    i = contract.interval(q, k, v, causal=True, order="any", out_dtype=dtype)
    assert i.contains(stock).all()
    for leaf in (64, 128):
        other = AttentionContract(**{**vars(contract), "leaf": leaf})
        assert i.contains(other.evaluate(q, k, v, causal=True, out_dtype=dtype)).all()


@pytest.mark.parametrize("exp2", ["poly(4)", "poly(3)"])
def test_short_polynomials(exp2: str) -> None:
    contract = hopper_attention("bf16", exp2=exp2)
    q, k, v = qkv(5, 300, torch.bfloat16)
    assert contract.interval(q, k, v, order="any").contains(contract.evaluate(q, k, v)).all()


def test_masks_caps_sinks_and_scales() -> None:
    q, k, v = qkv(6, 90)
    bias = torch.randn(6, 90, generator=torch.Generator().manual_seed(1))
    exact = reference(q, k, v, bias, scale=0.3)
    y = CPU.evaluate(q, k, v, bias=bias.numpy(), scale=0.3)
    i = CPU.interval(q, k, v, bias=bias.numpy(), scale=0.3, order="any")
    assert i.contains(y).all()
    assert (i.exact_low - 1e-13 <= exact).all() and (exact <= i.exact_high + 1e-13).all()

    x = 2.5 * torch.tanh(q.double() @ k.double().mT * 32**-0.5 / 2.5)
    x = torch.cat([x, torch.full((2, 6, 1), 0.7, dtype=torch.float64)], -1)
    capped = (x.softmax(-1)[..., :-1] @ v.double()).numpy()
    for order in ("contract", "any"):
        i = CPU.interval(q, k, v, softcap=2.5, sink=0.7, order=order)
        assert i.contains(CPU.evaluate(q, k, v, softcap=2.5, sink=0.7)).all()
        assert (i.exact_low - 1e-7 <= capped).all() and (capped <= i.exact_high + 1e-7).all()

    fp8 = hopper_attention("bf16", kv="e4m3")
    q, k, v = qkv(4, 130, torch.bfloat16)
    k8, v8 = k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
    i = fp8.interval(q, k8, v8, k_scale=0.5, v_scale=3.0, order="any")
    assert i.contains(fp8.evaluate(q, k8, v8, k_scale=0.5, v_scale=3.0)).all()
    exact = 3 * reference(q, k8.double(), v8.double(), None, scale=0.5 * 32**-0.5)
    assert (i.exact_low - 1e-12 <= exact).all() and (exact <= i.exact_high + 1e-12).all()


def test_unseen_keys_may_hold_anything() -> None:
    q, k, v = qkv(3, 40)
    seen = torch.ones(3, 40, dtype=torch.bool)
    seen[:2, 7] = False
    seen[1] = False
    dirty, values = k.clone(), v.clone()
    dirty[:, 7], values[:, 7] = torch.nan, torch.inf
    i = CPU.interval(q, dirty, values, seen=seen.numpy(), order="any")
    assert i.contains(CPU.evaluate(q, k, v, seen=seen.numpy()))[:, :2].all()
    assert (i.first[:, 1] == 0).all() and (i.last[:, 1] == 0).all()
    assert (i.low[:, 2] == -np.inf).all()


def test_less_precision_is_outside() -> None:
    q, k, v = qkv(5, 100)
    i = CPU.interval(q, k, v, order="any")
    coarse = F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).float()
    assert i.contains(coarse).mean() < 0.05
    with pytest.raises(ContractError, match="use one of 'contract', 'any'"):
        CPU.interval(q, k, v, order="split")


def test_scores_of_minus_infinity_are_no_mask() -> None:
    q, k, v = qkv(2, 1)
    k = torch.full_like(k, -torch.inf) * q[:, :1].sign()
    i = CPU.interval(q[:, :1], k, v, order="any")
    assert np.isnan(np.asarray(CPU.evaluate(q[:, :1], k, v))).all()
    assert (i.first == -np.inf).all() and (i.last == np.inf).all()
