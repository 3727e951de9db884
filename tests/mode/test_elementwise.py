"""L8: under the switch no elementwise operation looks at where an element lies; stock ones do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import samebits
from mode.explore_elementwise import CASES, Case, depends_on_layout
from samebits import bits
from samebits.errors import UncoveredError
from samebits.mode.table import GROUPS, Kind

#: What the switch leaves to torch's own kernels.
SAFE = {n for g in GROUPS if g.kind in (Kind.EXACT, Kind.TESTED) for n in g.names.split()}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: torch's own kernels are known to fail here (fp32, dense against strided).
STOCK_FAILS = ("silu", "gelu", "mish", "softplus", "sigmoid", "elu", "exp2", "pow(2.7)", "atan2",
               "logaddexp", "silu_backward", "gelu_backward", "cosh", "atanh")  # fmt: skip
SAFE_CASES = [c for c in CASES if c.name.partition("(")[0] in SAFE and "alpha" not in c.name
              and c.name not in ("add(0.3)", "rsub(0.3)", "div(floor)", "div(trunc)",
                                 "div(0.3,floor)", "div(0.3,trunc)")]  # fmt: skip


def found(case: Case, dtype: torch.dtype, sizes: tuple[int, ...]) -> dict[str, int]:
    try:
        return depends_on_layout(case, dtype, sizes)
    except UncoveredError:  # refused loudly: as good as alike
        return {}
    except (RuntimeError, NotImplementedError) as e:
        if "not implemented" in str(e) or "Expected both inputs" in str(e):
            return {}
        raise


@pytest.mark.parametrize("name", STOCK_FAILS)
def test_stock_depends_on_layout(name: str) -> None:
    (case,) = (c for c in CASES if c.name == name)
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor runs torch without vector code")
    assert depends_on_layout(case, torch.float32, (901,))


@pytest.mark.parametrize("case", SAFE_CASES, ids=str)
def test_operations_left_on_stock_are_safe(case: Case) -> None:
    for dtype in DTYPES:
        assert not found(case, dtype, (901,)), dtype
    assert not found(case, torch.float32, (33_001,))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_switch_treats_all_elements_alike(case: Case) -> None:
    left = case.name.partition("(")[0] in SAFE  # on stock, or shown safe even there
    dtypes = DTYPES[: 2 if left and "alpha" not in case.name else 4]
    with samebits.deterministic():
        for dtype in dtypes:
            assert not found(case, dtype, (901,)), dtype
        if not left:
            assert not found(case, torch.float32, (33_001,))


def test_every_form_has_the_same_bits() -> None:
    x = torch.randn(7, 33)
    forms = [(F.silu, lambda t: F.silu(t, inplace=True)), (torch.sigmoid, torch.sigmoid_),
             (torch.exp, torch.exp_), (torch.tanh, torch.tanh_),
             (lambda t: t.pow(1.7), lambda t: t.pow_(1.7)), (F.elu, lambda t: F.elu_(t)),
             (F.selu, F.selu_), (F.celu, F.celu_), (F.mish, lambda t: F.mish(t, inplace=True)),
             (torch.logit, lambda t: t.logit_()), (torch.rsqrt, torch.rsqrt_)]  # fmt: skip
    with samebits.deterministic():
        for function, inplace in forms:
            want = function(x)
            assert bits.equal(inplace(x.clone()), want)
            room = torch.full((7, 66), torch.nan)
            inplace(room[:, ::2].copy_(x))
            assert bits.equal(room[:, ::2], want)
        for function in (torch.exp, torch.sigmoid, torch.tanh, torch.log2, torch.erf):
            out = torch.empty(7, 33)
            assert function(x, out=out) is out
            assert bits.equal(out, function(x))
        assert bits.equal(torch.special.expit(x), torch.sigmoid(x))
        assert bits.equal(x**2, x * x)
        assert bits.equal(torch.pow(x, torch.tensor(2.5)), torch.pow(x, 2.5))


def test_promotion_is_that_of_torch() -> None:
    i, h, f = torch.arange(1, 5), torch.ones(4).half(), torch.rand(4)
    calls = [lambda: torch.exp(i), lambda: torch.sigmoid(i > 2), lambda: torch.pow(i, 2),
             lambda: torch.pow(i, 0.5), lambda: torch.pow(2, i), lambda: torch.pow(2.0, i),
             lambda: torch.pow(h, f), lambda: torch.pow(h, torch.tensor(2.0)), lambda: i**i,
             lambda: torch.atan2(i, f), lambda: torch.atan2(i, i), lambda: torch.xlogy(i, 2.5),
             lambda: torch.hypot(h, h), lambda: torch.logit(h / 2), lambda: torch.fmod(f, 0.3),
             lambda: torch.exp(torch.ones(3, dtype=torch.float64)),
             lambda: torch.sigmoid(torch.ones(3, dtype=torch.float64))]  # fmt: skip
    for call in calls:
        want = call()
        with samebits.deterministic():
            got = call()
        assert got.dtype is want.dtype
        assert torch.allclose(got.double(), want.double(), rtol=1e-3)


def test_complex_is_refused() -> None:
    z = torch.ones(3, dtype=torch.complex64)
    with samebits.deterministic(), pytest.raises(UncoveredError, match="complex64"):
        torch.exp(z)


@pytest.mark.parametrize(
    "function",
    [F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.mish, F.softplus, F.elu, F.selu,
     torch.tanh, torch.sigmoid, F.hardswish, F.hardtanh, F.softshrink, lambda x: F.glu(x, -1),
     F.logsigmoid, lambda x: x.abs().pow(1.7), lambda x: torch.logit(x.sigmoid()), torch.erf,
     torch.sin, lambda x: torch.atan2(x, x.flip(0)), torch.exp2, torch.expm1],
)  # fmt: skip
def test_gradients_flow(function: object) -> None:
    x = torch.randn(6, 10, requires_grad=True)
    (want,) = torch.autograd.grad(function(x).square().sum(), x)  # type: ignore[operator]
    with samebits.deterministic():
        (got,) = torch.autograd.grad(function(x).square().sum(), x)  # type: ignore[operator]
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-5)


def test_losses_have_gradients_without_a_batch_in_them() -> None:
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    for loss in (F.smooth_l1_loss, F.huber_loss):
        with samebits.deterministic():
            t = x.clone().requires_grad_()
            (all_rows,) = torch.autograd.grad(loss(t, y, reduction="none").sum(), t)
            t = x[3:4].clone().requires_grad_()
            (row,) = torch.autograd.grad(loss(t, y[3:4], reduction="none").sum(), t)
        assert bits.equal(all_rows[3:4], row)
        stock = x.clone().requires_grad_()
        with samebits.deterministic():
            t = x.clone().requires_grad_()
            (mean,) = torch.autograd.grad(loss(t, y), t)
        (want,) = torch.autograd.grad(loss(stock, y), stock)
        assert torch.allclose(mean, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_additions_in_every_form(dtype: torch.dtype) -> None:
    x, y = torch.randn(7, 33).to(dtype), torch.randn(7, 33).to(dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    stock_add = torch.add
    with samebits.deterministic():
        want = (x.to(wide) + y.to(wide) * 0.7).to(dtype)
        assert bits.equal(torch.add(x, y, alpha=0.7), want)
        assert bits.equal(x.add(y, alpha=0.7), want)
        assert bits.equal(x.clone().add_(y, alpha=0.7), want)
        out = torch.empty(0, dtype=dtype)
        assert torch.add(x, y, alpha=0.7, out=out) is out
        assert bits.equal(out, want)
        assert bits.equal(torch.sub(x, y, alpha=-0.7), want)
        assert bits.equal(torch.rsub(y, x, alpha=-0.7), want)
        assert torch.add(x, 1, alpha=2).dtype == dtype
        assert bits.equal(x.add(y), x + y)
        assert torch.add(torch.arange(3), 2, alpha=3).tolist() == [6, 7, 8]
    assert torch.add is stock_add


def test_scaled_additions_have_gradients() -> None:
    x, y = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    with samebits.deterministic():
        torch.add(x, y, alpha=0.7).sum().backward()
    assert x.grad is not None and bits.equal(x.grad, torch.ones(5))
    assert y.grad is not None and bits.equal(y.grad, torch.full((5,), 0.7))
