"""Exact sums, norms and softmax against their contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from exact_samples import DTYPES, special, spread
from samebits import bits, ops
from samebits.engines.cpu import exact as engine
from samebits.errors import DTypeError, ShapeError
from samebits.plan import contract_of

ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: ops.exact.sum(x, -1),
    "mean": lambda x: ops.exact.mean(x, -1),
    "norm": lambda x: ops.exact.vector_norm(x, -1),
    "softmax": lambda x: ops.exact.softmax(x, -1),
    "log_softmax": lambda x: ops.exact.log_softmax(x, -1),
    "logsumexp": lambda x: ops.exact.logsumexp(x, -1),
    "rms_norm": lambda x: ops.exact.rms_norm(x, eps=1e-5),
    "layer_norm": lambda x: ops.exact.layer_norm(x),
}


@pytest.mark.parametrize("octaves", [0, 2, 40])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", ROWS)
def test_bits_of_the_contract(op: str, name: str, octaves: int) -> None:
    contract = contract_of(op, dtype=name, device="exact")
    for n in (1, 7, 100, 1025):
        x = spread(5, n, dtype=DTYPES[name], octaves=octaves, seed=n)
        assert bits.equal(ROWS[op](x), contract.evaluate(x))
        if octaves == 2:
            x = special(x, n, 0.3 / n)
            assert bits.equal(ROWS[op](x), contract.evaluate(x))


@pytest.mark.parametrize("name", DTYPES)
def test_norms_with_parameters(name: str) -> None:
    x = spread(6, 300, dtype=DTYPES[name], octaves=2, seed=0)
    w, b = (spread(300, dtype=DTYPES[name], octaves=2, seed=s) for s in (1, 2))
    rms = contract_of("rms_norm", dtype=name, device="exact")
    assert bits.equal(ops.exact.rms_norm(x, w, 1e-6), rms.evaluate(x, w, eps=1e-6))
    layer = contract_of("layer_norm", dtype=name, device="exact")
    assert bits.equal(ops.exact.layer_norm(x, w, b), layer.evaluate(x, w, b))
    assert bits.equal(ops.exact.layer_norm(x, w), layer.evaluate(x, w))


def test_no_order_shows() -> None:
    g = torch.Generator().manual_seed(0)
    x, size = (torch.randn(16, 50_000, generator=g) for _ in range(2))
    x = x * torch.exp(3 * size)
    assert bits.count_different(x.sum(-1), x.flip(-1).sum(-1)), "stock depends on the order"
    p = torch.randperm(50_000)
    for op in ("sum", "mean", "norm", "logsumexp"):
        assert bits.equal(ROWS[op](x[:, p]), ROWS[op](x))
    for op in ("softmax", "rms_norm", "layer_norm"):
        assert bits.equal(ROWS[op](x[:, p]), ROWS[op](x)[:, p])


def test_long_rows_are_shared_by_threads() -> None:
    x = torch.randn(2, 300_001)
    want = contract_of("sum", dtype="fp32", device="exact").evaluate(x)
    assert bits.equal(ops.exact.sum(x, -1), want)
    assert bits.equal(ops.exact.sum(x[0]), want[0])


def test_the_slow_step_is_reached_and_right() -> None:
    x = torch.tensor(
        [[1.0, 2.0**-24, 2.0**-80, 0], [1, 2.0**-24, 0, 0], [2.0**100, 1, -(2.0**100), 0]]
    )
    y, again = engine.rows(x, torch.float32)
    assert again == 2  # the second row is a tie whose sum fp64 holds
    assert y.tolist() == [1 + 2.0**-23, 1.0, 1.0]


def test_axes() -> None:
    x = torch.randn(3, 4, 5)
    assert bits.equal(ops.exact.sum(x, (0, 2)), ops.exact.sum(x.permute(1, 0, 2).reshape(4, 15), 1))
    assert ops.exact.sum(x).shape == ()
    assert ops.exact.sum(x, 1, keepdim=True).shape == (3, 1, 5)
    assert ops.exact.mean(x, (1, 2), keepdim=True).shape == (3, 1, 1)
    assert bits.equal(ops.exact.softmax(x, 0), ops.exact.softmax(x.movedim(0, -1)).movedim(-1, 0))
    assert ops.exact.logsumexp(x, 1, keepdim=True).shape == (3, 1, 5)
    assert ops.exact.sum(torch.zeros(2, 0), 1).tolist() == [0, 0]
    assert ops.exact.softmax(torch.randn(2, 0)).shape == (2, 0)
    assert ops.exact.sum(torch.tensor(3.0)).item() == 3
    assert ops.exact.sum(x.bfloat16(), dtype=torch.float32).dtype is torch.float32


def test_what_is_not_covered_is_refused() -> None:
    with pytest.raises(DTypeError):
        ops.exact.sum(torch.arange(3))
    with pytest.raises(DTypeError):
        ops.exact.sum(torch.randn(3), dtype=torch.bfloat16)
    with pytest.raises(ShapeError):
        ops.exact.sum(torch.randn(3), 1)
    with pytest.raises(ShapeError):
        ops.exact.rms_norm(torch.randn(2, 3), torch.randn(2))


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(DTypeError, match=r"exact\.layer_norm takes tensors, not tuple"):
        ops.exact.layer_norm(torch.ones(2, 4), (4,))  # type: ignore[arg-type]  # torch's order
