"""Matrix products on the GPU, for the tuner: own kernels and the vendor's against stock."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samebits.contract import Balanced, Chain, LinearContract, Segment, Split
from samebits.contract.tree import cut
from samebits.engines.cuda.linear import chains, product
from samebits.engines.cuda.linear.schedule import ProductSchedule
from samebits.engines.driver import _cuda
from samebits.engines.schedule import BUCKETS, Schedule, ScheduleKey
from samebits.engines.triton.linear import run as own
from samebits.engines.triton.linear.schedule import GemmSchedule
from samebits.engines.vendor import cublaslt
from samebits.engines.vendor import tuning as vendor
from samebits.engines.vendor.schedule import CublasLt
from samebits.errors import PlanError
from samebits.plan.families import candidates_at
from samebits.plan.keys import contract_at
from samebits.plan.tune import gpu
from samebits.plan.tune.gpu import DTYPES, Pools
from samebits.plan.tune.search import Timer, Unsuitable
from samebits.reveal import RevealedTree
from samebits.reveal.compare import difference as tree_difference
from samebits.reveal.operand import Operand

#: Rows and columns of the result that the evaluator computes.
SAMPLE_ROWS, SAMPLE_COLUMNS = 6, 24
#: Vendor algorithms that are tried: from so many rows on, and the library's favourites below.
VENDOR_CANDIDATES, VENDOR_FROM, VENDOR_FAVOURITES = 24, 48, 8
#: Fewer rows than this are never worth a product for every leaf.
VENDOR_SPLIT_FROM = 1024


class LinearBench:
    """y[m, n] = x[m, k] @ w[n, k].T, for `search`.

    Bits are compared on operands that cancel (`gpu.cancelling`). The reference is one schedule's
    result, of which the contract's evaluator computes a sample; where another schedule differs from
    it, the evaluator decides who is right.
    """

    def __init__(self, key: ScheduleKey, pools: Pools) -> None:
        contract = contract_at(key)
        if not isinstance(contract, LinearContract) or key.n is None or key.k is None:
            raise PlanError(f"{key} is no matrix product with a size")
        self.key, self.contract, self.pools = key, contract, pools
        self.n, self.k, self.out = key.n, key.k, DTYPES[key.out_dtype]
        self.rows = BUCKETS[-1]
        self.sets = max(1, -(-gpu.ROTATION // (self.n * self.k * pools.dtype.itemsize)))
        numbers = pools.numbers(max(self.sets * self.n, self.rows + self.n) * self.k)
        whole = numbers[: self.sets * self.n * self.k].view(self.sets, self.n, self.k)
        self.weights = whole.unbind(0)
        self.x = numbers[-self.rows * self.k :].view(self.rows, self.k)
        self.y = torch.empty(self.rows, self.n, dtype=self.out, device=pools.device)
        self.check_x, self.check_w = gpu.cancelling(self.x), gpu.doubled(self.weights[0])
        self.reference = torch.empty_like(self.y)
        self._make_reference()

    def candidates(self, bucket: int) -> Iterator[Schedule]:
        default, *others = candidates_at(self.key, bucket)
        yield from (default, *self._vendor(BUCKETS[bucket]), *others)

    def _vendor(self, m: int) -> list[CublasLt]:
        """The vendor's candidates; a tree of several leaves is as many products onto fp32."""
        tree = self.contract.tree
        if _cuda.lt_missing():
            return []
        if isinstance(tree, Chain):
            most = VENDOR_CANDIDATES if m >= VENDOR_FROM else VENDOR_FAVOURITES
            return vendor.candidates(m, self.n, self.k, self.pools.dtype, most=most)
        if isinstance(tree, Segment | Split | Balanced) and m >= VENDOR_SPLIT_FROM:
            leaf = cut(tree, 0, self.k)[0][1]
            return vendor.candidates(
                m, self.n, leaf, self.pools.dtype, out_dtype=torch.float32, most=VENDOR_FAVOURITES
            )
        return []

    def difference(self, schedule: Schedule, m: int) -> str | None:
        x, y, reference = self.check_x[:m], self.y[:m], self.reference[:m]
        y.view(torch.uint8).fill_(0xFF)
        gpu.attempt(lambda: run_linear(self.contract, schedule, x, self.check_w, y))
        different = gpu.words(y) != gpu.words(reference)
        if not bool(different.any()):
            return None
        first = different.nonzero()[0].cpu()
        row, column = first[:1], first[1:]
        truth = self._evaluate(row, column)
        if not torch.equal(gpu.words(truth), gpu.words(reference[row, column].cpu().view(1, 1))):
            raise PlanError(
                f"{self.key}: the reference is wrong at row {int(row)}, column {int(column)}"
            )
        return gpu.describe_difference(y, different, truth)

    def other_tree(self, schedule: Schedule, m: int) -> str | None:
        one, y = torch.ones_like(self.x[:m]), self.y[:m]

        def run(w: torch.Tensor) -> torch.Tensor:
            run_linear(self.contract, schedule, one, w, y)
            return y

        operand = Operand(str(self.key), self.k, self.n, one.dtype, one.device, run)
        tree = RevealedTree.from_contract(self.contract.tree, self.k, self.contract.arithmetic)
        return tree_difference(operand, tree)

    def timer(self, schedule: Schedule, m: int) -> Timer:
        x, y = self.x[:m], self.y[:m]
        return self._timer(lambda i: run_linear(self.contract, schedule, x, self.weights[i], y), m)

    def stock(self, m: int) -> Timer:
        x, y = self.x[:m], self.y[:m]
        return self._timer(lambda i: torch.mm(x, self.weights[i].t(), out=y), m)

    def _timer(self, work: gpu.Work, m: int) -> Timer:
        moved = (self.n * self.k + m * (self.n + self.k)) * self.x.element_size()
        return gpu.timer_of(work, self.sets, moved, 2.0 * m * self.n * self.k, self.pools)

    def _make_reference(self) -> None:
        """The first schedule's result of which the evaluator confirms a sample."""
        rows = torch.linspace(0, self.rows - 1, SAMPLE_ROWS).long()
        columns = torch.linspace(0, self.n - 1, min(self.n, SAMPLE_COLUMNS)).long()
        wanted = gpu.words(self._evaluate(rows, columns))
        there = rows.to(self.pools.device)[:, None], columns.to(self.pools.device)[None]
        for schedule in self.candidates(len(BUCKETS) - 1):
            self.reference.view(torch.uint8).fill_(0xFF)
            try:
                gpu.attempt(
                    lambda s=schedule: run_linear(  # type: ignore[misc]
                        self.contract, s, self.check_x, self.check_w, self.reference
                    )
                )
            except Unsuitable:
                continue
            if torch.equal(gpu.words(self.reference)[there].cpu(), wanted):
                return
        raise PlanError(f"{self.key}: no schedule has the bits of the evaluator")

    def _evaluate(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """[rows, columns] of the contract's result, computed on the CPU."""
        x = self.check_x[rows.to(self.pools.device)].cpu()
        w = self.check_w[columns.to(self.pools.device)].cpu()
        result = self.contract.evaluate(x, w, out_dtype=self.out)
        assert isinstance(result, torch.Tensor)
        return result


def run_linear(
    contract: LinearContract, schedule: Schedule, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor
) -> None:
    """y = x @ w.T by a schedule of any family that computes products.

    Raises:
        Unsuitable: it does not take the operands.
    """
    if isinstance(schedule, CublasLt):
        if not cublaslt.run(contract, schedule, x, w, y):
            raise Unsuitable("the library does not take these operands")
    elif isinstance(schedule, ProductSchedule):
        why = product.run(contract, schedule, x, w, y)
        if why is not None:
            raise Unsuitable(why)
    elif isinstance(schedule, chains.ChainSchedule):
        why = chains.run(contract, schedule, x, w, y)
        if why is not None:
            raise Unsuitable(why)
    else:
        assert isinstance(schedule, GemmSchedule)
        own.run(contract, schedule, x, w, y)


def run_once(key: ScheduleKey, m: int, schedule: Schedule) -> None:
    """Runs a schedule on uninitialised operands of the current device: it is compiled by that."""
    contract = contract_at(key)
    assert isinstance(contract, LinearContract)
    dtype, out = DTYPES[key.dtype], DTYPES[key.out_dtype]
    x, w = (torch.empty(rows, key.k or 0, dtype=dtype, device="cuda") for rows in (m, key.n or 0))
    run_linear(contract, schedule, x, w, torch.empty(m, key.n or 0, dtype=out, device="cuda"))
