"""What the guard knows of the functions of the CPU engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from samebits.contract import ContractKey
from samebits.contract.operands import dtype_name
from samebits.engines import cpu
from samebits.guard.points import Again, Call, Point
from samebits.plan.contracts import contract_for


def _cpu_schedule(_: dict[str, Any]) -> str:
    return f"cpu {cpu.isa()}"


def _cpu_others(call: Call) -> list[Again]:
    """Every other instruction set: other code, other tiles. The scalar one is believed."""

    def run(isa: str) -> Any:
        with cpu.isa_here(isa):
            return call.run()

    return [
        Again(f"cpu {isa}", partial(run, isa), isa != "scalar")
        for isa in cpu.isas()
        if isa != cpu.isa()
    ]


def _product_others(call: Call) -> list[Again]:
    """Also the product with its sides exchanged: other tiles of the same instruction set."""
    a = call.arguments
    x = a["x"] if "x" in a else a["a"]
    n = a["weight"].shape[0] if "weight" in a else a["b"].shape[-1]
    m = x.shape[:-1].numel() if "x" in a else x.shape[-2]
    others = _cpu_others(call)
    if min(m, n) >= _BOTH_WIDE:
        others.insert(0, Again(f"cpu {cpu.isa()}, sides exchanged", partial(_exchanged, call)))
    return others


#: From so many rows and columns on the engine does not exchange sides by itself.
_BOTH_WIDE = 16


def _exchanged(call: Call) -> torch.Tensor:
    """(b^T a^T)^T: a product of two numbers has no sides, and k keeps its order."""
    from samebits.engines.cpu import gemm

    a = call.arguments
    if "x" in a:
        x, w, c = a["x"], a["weight"], a.get("bias")
        rows = x.reshape(-1, x.shape[-1])
        addend = None if c is None else c[:, None]
        y = gemm.bmm(w, rows.t(), addend, 1.0, 1.0, a.get("out_dtype")).t()
        return y.contiguous().view(*x.shape[:-1], w.shape[0])
    left, right, c = a["a"], a["b"], a.get("c")
    shape = (*left.shape[:-1], right.shape[-1])
    addend = None if c is None else c.expand(shape).mT
    rest = (a.get("alpha", 1.0), a.get("beta", 1.0), a.get("out_dtype"))
    return gemm.bmm(right.mT, left.mT, addend, *rest).mT.contiguous()


def _id(op: str, x: torch.Tensor, out: torch.dtype | None) -> str:
    return _cpu_contract(op, dtype_name(x.dtype), dtype_name(out or x.dtype))


@lru_cache(maxsize=256)
def _cpu_contract(op: str, dtype: str, out: str) -> str:
    return contract_for(ContractKey(op, dtype, out, "cpu")).id


def _on_cpu(
    op: str,
    contract: Callable[[dict[str, Any]], str],
    others: Callable[[Call], list[Again]] = _cpu_others,
    follows: bool = False,
) -> Callable[[Callable[..., Any]], Point]:
    return lambda fn: Point(op, fn, contract, _cpu_schedule, others, follows)


def _without_contract(_: dict[str, Any]) -> str:
    return ""


_CPU = "samebits.engines.cpu"
POINTS: dict[tuple[str, str], Callable[[Callable[..., Any]], Point]] = {
    (f"{_CPU}.gemm", "linear"): _on_cpu(
        "linear", lambda a: _id("linear", a["x"], a.get("out_dtype")), _product_others, True
    ),
    (f"{_CPU}.gemm", "bmm"): _on_cpu(
        "bmm", lambda a: _id("bmm", a["a"], a.get("out_dtype")), _product_others, True
    ),
    (f"{_CPU}.packed", "linear"): _on_cpu(
        "linear", lambda a: _id("linear", a["x"], a.get("out_dtype"))
    ),
    (f"{_CPU}.attention", "dense"): _on_cpu(
        "attention", lambda a: _id("attention", a["q"], None), follows=True
    ),
    (f"{_CPU}.attention", "packed"): _on_cpu(
        "attention", lambda a: _id("attention", a["q"], None), follows=True
    ),
    (f"{_CPU}.norm", "softmax"): _on_cpu(
        "softmax", lambda a: _id("log_softmax" if a["log"] else "softmax", a["x"], a["dtype"])
    ),
    (f"{_CPU}.norm", "norm"): _on_cpu(
        "norm", lambda a: _id("layer_norm" if a["centred"] else "rms_norm", a["x"], None)
    ),
    (f"{_CPU}.reduce", "reduce"): _on_cpu("reduce", _without_contract),
    (f"{_CPU}.pointwise", "rotary"): _on_cpu("rotary", _without_contract),
    (f"{_CPU}.pointwise", "rotary_at"): _on_cpu("rotary", _without_contract),
}
