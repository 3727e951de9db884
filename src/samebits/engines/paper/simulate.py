"""The bits of the accelerator on paper, whatever arrives when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from samebits.contract import AttentionContract, LinearContract
from samebits.contract import numerics as nx
from samebits.contract.dot import dot
from samebits.contract.numerics import F32
from samebits.contract.operands import Operand
from samebits.contract.tree import CHAIN
from samebits.engines.leaves import leaves_of
from samebits.engines.paper.schedule import PaperSchedule
from samebits.errors import ContractError


def linear(
    contract: LinearContract,
    schedule: PaperSchedule,
    x: Operand,
    weight: Operand,
    arrival: Sequence[int] | None = None,
) -> F32:
    """[M, N] accumulators of x [M, K] and weight [N, K], as the machine computes them.

    Args:
        arrival: the order in which the cores of a tile finish; by their numbers if None.

    Raises:
        ContractError: the schedule does not cut k as the contract's tree does, or `arrival` does
            not name every core once.
    """
    a, w, _, _ = contract.operands(x, weight, None, None)
    leaves = leaves_of(contract.tree, a.shape[1])
    if schedule.parts == 1:
        return contract.sums(a, w)
    if schedule.parts != leaves.count or leaves.pairwise:
        raise ContractError(f"{schedule} does not share the {leaves.count} leaves of k")
    order = list(range(leaves.count)) if arrival is None else list(arrival)
    if sorted(order) != list(range(leaves.count)):
        raise ContractError(f"{leaves.count} cores arrive each once, not as {order}")
    edges = [slice(i * leaves.length, (i + 1) * leaves.length) for i in range(leaves.count)]
    partial = [dot(a[:, e], w[:, e], CHAIN, contract.arithmetic) for e in edges]
    if schedule.mode == "ordered":  # the reduction unit waits for whose turn it is
        order.sort()
    total = partial[order[0]]
    for core in order[1:]:
        total = nx.add32(total, partial[core])
    return total


def attention(
    contract: AttentionContract,
    schedule: PaperSchedule,
    q: Operand,
    k: Operand,
    v: Operand,
    idle: int = 1,
    **options: Any,
) -> Operand:
    """The result of `AttentionContract.evaluate`, as the machine computes it.

    Args:
        idle: cores that take part. Where the map of keys is not locked, each takes an equal share
            of the pages of 64 keys, so that leaves end where the load has put them.
        options: of `AttentionContract.evaluate`.
    """
    if schedule.mode == "free" and schedule.parts > 1:
        keys = int(np.shape(k)[-2])
        pages = -(-keys // 64)
        contract = replace(contract, leaf=64 * -(-pages // idle))
    return contract.evaluate(q, k, v, **options)
