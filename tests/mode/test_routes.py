"""Every dispatch route reaches the overrides: the same rows, the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.func import functionalize, grad, jacfwd, jacrev, vmap

import samebits as sb
from samebits.bits import equal

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def switch() -> Iterator[None]:
    with sb.deterministic():
        yield


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().view({4: torch.int32, 2: torch.int16}[x.element_size()])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


torch.manual_seed(3)
W, B, G = torch.randn(32, 64), torch.randn(32), torch.randn(64)

FUNCTIONS: dict[str, Function] = {
    "linear": lambda x: F.linear(x, W, B),
    "matmul": lambda x: x @ W.t(),
    "einsum": lambda x: torch.einsum("...k,nk->...n", x, W),
    "layer_norm": lambda x: F.layer_norm(x, (64,), G),
    "rms_norm": lambda x: F.rms_norm(x, (64,), G),
    "softmax": lambda x: torch.softmax(x, -1),
    "sum": lambda x: x.sum(-1),
    "var": lambda x: x.var(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: x.norm(dim=-1),
    "topk": lambda x: x.topk(5).values,
}


@pytest.fixture(params=FUNCTIONS)
def f(request: pytest.FixtureRequest) -> Function:
    return FUNCTIONS[request.param]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(9, 64)


def test_rows(f: Function, x: torch.Tensor) -> None:
    full = f(x)
    for i in range(9):
        assert same(f(x[i]), full[i])
        assert same(f(x[: i + 1]), full[: i + 1])


def test_grad_modes(f: Function, x: torch.Tensor) -> None:
    full = f(x)
    with torch.inference_mode():
        assert same(f(x), full)
        assert same(f(x.clone()), full)
    with torch.no_grad():
        assert same(f(x), full)
    y = x.clone().requires_grad_()
    assert same(f(y), full)


def test_gradients_of_rows(f: Function, x: torch.Tensor) -> None:
    def gradient(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone().requires_grad_()
        (f(rows) * 0.3).square().sum().backward()
        assert rows.grad is not None
        return rows.grad

    full = gradient(x)
    for i in range(9):
        assert same(gradient(x[i : i + 1]), full[i : i + 1])


def test_transforms(f: Function, x: torch.Tensor) -> None:
    full = f(x)
    assert same(vmap(f)(x), full)
    assert same(vmap(f, in_dims=1)(x.t().contiguous()), full)
    assert same(functionalize(f)(x), full)
    gradient = grad(lambda r: f(r).square().sum())
    assert same(vmap(gradient)(x)[3], gradient(x[3]))
    assert torch.allclose(jacrev(f)(x[0]), jacfwd(f)(x[0]), atol=1e-5)


def test_nested_vmap(f: Function) -> None:
    x = torch.randn(3, 5, 64)
    assert same(vmap(vmap(f))(x), f(x))
    assert same(vmap(vmap(f), in_dims=1, out_dims=1)(x), f(x))


def test_vmap_over_the_weight_of_a_norm() -> None:
    x, w = torch.randn(3, 5, 64), torch.randn(3, 64)
    out = vmap(lambda a, b: F.rms_norm(a, (64,), b))(x, w)
    for i in range(3):
        assert same(out[i], F.rms_norm(x[i], (64,), w[i]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(f: Function, x: torch.Tensor, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=dtype):
        full = f(x)
        for i in range(9):
            assert same(f(x[i : i + 1]), full[i : i + 1])


def test_second_thread(f: Function, x: torch.Tensor) -> None:
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(f(x)))
    thread.start()
    thread.join()
    assert same(results[0], f(x))


def test_subclasses_and_dispatch_modes_see_what_runs(x: torch.Tensor) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    full = F.linear(x, W, B)
    with Recorder():
        assert same(F.linear(x, W, B), full)
    assert any("linear" in name or "addmm" in name for name in seen)


def test_saved_graph_from_before_the_switch() -> None:
    sb.disable()
    x = torch.randn(9, 64, requires_grad=True)
    y = F.linear(x, W, B)
    sb.enable()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    expected = torch.ones(9, 32) @ W
    assert same(gradient, expected)


def test_scripted_modules_are_covered(x: torch.Tensor) -> None:
    module = torch.jit.trace(torch.nn.Linear(64, 32), x)
    full = module(x)
    for _ in range(3):
        assert same(module(x[4:5]), full[4:5])


class _Wrapper(torch.Tensor):
    """A tensor without memory of its own, like those of quantisation and sharding libraries."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        x = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        x.inner = inner
        return x

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [a.inner if isinstance(a, cls) else a for a in args]
        return func(*args, **(kwargs or {}))


_WHOLE = {
    "linear": lambda x, w: F.linear(x, w),
    "layer_norm": lambda x, w: F.layer_norm(x, (4,), w[0]),
    "rms_norm": lambda x, w: F.rms_norm(x, (4,), w[0]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, w, w),
}


@pytest.mark.parametrize("name", _WHOLE)
def test_a_pending_negation_is_carried_out(name):
    f = _WHOLE[name]
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    with sb.deterministic():
        want = f(x, w)
        assert equal(want, f(torch._neg_view(-x), w))
        assert equal(want, f(x, torch._neg_view(-w)))


@pytest.mark.parametrize("grad", [False, True])
def test_a_weight_that_wraps_another_tensor(grad):
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    with sb.deterministic(), torch.set_grad_enabled(grad):
        assert equal(F.linear(x, w), F.linear(x, _Wrapper(w)))
        assert equal(F.linear(x, w), F.linear(_Wrapper(x), w))


@pytest.mark.parametrize("k", [1, 33, 70])
def test_a_contraction_to_one_element_is_a_product(k):
    """torch takes it as a dot product or as a sum, by its strides."""
    a, b = torch.randn(64, k), torch.randn(k, 64).t()
    with sb.deterministic():
        whole = torch.tensordot(a, b[:1], ([1], [1]))
        columns = a.t().contiguous()
        assert equal(whole[:, 0], vmap(lambda r: torch.inner(r, b[0]))(a))
        assert equal(whole[:, 0], vmap(lambda r: torch.inner(r, b[0]), in_dims=1)(columns))
        for i in range(64):
            assert equal(whole[i, 0], torch.inner(a[i], b[0]))
            assert equal(whole[i, 0], torch.inner(a[i], b[0].contiguous()))
            assert equal(whole[i : i + 1], torch.tensordot(a[i : i + 1], b[:1], ([1], [1])))
            column = b.t()[:, :1].expand(k, 2)[:, :1]
            assert equal(whole[i : i + 1], torch.tensordot(a[i : i + 1], column, 1))


@pytest.mark.parametrize("dims", [1, 0, ([0], [1]), ([1, 0], [0, 1])])
def test_tensordot_agrees_with_torch(dims):
    a, b = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    want = torch.tensordot(a, b, dims)
    with sb.deterministic():
        got = torch.tensordot(a, b, dims)
        (grad,) = torch.autograd.grad(got.sum(), a)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(grad, torch.autograd.grad(want.sum(), a)[0])


def test_logsumexp_out_has_the_bits_of_logsumexp():
    x = torch.randn(64, 33).bfloat16()
    with sb.deterministic():
        want = torch.logsumexp(x, -1)
        assert equal(want, torch.logsumexp(x, -1, out=torch.empty(64, dtype=x.dtype)))
        assert equal(want, torch.logsumexp(x, -1, out=torch.empty(0, dtype=x.dtype)))
        with pytest.raises(RuntimeError):
            torch.logsumexp(x, -1, out=torch.empty(64, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tensor", [False, True])
def test_lerp_of_zeros_at_weight_one(dtype, tensor):
    x, end = torch.randn(40, dtype=dtype), torch.full((40,), -0.0, dtype=dtype)
    weight = torch.ones(40, dtype=dtype) if tensor else 1.0
    apart = torch.empty(80, dtype=dtype)[::2].copy_(x)
    with sb.deterministic():
        want = torch.lerp(x, end, weight)
        assert equal(want, torch.lerp(apart, end, weight))
        first = torch.lerp(x[:1], end[:1], weight[:1] if tensor else weight)
        assert equal(want[:1], first)
