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

    for op, n, dtype in (("rms_norm", 1765, BF), ("layer_norm", 4096, HF), ("rms_norm", 9001, FP)):
        x, w = numbers(n, 2, n, dtype=dtype), numbers(1, n, dtype=dtype)
        yield Case(
            f"{op} {n}", (x, w), lambda x, w, op=op: getattr(ops, op)(x, w.shape, w, eps=1e-6),
            lambda x, w, op=op, d=dtype: _contract(op, d, d).evaluate(x, w, eps=1e-6, out_dtype=d),
        )  # fmt: skip
    for op, n, out in (("softmax", 1765, FP), ("log_softmax", 9001, BF)):
        yield Case(
            f"{op} {n}", (numbers(n, 2, n, dtype=BF, spread=3),),
            lambda x, op=op, o=out: getattr(ops, op)(x, dtype=o),
            lambda x, op=op, o=out: _contract(op, BF, o).evaluate(x, out_dtype=o),
        )  # fmt: skip
    for op, n in (("sum", 77), ("var", 77), ("logsumexp", 5000), ("sum", 20011), ("std", 20011)):
        yield Case(
            f"{op} {n}", (numbers(n, 64, n, dtype=FP, spread=3),),
            lambda x, op=op: getattr(ops, op)(x, -1),
            lambda x, op=op: _contract(op, FP, FP).evaluate(x),
        )  # fmt: skip
    ids = torch.arange(64) * 300
    yield Case(
        "token_logprob 20011", (numbers(5, 64, 20011, dtype=BF, spread=3), ids),
        lambda x, ids: ops.token_logprob(x, ids, dtype=FP),
        lambda x, ids: _contract("log_softmax", BF, FP).evaluate(x)[torch.arange(64), ids],
    )  # fmt: skip
