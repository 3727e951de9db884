"""Grouped products of a mixture of experts on the GPU, for the tuner."""

from __future__ import annotations

import torch

from samebits.contract import LinearContract
from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.engines.triton.grouped.routing import Groups, contiguous_groups
from samebits.engines.triton.grouped.run import grouped_linear
from samebits.engines.triton.grouped.schedule import GroupedSchedule
from samebits.errors import PlanError
from samebits.plan.families import candidates_at
from samebits.plan.keys import contract_at
from samebits.plan.tune import gpu
from samebits.plan.tune.gpu import DTYPES, Pools
from samebits.plan.tune.search import Timer
from samebits.reveal import RevealedTree
from samebits.reveal.compare import difference as tree_difference
from samebits.reveal.operand import Operand

#: Other choices of experts that calls rotate over, so that few experts are not read from the L2.
ROUTINGS = 8
#: Slots and columns of the result that the evaluator computes.
SAMPLE_SLOTS, SAMPLE_COLUMNS = 4, 16


class GroupedBench:
    """y[s, n] = x[s, k] @ w[expert of s, n, k].T for m slots sorted by expert, for `search`.

    Slots choose experts at random, as evenly as chance has it. Bits are compared as in
    `linear.LinearBench`, with a reference of its own for every number of slots.
    """

    def __init__(self, key: ScheduleKey, pools: Pools) -> None:
        contract = contract_at(key)
        if not isinstance(contract, LinearContract) or not (key.n and key.k and key.experts):
            raise PlanError(f"{key} is no grouped product with a size")
        self.key, self.contract, self.pools = key, contract, pools
        self.n, self.k, self.experts = key.n, key.k, key.experts
        self.out = DTYPES[key.out_dtype]
        size, most = self.n * self.k, BUCKETS[-1]
        numbers = pools.numbers(max(self.experts * size, most * self.k))
        self.weights = numbers[: self.experts * size].view(self.experts, self.n, self.k)
        self.x = numbers[-most * self.k :].view(most, self.k)
        self.check_x, self.check_w = gpu.cancelling(self.x), gpu.doubled(self.weights)
        self.references: dict[int, torch.Tensor] = {}
        self._known: dict[tuple[int, int], Groups] = {}

    def candidates(self, bucket: int) -> list[Schedule]:
        return candidates_at(self.key, bucket)

    def difference(self, schedule: Schedule, m: int) -> str | None:
        found: list[torch.Tensor] = []
        gpu.attempt(lambda: found.append(self._run(schedule, m, 0, check=True)))
        y = found[0]
        if m not in self.references:
            self.references = {m: self._confirmed(y, m)}
        different = gpu.words(y) != gpu.words(self.references[m])
        if not bool(different.any()):
            return None
        slot, column = different.nonzero()[0].tolist()
        truth = self._evaluate(m, [slot], [column])
        if not torch.equal(
            gpu.words(truth).flatten(),
            gpu.words(self.references[m][slot, column : column + 1]).cpu(),
        ):
            raise PlanError(f"{self.key}: the reference is wrong at slot {slot}, column {column}")
        return gpu.describe_difference(y, different, truth)

    def other_tree(self, schedule: Schedule, m: int) -> str | None:
        assert isinstance(schedule, GroupedSchedule)
        one, groups = torch.ones_like(self.x[:m]), self._groups(m, 0)
        first = int(self._experts_of(m, 0)[0])
        weights = torch.zeros_like(self.weights)

        def run(w: torch.Tensor) -> torch.Tensor:
            weights[first] = w
            y: torch.Tensor = grouped_linear(
                self.contract, schedule, one, weights, groups, out_dtype=self.out, scatter=False
            )
            return y

        operand = Operand(str(self.key), self.k, self.n, one.dtype, one.device, run)
        tree = RevealedTree.from_contract(self.contract.tree, self.k, self.contract.arithmetic)
        return tree_difference(operand, tree)

    def timer(self, schedule: Schedule, m: int) -> Timer:
        touched = min(self.experts, m) * self.n * self.k
        for routing in range(ROUTINGS):  # not while a graph is captured
            self._groups(m, routing)
        return gpu.timer_of(
            lambda i: self._run(schedule, m, i), ROUTINGS,
            (touched + m * (self.n + self.k)) * self.x.element_size(),
            2.0 * m * self.n * self.k, self.pools,
        )  # fmt: skip

    def stock(self, m: int) -> Timer | None:
        return None

    def _run(self, schedule: Schedule, m: int, routing: int, check: bool = False) -> torch.Tensor:
        assert isinstance(schedule, GroupedSchedule)
        x, w = (self.check_x, self.check_w) if check else (self.x, self.weights)
        return grouped_linear(
            self.contract, schedule, x[:m], w, self._groups(m, routing), out_dtype=self.out,
            scatter=False,
        )  # fmt: skip

    def _experts_of(self, m: int, routing: int) -> torch.Tensor:
        """[m] int64, ascending: the expert of each slot."""
        generator = torch.Generator().manual_seed(1000 * routing + m)
        return torch.randint(self.experts, (m,), generator=generator).sort().values

    def _groups(self, m: int, routing: int) -> Groups:
        place = (m, routing)
        if place not in self._known:
            counts = torch.bincount(self._experts_of(m, routing), minlength=self.experts)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
            self._known[place] = contiguous_groups(offsets.to(self.pools.device), m)
        return self._known[place]

    def _confirmed(self, y: torch.Tensor, m: int) -> torch.Tensor:
        """y, of which the evaluator confirms a sample."""
        slots = torch.linspace(0, m - 1, min(m, SAMPLE_SLOTS)).long().tolist()
        columns = torch.linspace(0, self.n - 1, min(self.n, SAMPLE_COLUMNS)).long().tolist()
        wanted = gpu.words(self._evaluate(m, slots, columns))
        if not torch.equal(gpu.words(y)[slots][:, columns].cpu(), wanted):
            raise PlanError(f"{self.key}: the default schedule has not the bits of the evaluator")
        return y

    def _evaluate(self, m: int, slots: list[int], columns: list[int]) -> torch.Tensor:
        """[slots, columns] of the contract's result, computed on the CPU."""
        experts = self._experts_of(m, 0)
        rows = []
        for slot in slots:
            x, w = self.check_x[slot : slot + 1].cpu(), self.check_w[int(experts[slot])]
            row = self.contract.evaluate(x, w[columns].cpu(), out_dtype=self.out)
            assert isinstance(row, torch.Tensor)
            rows.append(row)
        return torch.cat(rows)


def run_once(key: ScheduleKey, m: int, schedule: Schedule) -> None:
    """Runs a schedule on uninitialised operands of the current device: it is compiled by that."""
    contract = contract_at(key)
    assert isinstance(contract, LinearContract) and isinstance(schedule, GroupedSchedule)
    experts, n, k = key.experts or 1, key.n or 0, key.k or 0
    x = torch.empty(m, k, dtype=DTYPES[key.dtype], device="cuda")
    weight = torch.empty(experts, n, k, dtype=x.dtype, device="cuda")
    offsets = torch.linspace(0, m, experts + 1, device="cuda").long()
    grouped_linear(
        contract, schedule, x, weight, contiguous_groups(offsets, m),
        out_dtype=DTYPES[key.out_dtype], scatter=False,
    )  # fmt: skip
