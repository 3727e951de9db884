"""Verdicts on differences: another order is noise, what is outside the interval is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from samebits.check import check
from samebits.check.cause.capture import Capture, Operation
from samebits.check.cause.marks import Request
from samebits.check.noise import FIRST, OCTAVES, histogram, noise
from samebits.check.result import Report
from samebits.check.tape import window
from samebits.contract.operands import widen
from samebits.report.summary import noise_sentence

G = torch.Generator().manual_seed(0)
X = torch.randn(6, 384, generator=G)
W, B = torch.randn(96, 384, generator=G), torch.randn(96, generator=G)
Q, K, V = (torch.randn(6, 2, 70, 32, generator=G) for _ in range(3))

CALLS: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {
    "mm": ("aten.mm.default", lambda: F.linear(X, W)),
    "addmm": ("aten.addmm.default", lambda: F.linear(X, W, B)),
    "addmm of bf16": (
        "aten.addmm.default",
        lambda: F.linear(X.bfloat16(), W.bfloat16(), B.bfloat16()),
    ),
    "bmm": ("aten.bmm.default", lambda: torch.bmm(Q[:, 0], K[:, 0].mT)),
    "softmax": ("aten._softmax.default", lambda: X.softmax(-1)),
    "log_softmax": ("aten._log_softmax.default", lambda: X.log_softmax(-1)),
    "sum": ("aten.sum.dim_IntList", lambda: X.sum(-1)),
    "mean": ("aten.mean.dim", lambda: X.mean(-1)),
    "layer_norm": ("aten.native_layer_norm.default", lambda: F.layer_norm(X, (384,), W[0], W[1])),
    "attention": (
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        lambda: F.scaled_dot_product_attention(Q, K, V, is_causal=True),
    ),
}


def capture(op: str, call: Callable[[], torch.Tensor], row: int = 2) -> Operation:
    tape = Capture(None, Request(row), {("", op, 0): 0})
    with torch.no_grad(), tape.playing(), window(6):
        call()
    return tape.found["", op, 0]


def moved(op: Operation, change: Callable[[torch.Tensor], torch.Tensor]) -> Operation:
    """The same call with another result."""
    return replace(op, output=[change(op.output[0]), *op.output[1:]])


def last_bit(y: torch.Tensor) -> torch.Tensor:
    """Every element one unit in the last place away; bf16 hides that."""
    return y if y.dtype is torch.bfloat16 else torch.nextafter(y, torch.full_like(y, torch.inf))


def wrong(y: torch.Tensor) -> torch.Tensor:
    """Some elements off by a fifth of the results' size."""
    return torch.where(torch.arange(y.shape[-1]) % 2 == 0, y + y.abs().mean() / 5, y)


@pytest.mark.parametrize("name", list(CALLS))
def test_a_last_bit_is_noise_and_an_error_is_a_defect(name: str) -> None:
    op = capture(*CALLS[name])
    found = noise(op, moved(op, last_bit))
    assert found is not None
    assert found.verdict == "reordering" and found.outside == 0 and found.elements > 0
    assert sum(found.predicted) > 0 and sum(found.stock) > 0
    assert found.switched is not None and sum(found.switched[1:]) == 0
    assert 0 <= found.reach < 2.0**-4
    found = noise(op, moved(op, wrong))
    assert found is not None and found.verdict == "defect"
    assert found.outside > 0 and found.times > 1


def test_a_changed_operand_gets_no_verdict() -> None:
    op = capture(*CALLS["mm"])
    other = replace(op, args=(op.args[0] + 1, *op.args[1:]))
    assert noise(op, other) is None
    assert noise(capture("aten.relu.default", lambda: X.relu()), op) is None


def test_dropped_terms_are_a_defect() -> None:
    """A product that leaves out the last of k differs by far less than the results are large."""
    op = capture(*CALLS["mm"])
    short = F.linear(X[:, :-1], W[:, :-1])
    found = noise(op, replace(op, output=[short]))
    assert found is not None and found.verdict == "defect"


def test_lower_precision_is_suspect_at_least() -> None:
    """tf32 may hide inside what the worst order could do with so many terms, but not in noise."""
    x, w = torch.randn(6, 8192, generator=G), torch.randn(64, 8192, generator=G)
    op = capture("aten.mm.default", lambda: F.linear(x, w))
    half = torch.from_numpy(widen(x.numpy().view("uint32"), "tf32"))
    found = noise(op, replace(op, output=[F.linear(half, w)]))
    assert found is not None and found.verdict == "suspect" and found.times > 8
    assert "lower precision" in noise_sentence(found)


def test_check_gives_every_difference_a_verdict() -> None:
    weight = torch.randn(128, 1024, generator=G)
    report = check(lambda x: F.linear(x, weight), torch.randn(1, 1024, generator=G),
                   promises=["rows"], costs=False)  # fmt: skip
    (test,) = report.tests
    assert test.stock is not None and test.stock.verdict == "differs"
    divergence = test.stock.divergence
    assert divergence is not None and divergence.noise is not None
    assert divergence.noise.verdict == "reordering"
    assert divergence.noise.stock[0] < sum(divergence.noise.stock)
    assert divergence.noise.switched is not None
    assert sum(divergence.noise.switched[1:]) == 0
    assert Report.from_json(report.to_json()) == report


def test_histogram() -> None:
    counts = histogram(np.array([0.0, 2.0**FIRST, -(2.0 ** (FIRST + 1)), 1e-30, np.nan, 1e9]), 1.0)
    assert len(counts) == OCTAVES + 1 and sum(counts) == 6
    assert counts[:3] == (1, 2, 1) and counts[-1] == 2
    assert histogram(np.array([8.0]), 4.0)[2 - FIRST] == 1
