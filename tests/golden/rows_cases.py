"""Row operations whose bytes were recorded on an H200: inputs from integers, the same anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samebits.contract import RowContract
from samebits.plan import contract_of

BF, HF, FP = torch.bfloat16, torch.float16, torch.float32


def numbers(seed: int, *shape: int, dtype: torch.dtype, spread: int = 6) -> torch.Tensor:
    """Random significands, signs and exponents in [-spread, spread]."""
    g = np.random.Generator(np.random.PCG64(seed))
    significand = 1 + g.integers(0, 1 << 23, shape) / 2.0**23
    sign = 1 - 2 * g.integers(0, 2, shape)
    x = np.ldexp(significand * sign, g.integers(-spread, spread + 1, shape)).astype(np.float32)
    return torch.from_numpy(x).to(dtype)


@dataclass(frozen=True)
class Case:
    """One operation: `run` computes it from tensors on a GPU, `exact` by the contract."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    run: Callable[..., torch.Tensor]
    exact: Callable[..., Any]


def _contract(op: str, dtype: torch.dtype, out: torch.dtype) -> RowContract:
    found = contract_of(op, dtype=dtype, out_dtype=out, device="sm_90")
    assert isinstance(found, RowContract)
    return found


def cases() -> Iterator[Case]:
    """Every row operation: lengths of one leaf and of several, odd ones among them."""
    from samebits import ops

    for n, dtype in ((1765, BF), (4096, HF), (9001, FP)):
        x = numbers(n, 1 if dtype is FP else 2, n, dtype=dtype)
        w, b = (numbers(seed, n, dtype=dtype) for seed in (1, 2))
        yield Case(
            f"rms_norm {n} {dtype}", (x, w), lambda x, w: ops.rms_norm(x, w.shape, w, 1e-6),
            lambda x, w, d=dtype: _contract("rms_norm", d, d).evaluate(x, w, eps=1e-6, out_dtype=d),
        )  # fmt: skip
        yield Case(
            f"layer_norm {n} {dtype}", (x, w, b), lambda x, w, b: ops.layer_norm(x, w.shape, w, b),
            lambda x, w, b, d=dtype: _contract("layer_norm", d, d).evaluate(x, w, b, out_dtype=d),
        )  # fmt: skip
    for n, dtype, out in ((1765, BF, FP), (9001, BF, BF)):
        x = numbers(n, 1, n, dtype=dtype, spread=3)
        for op in ("softmax", "log_softmax"):
            yield Case(
                f"{op} {n} {dtype}", (x,), lambda x, op=op, o=out: getattr(ops, op)(x, dtype=o),
                lambda x, op=op, d=dtype, o=out: _contract(op, d, o).evaluate(x, out_dtype=o),
            )  # fmt: skip
    for n in (77, 5000, 20011):
        x = numbers(n, 32, n, dtype=BF, spread=3)
        for op, run in (
            ("sum", lambda x: ops.sum(x, -1, dtype=FP)),
            ("mean", lambda x: ops.mean(x, -1, dtype=FP)),
            ("norm", lambda x: ops.vector_norm(x, 2, -1, dtype=FP)),
        ):  # fmt: skip
            exact = lambda x, op=op: _contract(op, BF, FP).evaluate(x)  # noqa: E731
            yield Case(f"{op} {n}", (x,), run, exact)
        y = x.float()
        for op in ("var", "std", "logsumexp"):
            run = lambda x, op=op: getattr(ops, op)(x, -1)  # noqa: E731
            exact = lambda x, op=op: _contract(op, FP, FP).evaluate(x)  # noqa: E731
            yield Case(f"{op} {n}", (y,), run, exact)
        ids = torch.arange(32) * 2
        yield Case(
            f"token_logprob {n}", (x, ids), lambda x, ids: ops.token_logprob(x, ids, dtype=FP),
            lambda x, ids: _contract("log_softmax", BF, FP).evaluate(x)[torch.arange(32), ids],
        )  # fmt: skip
