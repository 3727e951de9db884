"""Compiled code has eager's bits while the switch is on, and stock bits when it is off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from samebits.errors import UncoveredError


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    torch._dynamo.reset()
    sb.disable()
    yield
    sb.disable()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    view = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(
        a.detach().contiguous().view(view), b.detach().contiguous().view(view)
    )


torch.manual_seed(5)
W, G = torch.randn(64, 64), torch.randn(64)


def rope(x: torch.Tensor) -> torch.Tensor:
    angle = torch.arange(32, dtype=torch.float32) * 0.01
    a, b = x[..., :32], x[..., 32:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: F.linear(x, W.to(x.dtype), G.to(x.dtype)),
    "softmax": lambda x: torch.softmax(x * 3, -1),
    "rms_norm": lambda x: F.rms_norm(x + 1, (64,), G.to(x.dtype)),
    "rms_norm by hand": lambda x: x * torch.rsqrt(x.float().pow(2).mean(-1, True) + 1e-6).to(x),
    "silu times": lambda x: F.silu(x) * (x + 1),
    "rope": rope,
    "einsum": lambda x: torch.einsum("mk,nk->mn", x, W.to(x.dtype)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_equals_eager_for_every_batch(name: str, dtype: torch.dtype) -> None:
    f = FUNCTIONS[name]
    x = torch.randn(9, 64).to(dtype)
    with sb.deterministic():
        compiled = torch.compile(f, dynamic=True, fullgraph=True)
        for m in (2, 5, 9, 1):
            assert same(compiled(x[:m]), f(x)[:m])


def test_gradients_of_compiled_code() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8, bias=False)
    )
    parameters = list(model.parameters())
    with sb.deterministic():
        compiled = torch.compile(model, dynamic=True)
        for m in (2, 7):
            x = torch.randn(m, 64)
            eager = torch.autograd.grad(model(x).square().sum(), parameters)
            ours = torch.autograd.grad(compiled(x).square().sum(), parameters)
            assert all(map(same, eager, ours))


def test_a_composite_taken_whole_is_recorded_whole() -> None:
    seen: list[str] = []

    def backend(graph, inputs):  # type: ignore[no-untyped-def]
        from torch._dynamo.backends.common import aot_autograd

        def record(g, _):  # type: ignore[no-untyped-def]
            seen.extend(str(n.target) for n in g.graph.nodes if n.op == "call_function")
            return g.forward

        return aot_autograd(fw_compiler=record)(graph, inputs)

    with sb.deterministic(), torch.no_grad():
        torch.compile(FUNCTIONS["linear"], backend=backend)(torch.randn(3, 64))
    assert "samebits.linear.default" in seen


def test_before_during_and_after() -> None:
    def tied(x: torch.Tensor) -> torch.Tensor:
        return (x + 0).topk(8).indices

    x = torch.zeros(16)
    compiled = torch.compile(tied)
    stock = compiled(x)  # compiled by Inductor before the switch came
    assert stock.tolist() != list(range(8))
    with sb.deterministic():
        assert compiled(x).tolist() == list(range(8))
    assert torch.equal(compiled(x), stock)


def test_the_callers_deterministic_flag_does_not_hide_the_switch() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.zeros(16)
        compiled = torch.compile(lambda x: x.topk(8).indices, backend="aot_eager")
        stock = compiled(x)
        assert stock.tolist() != list(range(8))
        with sb.deterministic():
            assert compiled(x).tolist() == list(range(8))
        assert torch.equal(compiled(x), stock)
    finally:
        torch.use_deterministic_algorithms(False)


def test_inductor_imported_later_is_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch._inductor.compile_fx"
    import torch._inductor.compile_fx as module

    with sb.deterministic():
        assert module.compile_fx.__module__ == "samebits.mode.compile"
    assert module.compile_fx.__module__ == name
    monkeypatch.delitem(sys.modules, name)
    with sb.deterministic():
        import importlib

        fresh = importlib.import_module(name)
        assert fresh is not module
        assert fresh.compile_fx.__module__ == "samebits.mode.compile"
    assert fresh.compile_fx.__module__ == name
    assert not any(type(hook).__name__ == "_OnImport" for hook in sys.meta_path)


def test_other_compilers_are_refused() -> None:
    from torch._dynamo import register_backend
    from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS
    from torch._dynamo.exc import BackendCompilerFailed

    def makes_kernels(graph, inputs):  # type: ignore[no-untyped-def]
        return graph.forward

    register_backend(makes_kernels, name="makes_kernels")
    try:
        compiled = torch.compile(lambda x: x + 1, backend="makes_kernels")
        with sb.deterministic(), pytest.raises(BackendCompilerFailed, match="makes_kernels") as e:
            compiled(torch.ones(2))
        assert isinstance(e.value.inner_exception, UncoveredError)
        with sb.deterministic(policy="allow"):
            assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    finally:
        _BACKENDS.pop("makes_kernels")
        _COMPILER_FNS.pop("makes_kernels")
