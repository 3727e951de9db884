"""Every route to a matrix product under the switch: one row, one set of bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from faults.properties import stock_is_known
from matrix_samples import DTYPES, values
from samebits import bits, ops
from samebits.errors import DTypeError, ShapeError, UncoveredError


@pytest.fixture
def switch() -> Iterator[None]:
    with sb.deterministic():
        yield


A, B = values((9, 130), torch.float32, "wide", 1), values((130, 11), torch.float32, "wide", 2)
Route = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def out_of(fn: Callable[..., torch.Tensor], *args: torch.Tensor, shape: tuple[int, ...]) -> object:
    out = torch.empty(shape, dtype=args[0].dtype).fill_(float("nan"))
    assert fn(*args, out=out) is out
    return out


ROUTES: dict[str, Route] = {
    "mm": torch.mm,
    "mm.out": lambda a, b: out_of(torch.mm, a, b, shape=(a.shape[0], b.shape[1])),
    "mm.out resized": lambda a, b: out_of(torch.mm, a, b, shape=(0,)),
    "operator": lambda a, b: a @ b,
    "matmul 3-D": lambda a, b: torch.matmul(a[None], b)[0],
    "matmul broadcast": lambda a, b: torch.matmul(a.expand(2, 3, *a.shape), b)[1, 2],
    "bmm": lambda a, b: torch.bmm(a[None], b[None])[0],
    "bmm.out": lambda a, b: out_of(
        torch.bmm, a[None], b[None], shape=(1, a.shape[0], b.shape[1])
    )[0],  # type: ignore[index]
    "linear": lambda a, b: F.linear(a, b.t()),
    "linear contiguous": lambda a, b: F.linear(a, b.t().contiguous()),
    "linear 3-D": lambda a, b: F.linear(a[None], b.t())[0],
    "addmm": lambda a, b: torch.addmm(a.new_zeros(()), a, b),
    "addmm beta 0": lambda a, b: torch.addmm(a.new_full((1,), torch.nan), a, b, beta=0),
    "addmm.out": lambda a, b: torch.addmm(
        a.new_zeros(1), a, b, out=a.new_empty(a.shape[0], b.shape[1])
    ),
    "baddbmm": lambda a, b: torch.baddbmm(a.new_zeros(()), a[None], b[None])[0],
    "addbmm": lambda a, b: torch.addbmm(a.new_zeros(()), a[None], b[None]),
    "mv": lambda a, b: torch.stack([torch.mv(a, v) for v in b.unbind(1)], 1),
    "matmul 1-D": lambda a, b: torch.stack([v @ b for v in a]),
    "addmv": lambda a, b: torch.stack(
        [torch.addmv(a.new_zeros(()), a, v) for v in b.unbind(1)], 1
    ),
    "dot": lambda a, b: torch.stack([torch.stack([x @ y for y in b.unbind(1)]) for x in a]),
    "vdot": lambda a, b: torch.stack(
        [torch.stack([torch.vdot(x, y) for y in b.unbind(1)]) for x in a]
    ),
    "inner": lambda a, b: torch.inner(a, b.t()),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "einsum": lambda a, b: torch.einsum("mk,kn->mn", a, b),
    "addmm_": lambda a, b: a.new_zeros(a.shape[0], b.shape[1]).addmm_(a, b),
    "vmap": lambda a, b: torch.vmap(lambda row: row @ b)(a),
    "vmap linear": lambda a, b: torch.vmap(lambda row: F.linear(row, b.t()))(a),
    "inference_mode": lambda a, b: torch.inference_mode()(lambda: F.linear(a, b.t()))().clone(),
    "requires_grad": lambda a, b: F.linear(a.clone().requires_grad_(), b.t()).detach(),
    "module": lambda a, b: module(b)(a).detach(),
}  # fmt: skip


def module(b: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(b.shape[0], b.shape[1], bias=False, dtype=b.dtype)
    layer.weight.data = b.t().contiguous()
    return layer


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_route(name: str, dtype: torch.dtype, switch: None) -> None:
    a, b = values((9, 130), dtype, "wide", 1), values((130, 11), dtype, "wide", 2)
    want = ops.mm(a, b)
    assert bits.equal(ROUTES[name](a, b), want)
    for rows in (1, 2, 5):
        assert bits.equal(ROUTES[name](a[:rows], b), want[:rows])


def test_stock_routes_differ() -> None:
    """Without the switch the routes and batch sizes do not agree."""
    if not stock_is_known():
        return
    full = A @ B
    assert not all(bits.equal(F.linear(A[i : i + 1], B.t())[0], full[i]) for i in range(9))


def test_switch_restores_stock() -> None:
    x, w = torch.randn(5, 700), torch.randn(33, 700)
    before = F.linear(x, w)
    with sb.deterministic():
        assert bits.equal(F.linear(x, w), ops.linear(x, w))
    assert bits.equal(F.linear(x, w), before)


def test_autocast(switch: None) -> None:
    w = B.t().contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(A, w)
        z = A @ B
    assert bits.equal(y, ops.linear(A.bfloat16(), w.bfloat16()))
    assert bits.equal(z, y)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients(lead: tuple[int, ...], with_bias: bool, switch: None) -> None:
    x, w = torch.randn(*lead, 6, dtype=torch.float32), torch.randn(5, 6)
    b = torch.randn(5) if with_bias else None
    grad = torch.randn(*lead, 5)
    leaves = [t.clone().requires_grad_() for t in (x, w, b) if t is not None]
    F.linear(*leaves).backward(grad)
    rows, grads = x.reshape(-1, 6), grad.reshape(-1, 5)
    assert leaves[0].grad is not None and leaves[1].grad is not None
    assert bits.equal(leaves[0].grad.reshape(-1, 6), ops.mm(grads, w))
    assert bits.equal(leaves[1].grad, ops.mm(grads.t(), rows))


def test_forward_mode_derivative(switch: None) -> None:
    w, x, t = torch.randn(5, 6), torch.randn(3, 6), torch.randn(3, 6)
    _, tangent = torch.func.jvp(lambda a: F.linear(a, w), (x,), (t,))
    assert bits.equal(tangent, ops.linear(t, w))


def test_out_that_overlaps_an_operand(switch: None) -> None:
    a, b = torch.randn(6, 6), torch.randn(6, 6)
    want = ops.mm(a, b)
    assert bits.equal(torch.mm(a, b, out=a), want)


def test_activation(switch: None) -> None:
    x, w, b = torch.randn(4, 50), torch.randn(9, 50), torch.randn(9)
    got = torch._addmm_activation(b, x, w.t())
    assert bits.equal(got, ops.linear(x, w, b).clamp_min(0))


def test_integers_are_exact_and_stock(switch: None) -> None:
    a, b = torch.randint(-9, 9, (4, 5)), torch.randint(-9, 9, (5, 6))
    assert torch.equal(a @ b, (a[:, :, None] * b).sum(1))
    assert torch.equal(F.linear(a, b.t()), a @ b)


def test_refused(switch: None) -> None:
    with pytest.raises(ShapeError):
        torch.mm(torch.randn(3, 4), torch.randn(3, 4))
    with pytest.raises(ShapeError):
        F.linear(torch.randn(3, 4), torch.randn(3, 5))
    with pytest.raises(DTypeError):
        torch.mm(torch.randn(3, 4), torch.randn(4, 4).bfloat16())
    with pytest.raises(UncoveredError, match="float64"):
        torch.mm(torch.randn(3, 4).double(), torch.randn(4, 4).double())
