"""What the guard knows of products and attention on a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from samebits.contract import LinearContract
from samebits.engines.triton.attention.schedule import AttentionSchedule
from samebits.guard.points import Again, Call, Point
from samebits.ops.attention import cuda as attention
from samebits.ops.linear import cuda as linear

#: Elements of a product that a CPU computes in a sample.
ELEMENTS = 16


# ---- products ----


def _product(a: dict[str, Any]) -> tuple[Any, ...]:
    """op, x, w, c, alpha, beta, dtype of the result, tree: of `linear` or of `bmm`."""
    if "x" in a:
        x, w = a["x"], a["weight"]
        rows = x.reshape(-1, x.shape[-1])
        return (
            "linear",
            rows,
            w,
            a.get("bias"),
            1.0,
            1.0,
            a.get("out_dtype") or x.dtype,
            a.get("tree"),
        )
    x, w = a["a"], a["b"].mT
    numbers = a.get("alpha", 1.0), a.get("beta", 1.0), a.get("out_dtype") or x.dtype
    return "mm" if x.dim() == 2 else "bmm", x, w, a.get("c"), *numbers, None


def _product_others(call: Call) -> list[Again]:
    op, x, w, c, alpha, beta, dtype, tree = _product(call.arguments)
    contract, schedules = linear.schedules(op, x, w, dtype, tree)
    shape = call.result.shape
    found = []
    for schedule in schedules[1:]:

        def run(schedule: Any = schedule) -> torch.Tensor:
            y = linear.by(contract, schedule, x, w, c, alpha, beta, dtype)
            result: torch.Tensor = call.run() if y is None else y
            return result.reshape(shape)

        found.append(Again(repr(schedule), run))
    if contract.scaling == "none" and "relu" not in contract.epilogue:
        elements = partial(_evaluated, contract, x, w, c, alpha, beta, dtype, call)
        name = f"cpu evaluator, {ELEMENTS} elements"
        found.insert(0, Again(name, elements, whole=False))
    return found


def _evaluated(
    contract: LinearContract,
    x: torch.Tensor,
    w: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    dtype: torch.dtype,
    call: Call,
) -> torch.Tensor:
    """The call's own result with some elements replaced by what the contract says.

    Which ones is a function of the number of the call.
    """
    y: torch.Tensor = call.result.clone()
    flat = y.view(-1, x.shape[-2], w.shape[-2])
    x, w = (t if t.dim() == 3 else t[None] for t in (x, w))
    draw = random.Random(call.number)
    for _ in range(ELEMENTS if flat.numel() else 0):
        b, m, n = (draw.randrange(size) for size in flat.shape)
        left = x[b % x.shape[0], m : m + 1].cpu()
        right = w[b % w.shape[0], n : n + 1].cpu()
        addend = None
        if c is not None and beta != 0:
            addend = c.expand(call.result.shape).reshape(flat.shape)[b, m, n].reshape(1, 1).cpu()
        value = contract.evaluate(left, right, addend, dtype, alpha=alpha, beta=beta)
        flat[b, m, n] = value[0, 0].to(flat.device)
    return y


def _product_contract(a: dict[str, Any]) -> str:
    op, x, w, _, _, _, dtype, tree = _product(a)
    return linear.schedules(op, x, w, dtype, tree)[0].id


def _product_schedule(a: dict[str, Any]) -> str:
    op, x, w, _, _, _, dtype, tree = _product(a)
    return repr(linear.schedules(op, x, w, dtype, tree)[1][0])


# ---- attention ----

Change = Callable[[AttentionSchedule], AttentionSchedule]


def _own(schedule: AttentionSchedule) -> AttentionSchedule:
    return replace(schedule, prefill=None, decode=None)


def _split(schedule: AttentionSchedule) -> AttentionSchedule:
    return replace(_own(schedule), spread=False, programs=1 << 20)


def _whole(schedule: AttentionSchedule) -> AttentionSchedule:
    return replace(_own(schedule), spread=False, programs=1)


_CHANGES: dict[str, Change] = {
    "triton, as planned": _own,
    "triton, a program a leaf": _split,
    "triton, a program a tile": _whole,
}


def _attention_others(call: Call) -> list[Again]:
    def run(change: Change) -> Any:
        with attention.scheduled(change):
            return call.run()

    return [Again(name, partial(run, change)) for name, change in _CHANGES.items()]


def _planned(a: dict[str, Any]) -> Any:
    q, v = a["q"], a["v"]
    heads, kv_heads = (q.size(1), v.size(1)) if "sequences" not in a else (q.size(1), v.size(-2))
    rows = a["sequences"].longest_q if "sequences" in a else q.size(2)
    return attention.contract_and_schedule(q, v, heads // max(1, kv_heads), rows)


def _attention_point(fn: Callable[..., Any]) -> Point:
    return Point(
        "attention",
        fn,
        lambda a: str(_planned(a)[0].id),
        lambda a: repr(_planned(a)[1]),
        _attention_others,
        follows=True,
    )


def _product_point(op: str) -> Callable[[Callable[..., Any]], Point]:
    return lambda fn: Point(
        op, fn, _product_contract, _product_schedule, _product_others, follows=True
    )


POINTS = {
    ("samebits.ops.linear.cuda", "linear"): _product_point("linear"),
    ("samebits.ops.linear.cuda", "bmm"): _product_point("bmm"),
    ("samebits.ops.attention.cuda", "dense"): _attention_point,
    ("samebits.ops.attention.cuda", "packed"): _attention_point,
}
