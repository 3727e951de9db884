"""Attention and rows of a plan, compared with their contracts: bits of a sample, and the tree.

These families are compared and not tuned, so they have operands here and no bench.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samebits.contract import AttentionContract, RowContract
from samebits.contract.tree import Segment
from samebits.engines.schedule import Schedule, ScheduleKey
from samebits.engines.triton.attention import run as attention
from samebits.engines.triton.attention.schedule import AttentionSchedule
from samebits.engines.triton.rows import norm, softmax
from samebits.engines.triton.rows.schedule import RowSchedule
from samebits.errors import PlanError
from samebits.plan.keys import contract_at
from samebits.plan.tune import gpu
from samebits.reveal import RevealedTree
from samebits.reveal.compare import difference as tree_difference
from samebits.reveal.operand import Operand
from samebits.reveal.positive import Terms

#: Rows of a result that the evaluator computes, and keys that attention is compared over.
SAMPLE_ROWS, KEYS = 6, 1100
_EPS = 1e-6
ROW_OPS = ("softmax", "log_softmax", "rms_norm", "layer_norm")


def checkable(key: ScheduleKey) -> bool:
    """Whether there is a checker for the key: attention without an fp8 cache, and rows."""
    if key.op == "attention":
        return key.kv_dtype in (None, key.dtype) and key.dtype in gpu.DTYPES
    return key.op in ROW_OPS and key.dtype in gpu.DTYPES


def checker_of(key: ScheduleKey, device: torch.device) -> RowChecker | AttentionChecker:
    """Operands of a key on a device.

    Raises:
        PlanError: no checker makes operands for it.
    """
    if not checkable(key):
        raise PlanError(f"{key}: no checker makes operands for it")
    kind = AttentionChecker if key.op == "attention" else RowChecker
    return kind(key, device)


class RowChecker:
    """A row operation over [m, key.k]."""

    def __init__(self, key: ScheduleKey, device: torch.device) -> None:
        contract = contract_at(key)
        assert isinstance(contract, RowContract)
        self.key, self.contract, self.device = key, contract, device
        self.n = key.k or 1024
        self.dtype, self.out = gpu.DTYPES[key.dtype], gpu.DTYPES[key.out_dtype]

    def run(self, schedule: Schedule, x: torch.Tensor) -> torch.Tensor:
        """The operation by a schedule."""
        assert isinstance(schedule, RowSchedule)
        if self.key.op in ("softmax", "log_softmax"):
            return softmax.softmax(x, self.out, schedule, log=self.key.op == "log_softmax")
        centred = self.key.op == "layer_norm"
        return norm.norm(x, None, None, None, _EPS, schedule, centred=centred)[0]

    def difference(self, schedule: Schedule, m: int) -> str | None:
        """See `tune.search.Bench`."""
        x = _random((m, self.n), self.dtype, self.device)
        y = _attempt(lambda: self.run(schedule, x))
        rows = _sample(m)
        truth = self.contract.evaluate(x[rows].cpu(), eps=_EPS, out_dtype=self.out)
        return _compared(y[rows], truth)

    def other_tree(self, schedule: Schedule, m: int) -> str | None:
        """See `verify.Checker`. Norms, and results that are not fp32, do not show their tree."""
        if self.key.op not in ("softmax", "log_softmax") or self.out != torch.float32:
            return None
        slots = min(m, 64)
        terms = Terms(math.log, -math.inf, (1.0,))
        operand = Operand(
            str(self.key), self.n, slots, self.dtype, self.device,
            lambda x: self.run(schedule, x)[None],
        )  # fmt: skip
        tree = RevealedTree.from_contract(self.contract.tree, self.n)
        return tree_difference(operand, tree, terms=terms, most=128)


class AttentionChecker:
    """m rows (positions times the heads of a group) over `KEYS` keys of one sequence."""

    def __init__(self, key: ScheduleKey, device: torch.device) -> None:
        contract = contract_at(key)
        assert isinstance(contract, AttentionContract)
        self.key, self.contract, self.device = key, contract, device
        self.group, self.dtype = key.group or 1, gpu.DTYPES[key.dtype]
        self.d, self.dv = key.head_dim or 128, key.value_dim or key.head_dim or 128
        self.k, self.v = (_random((1, 1, KEYS, d), self.dtype, device) for d in (self.d, self.dv))

    def run(
        self, schedule: Schedule, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Attention of [1, H, T, D] by a schedule."""
        assert isinstance(schedule, AttentionSchedule)
        options = attention.Options(1 / math.sqrt(self.d))
        return attention.dense(self.contract, schedule, q, k, v, options)[0]

    def positions(self, m: int) -> int:
        """Rows of a head."""
        return max(1, m // self.group)

    def difference(self, schedule: Schedule, m: int) -> str | None:
        """See `tune.search.Bench`."""
        q = _random((1, self.group, self.positions(m), self.d), self.dtype, self.device)
        y = _attempt(lambda: self.run(schedule, q, self.k, self.v))
        rows = _sample(self.positions(m))
        for head in dict.fromkeys((0, self.group - 1)):
            truth = self.contract.evaluate(
                q[0, head, rows].cpu(), self.k[0, 0].cpu(), self.v[0, 0].cpu(),
                out_dtype=self.dtype,
            )  # fmt: skip
            why = _compared(y[0, head, rows], truth)
            if why is not None:
                return why
        return None

    def other_tree(self, schedule: Schedule, m: int) -> str | None:
        """See `verify.Checker`: of the values' sum over keys, with equal scores."""
        q = torch.zeros(
            (1, self.group, self.positions(m), self.d), dtype=self.dtype, device=self.device
        )
        k = torch.zeros_like(self.k)

        def values(addends: torch.Tensor) -> torch.Tensor:
            v = addends.t().contiguous()[None, None]
            return self.run(schedule, q, k, v)[0].reshape(-1, self.dv)

        operand = Operand(str(self.key), KEYS, self.dv, self.dtype, self.device, values)
        tree = RevealedTree.from_contract(
            Segment(self.contract.leaf), KEYS, self.contract.arithmetic
        )
        return tree_difference(operand, tree)


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers with exponents spread over 2^+-3."""
    generator = torch.Generator().manual_seed(len(shape))
    spread = torch.randint(-3, 4, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), spread).to(dtype).to(device)


def _sample(rows: int) -> list[int]:
    return sorted({int(r) for r in np.linspace(0, rows - 1, min(rows, SAMPLE_ROWS))})


def _attempt(work: Callable[[], torch.Tensor]) -> torch.Tensor:
    found: list[torch.Tensor] = []
    gpu.attempt(lambda: found.append(work()))
    return found[0]


def _compared(y: torch.Tensor, truth: Any) -> str | None:
    different = gpu.words(y.cpu()) != gpu.words(truth)
    if not bool(different.any()):
        return None
    where = different.nonzero()[0].tolist()
    return (
        f"{int(different.sum())} of {y.numel()} elements of a sample differ from the contract, "
        f"the first at {where}"
    )
