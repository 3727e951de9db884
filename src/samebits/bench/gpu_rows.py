"""Operations along rows and elementwise ones: norms, softmax, activations, rotary embedding.

Contenders: torch eager and torch.compile (Inductor), of which the better counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from samebits import ops
from samebits.bench.gpu import OURS, Line, line
from samebits.bench.gpu_timing import race, sets_for
from samebits.mode import stock

EAGER, COMPILED = "torch eager", "torch.compile"
WIDTH, HIDDEN, VOCABULARY, D = 4096, 12288, 151936, 128
EPS = 1e-6

Tensor = torch.Tensor
Function = Callable[..., object]


@dataclass(frozen=True)
class Case:
    """One operation: operand shapes, what torch calls it, what samebits calls it.

    Attributes:
        passes: bytes read and written, as multiples of the bytes of the first operand.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    theirs: Function
    ours: Function
    passes: float


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def _residual_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, (WIDTH,), weight, EPS), total


def _token_logprob(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, ids[:, None])


def cases(rows: int) -> Iterator[Case]:
    """The operations for `rows` tokens."""
    wide, weight = (rows, WIDTH), (WIDTH,)
    yield Case(
        "rms_norm", (wide, weight),
        lambda x, w: F.rms_norm(x, (WIDTH,), w, EPS),
        lambda x, w: ops.rms_norm(x, (WIDTH,), w, EPS), 2,
    )  # fmt: skip
    yield Case(
        "rms_norm, residual", (wide, wide, weight), _residual_norm,
        lambda x, r, w: ops.rms_norm(x, (WIDTH,), w, EPS, residual=r), 4,
    )  # fmt: skip
    yield Case(
        "layer_norm", (wide, weight, weight),
        lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b),
        lambda x, w, b: ops.layer_norm(x, (WIDTH,), w, b), 2,
    )  # fmt: skip
    yield Case("silu_mul", ((rows, HIDDEN), (rows, HIDDEN)), _silu_mul, ops.silu_mul, 3)
    yield Case(
        "rotary", ((rows, 32, D), (rows, 1, D), (rows, 1, D)), _rotate, ops.rotary, 2 + 2 / 32
    )
    if rows <= 1024:
        logits = (rows, VOCABULARY)
        yield Case("softmax", (logits,), lambda x: x.softmax(-1), lambda x: ops.softmax(x, -1), 2)
        yield Case(
            "log_softmax", (logits,),
            lambda x: x.log_softmax(-1), lambda x: ops.log_softmax(x, -1), 2,
        )  # fmt: skip
        ids = torch.randint(VOCABULARY, (rows,), device="cuda")
        yield Case(
            "token_logprob", (logits,),
            lambda x: _token_logprob(x, ids), lambda x: ops.token_logprob(x, ids), 1,
        )  # fmt: skip


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def lines(quick: bool) -> Iterator[Line]:
    """One line an operation and number of rows."""
    for rows in (256,) if quick else (1, 64, 8192):
        for case in cases(rows):
            yield _line(case, rows, compiled=not quick)


def _line(case: Case, rows: int, compiled: bool) -> Line:
    size = 2 * sum(torch.Size(shape).numel() for shape in case.shapes)
    sets = sets_for(size)
    operands = [
        [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in case.shapes]
        for _ in range(sets)
    ]
    contenders = {
        OURS: lambda i: case.ours(*operands[i]),
        EAGER: lambda i: case.theirs(*operands[i]),
    }
    with stock(), torch.no_grad():
        if compiled:
            torch.compiler.reset()
            fused = torch.compile(case.theirs, dynamic=False)
            contenders[COMPILED] = lambda i: fused(*operands[i])
        result = race(contenders, sets=sets, rounds=5)
    return line(
        "rows",
        case.name,
        f"{case.name} of {rows}",
        result,
        against=(EAGER, COMPILED),
        size=case.passes * 2 * torch.Size(case.shapes[0]).numel(),
        target=1.0,
        x=rows,
    )
