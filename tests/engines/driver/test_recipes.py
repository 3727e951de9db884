"""Operations that start again without Python: ordinary results, and what is not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import interpreter
from samebits import ops
from samebits.engines.driver import _cuda
from samebits.engines.driver.recipes import _Watch, recorded
from samebits.errors import SamebitsError

needs_gpu = pytest.mark.skipif(interpreter.INTERPRETED, reason="needs a GPU")
BF16 = torch.bfloat16


def numbers(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def test_what_launches_nothing_is_called_every_time() -> None:
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return 2 * x

    run, forget = recorded(double)
    x = torch.arange(4.0)
    for _ in range(4):
        assert torch.equal(run(x), 2 * x)
    forget()
    assert torch.equal(run(x), 2 * x) and len(calls) == 5


def test_an_error_is_an_error_every_time() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise SamebitsError("no")

    run, _ = recorded(refuse)
    for _ in range(3):
        with pytest.raises(SamebitsError, match="no"):
            run(torch.zeros(1))
    assert not _cuda.recording()


@pytest.mark.parametrize("work, computes", [
    (lambda x: torch.empty_like(x).view(-1)[1:].unsqueeze(0).expand(2, -1), False),
    (lambda x: x.transpose(0, 1).contiguous(), True),
    (lambda x: torch.empty_like(x).copy_(x), True),
    (lambda x: x.new_zeros(3), True),
    (lambda x: bool(x.any()), True),
])  # fmt: skip
def test_everything_that_computes_is_seen(work: Callable[[Any], Any], computes: bool) -> None:
    x = torch.zeros(3, 4)
    with _Watch() as watch:
        assert watch.allocated() is None
        torch.empty(0)
        work(x)
    assert (watch.allocated() is None) is computes


#: Operations, and what makes operands of one kind.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "rms_norm": (ops.rms_norm, lambda: (numbers(3, 512), (512,), numbers(512))),
    "rms_norm with a residual": (
        lambda x, w, r: ops.rms_norm(x, (512,), w, residual=r),
        lambda: (numbers(3, 512), numbers(512), numbers(3, 512)),
    ),
    "layer_norm of slices": (
        lambda x, w: ops.layer_norm(x[:, 128:640], (512,), w, w),
        lambda: (numbers(3, 768), numbers(512)),
    ),
    "softmax of long rows": (ops.softmax, lambda: (numbers(2, 20000),)),
    "token_logprob": (
        ops.token_logprob, lambda: (numbers(3, 20000), torch.randint(20000, (3,), device="cuda")),
    ),
    "silu": (ops.silu, lambda: (numbers(3, 200),)),
    "silu_mul": (ops.silu_mul, lambda: (numbers(3, 200), numbers(3, 200))),
    "silu_mul of halves": (
        lambda x: ops.silu_mul(*x.chunk(2, -1)), lambda: (numbers(3, 512),),
    ),
    "rotary": (ops.rotary, lambda: (numbers(3, 4, 64), numbers(3, 1, 64), numbers(3, 1, 64))),
    "attention of one position": (
        ops.attention,
        lambda: (numbers(1, 8, 1, 64), numbers(1, 2, 1200, 64), numbers(1, 2, 1200, 64)),
    ),
    "attention of a fused projection": (
        lambda x: ops.attention(*(t.transpose(1, 2) for t in x.unbind(2)), causal=True),
        lambda: (numbers(2, 70, 3, 4, 64),),
    ),
}  # fmt: skip


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@needs_gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_later_calls_give_what_the_first_ones_would(name: str) -> None:
    """Six calls, each on other operands at other addresses, some of them in a graph."""
    from samebits.plan import planner

    work, make = OPERATIONS[name]
    operands = [make() for _ in range(6)]
    wanted = []
    for args in operands:
        planner.forget()
        wanted.append(flat(work(*args)))
    planner.forget()
    found = [flat(work(*args)) for args in operands]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flat(work(*operands[0]))
    graph.replay()
    for some, others in zip([*wanted, wanted[0]], [*found, captured], strict=True):
        for a, b in zip(some, others, strict=True):
            assert a.shape == b.shape and a.stride() == b.stride() and a.dtype is b.dtype
            assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@needs_gpu
def test_operands_that_overlap_are_not_mistaken_for_others() -> None:
    """The kind of call that is kept must not remember that two operands were one."""
    weight = numbers(512)

    def norm(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(x, (512,), weight, residual=residual)[0]

    from samebits.plan import planner

    planner.forget()
    x, other = numbers(3, 512), numbers(3, 512)
    same = [norm(x, x) for _ in range(4)]
    different = norm(x, other)
    planner.forget()
    assert torch.equal(different, norm(x, other))
    assert all(torch.equal(s, norm(x, x)) for s in same)


@needs_gpu
def test_a_negated_view_is_not_taken_for_its_memory() -> None:
    z = torch.randn(4, 256, device="cuda", dtype=torch.complex64)
    plain, negated = z.imag, z.conj().imag
    assert negated.is_neg()
    for _ in range(4):
        kept = ops.softmax(plain)
    assert torch.equal(ops.softmax(negated), ops.softmax(negated.resolve_neg()))
    assert torch.equal(kept, ops.softmax(plain))


@needs_gpu
def test_a_gradient_is_still_asked_for() -> None:
    x, w = numbers(3, 512), numbers(512)
    for _ in range(4):
        ops.rms_norm(x, (512,), w)
    with pytest.raises(SamebitsError, match="no backward"):
        ops.rms_norm(x.requires_grad_(), (512,), w)
