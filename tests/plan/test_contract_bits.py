"""The CPU engine against `contract_of(...).evaluate`, byte for byte, for every kind of contract.

The engine is C++ with tiles, threads and instruction sets; the evaluation is NumPy that walks the
contract's tree. Engine "numpy" keeps the C++ twin out of it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits import bits, ops
from samebits.contract import AttentionContract, LinearContract, RowContract
from samebits.ops import attention as ops_attention
from samebits.plan import contract_of

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)
SPECIAL = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 3e38])


def random(
    seed: int, *shapes: tuple[int, ...], dtype: torch.dtype, special: bool = False
) -> list[torch.Tensor]:
    """Exponents spread over 2^+-8, sometimes with special values strewn in."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for shape in shapes:
        x = torch.randn(shape, generator=g) * 2.0 ** torch.randint(-8, 9, shape, generator=g)
        if special and seed % 3 == 0:
            strewn = SPECIAL[torch.randint(0, len(SPECIAL), shape, generator=g)]
            x = torch.where(torch.rand(shape, generator=g) < 0.02, strewn, x)
        out.append(x.to(dtype))
    return out


@given(dtypes, seeds, st.integers(0, 9), st.integers(1, 40), st.integers(0, 90), st.booleans())
def test_linear(dtype: torch.dtype, seed: int, m: int, n: int, k: int, with_bias: bool) -> None:
    x, w, b = random(seed, (m, k), (n, k), (n,), dtype=dtype, special=True)
    contract = contract_of("linear", n=n, k=k, dtype=dtype)
    assert isinstance(contract, LinearContract)
    bias = b if with_bias else None
    for out in (torch.float32, dtype):
        got = ops.linear(x, w, bias, out_dtype=out)
        assert bits.equal(got, contract.evaluate(x, w, bias, out, engine="numpy"))


@given(
    dtypes, seeds, st.integers(1, 5), st.integers(1, 9), st.integers(0, 40),
    st.sampled_from([0.0, 1.0, -0.3]), st.sampled_from([0.0, 1.0, 1.7]),
)  # fmt: skip
def test_addmm(
    dtype: torch.dtype, seed: int, m: int, n: int, k: int, alpha: float, beta: float
) -> None:
    x, w, c = random(seed, (m, k), (n, k), (m, n), dtype=dtype, special=True)
    contract = contract_of("addmm", n=n, k=k, dtype=dtype)
    assert isinstance(contract, LinearContract)
    got = ops.addmm(c, x, w.t(), alpha=alpha, beta=beta, out_dtype=torch.float32)
    want = contract.evaluate(x, w, c, alpha=alpha, beta=beta, engine="numpy")
    assert bits.equal(got, want)


@given(dtypes, seeds, st.integers(1, 3), st.integers(1, 4000))
@pytest.mark.parametrize("op", ["sum", "mean", "var", "std", "norm", "logsumexp"])
def test_reductions(op: str, dtype: torch.dtype, seed: int, rows: int, n: int) -> None:
    (x,) = random(seed, (rows, n), dtype=dtype, special=True)
    contract = contract_of(op, dtype=dtype)
    assert isinstance(contract, RowContract)
    if op in ("var", "std"):
        got = getattr(ops, op)(x, -1, correction=2)
        want = contract.evaluate(x, correction=2, out_dtype=dtype)
    else:
        got = (ops.vector_norm(x, 2, -1) if op == "norm"
               else getattr(ops, op)(x, -1))  # fmt: skip
        want = contract.evaluate(x, out_dtype=dtype)
    assert bits.equal(got, want)


@given(dtypes, seeds, st.integers(1, 3), st.integers(1, 3000))
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax(op: str, dtype: torch.dtype, seed: int, rows: int, n: int) -> None:
    (x,) = random(seed, (rows, n), dtype=dtype, special=True)
    contract = contract_of(op, dtype=dtype)
    assert isinstance(contract, RowContract)
    assert bits.equal(getattr(ops, op)(x, -1), contract.evaluate(x, out_dtype=dtype))


@given(dtypes, seeds, st.integers(1, 5), st.integers(1, 3000), st.integers(0, 3))
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_norms(op: str, dtype: torch.dtype, seed: int, rows: int, n: int, parameters: int) -> None:
    x, w, b = random(seed, (rows, n), (n,), (n,), dtype=dtype)
    weight, bias = w if parameters & 1 else None, b if parameters & 2 else None
    contract = contract_of(op, dtype=dtype)
    assert isinstance(contract, RowContract)
    if op == "rms_norm":
        bias = None
        got = ops.rms_norm(x, (n,), weight, 1e-6)
    else:
        got = ops.layer_norm(x, (n,), weight, bias, 1e-6)
    assert bits.equal(got, contract.evaluate(x, weight, bias, eps=1e-6, out_dtype=dtype))


@given(
    dtypes, seeds, st.integers(1, 4), st.sampled_from([1, 7, 511, 512, 513, 1100]),
    st.sampled_from([4, 8, 24]), st.booleans(), st.sampled_from(["all", "causal", "some", "none"]),
    st.sampled_from([None, 5.0]), st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_attention(
    dtype: torch.dtype, seed: int, rows: int, keys: int, d: int, biased: bool, seen: str,
    softcap: float | None, sink: bool,
) -> None:  # fmt: skip
    rows = min(rows, keys)
    q, k, v = random(seed, (1, rows, d), (1, keys, d), (1, keys, d + 1), dtype=dtype)
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(1, rows, keys, generator=g) < {"some": 0.7, "none": 0.0}.get(seen, 2.0)
    bias = torch.randn(1, rows, keys, generator=g)
    logit = torch.randn(1, generator=g) if sink else None
    contract = contract_of("attention", head_dim=d, value_dim=d + 1, dtype=dtype)
    assert isinstance(contract, AttentionContract)
    got = ops_attention(
        q, k, v, scale=0.1, softcap=softcap, sinks=logit, causal=seen == "causal",
        q_start=keys - rows, mask=torch.where(mask, bias, -torch.inf) if biased else mask,
    )  # fmt: skip
    want = contract.evaluate(
        q, k, v, scale=0.1, softcap=softcap, sink=None if logit is None else float(logit),
        causal=seen == "causal", seen=mask.numpy(), bias=bias.numpy() if biased else None,
        out_dtype=dtype, engine="numpy",
    )  # fmt: skip
    assert bits.equal(got, want)


def test_stock_has_other_bits() -> None:
    """So equality above is not an accident of easy numbers."""
    x, w = random(1, (4, 3000), (8, 3000), dtype=torch.float32)
    linear = contract_of("linear", n=8, k=3000, dtype=torch.float32)
    total = contract_of("sum", dtype=torch.float32)
    assert isinstance(linear, LinearContract)
    assert isinstance(total, RowContract)
    assert not bits.equal(torch.nn.functional.linear(x, w), linear.evaluate(x, w))
    assert not bits.equal(x.sum(-1), total.evaluate(x))


def test_rows_refuse_what_they_cannot_take() -> None:
    row = contract_of("rms_norm", dtype=torch.float32)
    assert isinstance(row, RowContract)
    x = torch.ones(2, 4)
    with pytest.raises(ValueError, match="does not fit"):
        row.evaluate(x, torch.ones(3))
    with pytest.raises(TypeError, match="float16"):
        row.evaluate(x.half())
    with pytest.raises(TypeError, match="takes no weight"):
        RowContract("sum", "fp32", "fp32").evaluate(x, torch.ones(4))
    with pytest.raises(ValueError, match="rounds to"):
        row.evaluate(x, out_dtype="bf16")
    with pytest.raises(ValueError, match="no axis"):
        row.evaluate(np.float32(1))
