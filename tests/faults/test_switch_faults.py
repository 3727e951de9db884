"""Group X: the switch itself, and how wide a test has to be to find anything."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from faults.models import Decoder, built
from faults.properties import Pairs, holds, stock_fails, stock_is_known, values
from samebits import bits, mode
from samebits.errors import UncoveredError

X, W = values(5, 1000), values(1000, 1000, seed=1)


def invariant() -> bool:
    """Whether row 0 has the same bits alone and in a batch."""
    return bits.equal(F.linear(X, W)[0], F.linear(X[:1], W)[0])


def test_x2_disabling_restores_the_bits_of_stock() -> None:
    before = [F.linear(X, W), X.softmax(-1), X.cumsum(1), X.topk(3).indices, F.gelu(X)]
    with sb.deterministic():
        assert invariant()
    sb.enable()
    sb.disable()
    after = [F.linear(X, W), X.softmax(-1), X.cumsum(1), X.topk(3).indices, F.gelu(X)]
    assert all(bits.equal(a, b) for a, b in zip(before, after, strict=True))
    if stock_is_known():
        assert not invariant()


def test_x2_code_that_bound_the_old_symbol_is_covered() -> None:
    """References taken before: functions, methods, out=, a scripted and a compiled module."""
    linear, matmul, method, mm = F.linear, torch.matmul, torch.Tensor.__matmul__, torch.ops.aten.mm
    net = torch.nn.Linear(1000, 1000, bias=False).requires_grad_(False)
    net.weight.copy_(W)
    traced = torch.jit.trace(net, X, check_trace=False)
    calls = {
        "function": lambda t: linear(t, W),
        "matmul": lambda t: matmul(t, W),
        "method": lambda t: method(t, W),
        "aten": lambda t: mm(t, W),
        "module": net,
        "traced": traced,
        "in place": lambda t: torch.zeros(len(t), 1000).addmm_(t, W),
        "out": lambda t: torch.mm(t, W, out=torch.empty(len(t), 1000)),
    }

    def pairs() -> Pairs:
        for name, call in calls.items():
            yield name, call(X)[:1], call(X[:1])

    stock_fails(pairs)
    holds(pairs)


def test_x2_nested_blocks_and_two_threads() -> None:
    """The switch is the process's: a thread that meets it in force is covered, blocks nest."""
    seen: list[bool] = []
    with sb.deterministic():
        with sb.deterministic(policy="warn"):
            worker = threading.Thread(target=lambda: seen.append(invariant()))
            worker.start()
            worker.join()
        assert invariant() and sb.status().policy == "refuse"
        with mode.stock():
            assert not sb.status().on
        assert invariant()
    assert seen == [True] and not sb.status().on


def test_x2_a_thread_inside_a_block_while_another_leaves_its_own() -> None:
    inside, leave = threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        with sb.deterministic():
            inside.set()
            leave.wait()
            seen.extend(invariant() for _ in range(20))

    worker = threading.Thread(target=work)
    with sb.deterministic(policy="allow"):
        worker.start()
        inside.wait()
    leave.set()
    worker.join()
    assert seen == [True] * 20


def test_x2_what_is_not_covered_is_refused_in_every_form() -> None:
    x, out = values(6, 6), torch.empty(6, 6)
    with sb.deterministic():
        for call in (
            lambda: torch.cdist(x, x),
            lambda: torch.linalg.solve(x, x),
            lambda: torch.linalg.inv(x),
            lambda: torch.fft.fft(x),
            lambda: x.double() @ x.double(),
            lambda: torch.mm(x.double(), x.double(), out=out.double()),
            lambda: x.to_sparse() @ x,
        ):
            with pytest.raises((UncoveredError, RuntimeError)) as caught:
                call()
            assert isinstance(caught.value, UncoveredError), caught.value
            assert __file__ in str(caught.value) and caught.value.op.startswith("aten::")


def test_x5_wide_sweep_of_a_decoder() -> None:
    """Many prompts, batch sizes and neighbours, all positions, full logits.

    A weak test passes for months: here every prompt is compared at all its positions, in batches of
    every size, at every place.
    """
    model = built(Decoder, torch.float32, depth=2)
    prompts = torch.randint(0, 211, (33, 5), generator=torch.Generator().manual_seed(8))

    def pairs() -> Pairs:
        alone = torch.cat([model.logits(p[None]) for p in prompts])
        for m in range(2, 34):
            start = (m * 5) % (34 - m)
            yield f"{m} prompts", alone[start : start + m], model.logits(prompts[start : start + m])
        order = torch.randperm(33, generator=torch.Generator().manual_seed(2))
        yield "shuffled", alone[order], model.logits(prompts[order])

    stock_fails(pairs)
    holds(pairs)


def test_x5_every_m_of_a_layer() -> None:
    """All batch sizes up to 130, every row compared: tile edges and tails included."""
    x, w = values(130, 200), values(150, 200, seed=1)

    def pairs() -> Pairs:
        whole = F.linear(x, w)
        for m in range(1, 130):
            yield f"M = {m}", whole[:m], F.linear(x[:m], w)
            yield f"M = {m} at the end", whole[-m:], F.linear(x[-m:], w)

    stock_fails(pairs)
    holds(pairs)
