"""Matrix products on CUDA: from shapes and dtypes to a contract, from the rows to a schedule.

Operands are checked by the callers. What depends on the weight alone is looked up once; a call
costs a few microseconds of host time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from samebits.contract import ContractKey, LinearContract, Tree
from samebits.contract.operands import dtype_name
from samebits.engines import family, tickets, watch
from samebits.engines.cuda.linear import chains, product
from samebits.engines.cuda.linear.schedule import ProductSchedule
from samebits.engines.driver import _cuda
from samebits.engines.driver.memory import empty
from samebits.engines.driver.recipes import recorded
from samebits.engines.schedule import Schedule
from samebits.engines.triton import contract_class
from samebits.engines.triton.linear.run import Plan, plan_for, run
from samebits.engines.triton.linear.schedule import GemmSchedule
from samebits.engines.vendor import CublasLt, cublaslt
from samebits.plan import planner
from samebits.plan.contracts import contract_for


@dataclass(frozen=True, slots=True)
class _Product:
    """What is known of a product before its rows: everything that decides bits, and more."""

    contract: LinearContract
    row: planner.Row


_KNOWN: dict[tuple[Any, ...], _Product] = {}
_MOST_KNOWN = 8192
planner.on_change.append(_KNOWN.clear)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None = None,
    tree: Tree | str | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias``: x [..., K], weight [N, K], bias [N] or None, all of one dtype.

    See `samebits.ops.linear`.
    """
    of = x, weight, bias, out_dtype, tree, _fast(x)
    ready = _READY.get(*of)
    if ready is None:
        ready = _Ready(x, weight, bias, out_dtype, tree)
        _READY.put(ready, *of)
    result: torch.Tensor = ready.run(x, weight, bias)
    return result


#: `_Ready` by operands, dtype of the result, tree, and whether fp32 may be tf32.
_READY = _cuda.Memo(_MOST_KNOWN)
planner.on_change.append(_READY.clear)


class _Ready:
    """``linear`` for operands of given shapes, strides and alignments: everything looked up."""

    def __init__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        tree: Tree | str | None,
    ) -> None:
        n, k = weight.shape
        self.dtype = x.dtype if out_dtype is None else out_dtype
        self.shape, self.flat, self.device = (*x.shape[:-1], n), x.dim() == 2, x.get_device()
        self.m, self.n, self.k = math.prod(x.shape[:-1]), n, k
        self.known = _known("linear", x, n, k, self.dtype, tree)
        self.plan: Plan | product.Product | chains.Product | cublaslt.Prepared | None = None
        # Rows that lie one after another are a matrix, whatever their axes.
        if (x.dim() == 2 or x.is_contiguous()) and self.m * n > 0:
            self.plan = self._plan(x.reshape(self.m, k), weight, bias)
        #: y for x, weight and bias of that kind.
        self.run = self._run
        if isinstance(self.plan, cublaslt.Prepared) and tickets.checking():
            self.run = self._run_blind
        elif getattr(self.plan, "repeats", False):
            self.run, _ = recorded(self._run)

    def _plan(
        self, x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None
    ) -> Plan | product.Product | chains.Product | cublaslt.Prepared:
        """The launch of these operands."""
        contract, row = self.known.contract, self.known.row
        schedule = row.at(self.m)
        y = x.new_empty((self.m, self.n), dtype=self.dtype)
        if isinstance(schedule, CublasLt):
            vendor = cublaslt.Prepared(contract, schedule, x, w, y, c)
            if vendor.refusal is None:
                return vendor
            schedule = row.own_at(self.m)
        if isinstance(schedule, ProductSchedule):
            if product.refusal(contract, schedule, x, w, y, c) is None:
                return product.Product(contract, schedule, x, w, y, c)
            schedule = row.general_at(self.m)
        if isinstance(schedule, chains.ChainSchedule):
            if chains.refusal(contract, x, w, y, c) is None:
                return chains.Product(schedule, x, w, y)
            schedule = row.general_at(self.m)
        assert isinstance(schedule, GemmSchedule)
        return plan_for(contract, schedule, x, w, y, c)

    def _run(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        y = empty(self.m, self.n, self.dtype, self.device)
        if self.plan is not None:
            self.plan(self.m, 1, x, weight, y, bias, 1.0, 1.0, None, None)
        else:
            rows, c = x.reshape(self.m, self.k), None if bias is None else bias.expand(y.shape)
            _run(self.known, rows, weight, y, c)
        return y if self.flat else y.view(self.shape)

    def _run_blind(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        watch.blind()
        return self._run(x, weight, bias)


def bmm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``alpha * a @ b + beta * c``: a [B, M, K], b [B, K, N]; or a [M, K], b [K, N].

    As `samebits.engines.cpu.gemm.bmm`: c broadcasts to the result, `out` has any strides.
    """
    k, n = b.shape[-2:]
    if out is None:
        out = a.new_empty((*a.shape[:-1], n), dtype=out_dtype)
    known = _known("mm" if a.dim() == 2 else "bmm", a, n, k, out.dtype, None)
    c = None if c is None or beta == 0 else c.expand(out.shape)
    _run(known, a, b.mT, out, c, alpha, beta)
    return out


def scaled(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    scaling: str,
    tree: Tree | str | None = None,
) -> torch.Tensor:
    """fp8 products with scales: x [M, K], weight [N, K], see `LinearContract.evaluate`."""
    n, k = weight.shape
    known = _known("linear", x, n, k, out_dtype, tree, scaling)
    y = torch.empty((x.shape[0], n), dtype=out_dtype, device=x.device)
    if y.numel() == 0:
        return y
    c = None if bias is None else bias.expand(y.shape)
    schedule = known.row.general_at(y.shape[0])
    assert isinstance(schedule, GemmSchedule)
    run(known.contract, schedule, x, weight, y, c, 1.0, 1.0, x_scale, w_scale)
    return y


def schedules(
    op: str,
    x: torch.Tensor,
    w: torch.Tensor,
    out_dtype: torch.dtype,
    tree: Tree | str | None = None,
) -> tuple[LinearContract, list[Schedule]]:
    """The contract of a product, and schedules for it: the one that runs, other kernels, and last
    the simplest, in which one program walks all leaves of a tile.

    Args:
        x: [..., M, K]; w: [..., N, K].
    """
    known = _known(op, x, w.shape[-2], w.shape[-1], out_dtype, tree)
    row, m = known.row, x.shape[-2]
    general = row.general_at(m)
    assert isinstance(general, GemmSchedule)
    simple = replace(general, split=False, tma=False, persistent=False)
    found = (row.at(m), row.own_at(m), replace(simple, split=True), general, simple)
    return known.contract, list(dict.fromkeys(found))


def by(
    contract: LinearContract,
    schedule: Schedule,
    x: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    out_dtype: torch.dtype,
) -> torch.Tensor | None:
    """``alpha * x @ w.T + beta * c`` by a schedule, or None where it does not take the operands."""
    y = x.new_empty((*x.shape[:-1], w.shape[-2]), dtype=out_dtype)
    c = None if c is None or beta == 0 else c.expand(y.shape)
    if isinstance(schedule, CublasLt):
        return y if cublaslt.run(contract, schedule, x, w, y, c, alpha, beta) else None
    if isinstance(schedule, ProductSchedule):
        refused = product.run(contract, schedule, x, w, y, c, alpha, beta)
        return y if refused is None else None
    if isinstance(schedule, chains.ChainSchedule):
        refused = chains.run(contract, schedule, x, w, y, c, alpha, beta)
        return y if refused is None else None
    assert isinstance(schedule, GemmSchedule)
    run(contract, schedule, x, w, y, c, alpha, beta)
    return y


def _run(
    known: _Product,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    if y.numel() == 0:
        return
    m = y.shape[-2]
    schedule = known.row.at(m)
    if isinstance(schedule, CublasLt):
        if cublaslt.run(known.contract, schedule, x, w, y, c, alpha, beta):
            watch.blind()
            return
        schedule = known.row.own_at(m)
    if isinstance(schedule, ProductSchedule):
        if product.run(known.contract, schedule, x, w, y, c, alpha, beta) is None:
            return
        schedule = known.row.general_at(m)
    if isinstance(schedule, chains.ChainSchedule):
        if chains.run(known.contract, schedule, x, w, y, c, alpha, beta) is None:
            return
        schedule = known.row.general_at(m)
    assert isinstance(schedule, GemmSchedule)
    run(known.contract, schedule, x, w, y, c, alpha, beta)


def _known(
    op: str,
    x: torch.Tensor,
    n: int,
    k: int,
    out_dtype: torch.dtype,
    tree: Tree | str | None,
    scaling: str | None = None,
) -> _Product:
    fast = _fast(x)
    key = op, n, k, x.dtype, out_dtype, x.get_device(), fast, tree, scaling
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        contract_key = ContractKey(
            op=op,
            dtype="tf32" if fast else dtype_name(x.dtype),
            out_dtype=dtype_name(out_dtype),
            device=contract_class(x.get_device()),
            n=n,
            k=k,
            tree=None if tree is None else str(tree),
            scaling=scaling,
        )
        contract = contract_for(contract_key)
        assert isinstance(contract, LinearContract)
        known = _KNOWN[key] = _Product(contract, planner.row_for(contract_key))
    return known


def _fast(x: torch.Tensor) -> bool:
    """Whether fp32 goes through the tensor cores: like torch's own, only if the user allows it."""
    allowed = x.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return allowed and not family.portable()


watch.offer(__name__, linear, bmm)
