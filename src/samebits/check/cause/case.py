"""All that is known about a difference: the operation as both runs made it, and around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from samebits import bits
from samebits.check.cause import precision
from samebits.check.cause.capture import Operation, Origin, base_name
from samebits.check.cause.factors import Isolation
from samebits.check.cause.settings import on_stock
from samebits.check.compare import Bits
from samebits.check.explanation import Factor
from samebits.check.result import Noise
from samebits.check.tape import Key


@dataclass
class Case:
    """Everything that is known about a difference.

    Attributes:
        isolation: the operation as both runs made it.
        others: operations around it that only the first, only the second run has.
        given: arguments of the module around it that differ in form: name, first's, second's.
        filled: makes both runs again with fresh memory filled with a value; gives whether they
            agree, how many tensors were filled, and how many NaN the modules put out.
        behind: gives both runs' results of the module around it.
        passed: operations before it that differ and could not be compared.
    """

    isolation: Isolation
    others: tuple[list[Key], list[Key]]
    given: list[tuple[str, str, str]]
    filled: Callable[[float], tuple[bool, int, int]]
    behind: Callable[[], tuple[Bits, Bits]]
    passed: list[Key] = field(default_factory=list)

    @property
    def first(self) -> Operation:
        """The first run's call."""
        return self.isolation.first

    @property
    def second(self) -> Operation:
        """The second run's call."""
        return self.isolation.second

    @property
    def op(self) -> str:
        """Its name for people."""
        return str(self.first.func).removesuffix(".default")

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """All experiments with the operation by itself."""
        return tuple(self.isolation.experiments())

    def turning(self, *names: str) -> Factor | None:
        """The first of these factors that turns the second run's bits into the first's."""
        if self.isolation.whose(self.isolation.alone[1]) != "second":
            return None
        return next((f for f in self.factors if f.name in names and f.outcome == "first"), None)

    @property
    def unlike(self) -> list[tuple[int, Origin]]:
        """`differing` without memory that the operation was handed to write to."""
        return [(i, o) for i, o in self.differing if not _handed_out(self.second, i)]

    @cached_property
    def differing(self) -> list[tuple[int, Origin]]:
        """Operands in which the runs differ, for the request, and which may decide its bits."""
        x, y = self.first.operands, self.second.operands
        found = [
            i
            for i, (a, b) in enumerate(zip(x, y, strict=False))
            if _unlike(a, b, self.first, self.second) and not _overwritten(self.second, i)
        ]
        idle = [i for i in found if self.isolation.idle([i])]
        if self.isolation.idle(idle):
            found = [i for i in found if i not in idle]
        return [
            (i, self.second.origins[i] if self.second.origins[i].name else self.origin(i))
            for i in found
        ]

    def same_place(self, i: int) -> bool:
        """Whether operand `i` is of one shape in both runs, and the request in one row."""
        x, y = self.first.operands[i], self.second.operands[i]
        return x.shape == y.shape and self.first.row == self.second.row

    def of_one_run(self, i: int) -> bool:
        """Whether operand `i` was made by an operation that only one of the runs has."""
        calls = zip((self.first, self.second), self.others, strict=True)
        return any(op.origins[i].made_by in others for op, others in calls)

    def origin(self, i: int) -> Origin:
        """Where operand `i` came from: of both runs the one that says more."""
        x, y = self.first.origins[i], self.second.origins[i]
        return x if x.reduces or x.born_empty else y

    @cached_property
    def judgement(self) -> precision.Judgement | None:
        """Both calls against the exact result."""
        return precision.judge(self.first, self.second)

    @cached_property
    def noise(self) -> Noise | None:
        """Both results against what other orders give, where a contract's interval covers them."""
        from samebits.check.noise import noise  # which is made of parts of this package

        # One token of attention or of a batched product cannot be cut out of the operands.
        whole = "attention" in base_name(self.first.func) or base_name(self.first.func) == "bmm"
        if self.unlike or (self.first.alone and whole):
            return None
        return on_stock(noise)(self.first, self.second)

    @property
    def of_bound(self) -> tuple[float, float] | None:
        """The largest error of each call as a share of what rounding alone can cause."""
        return self.judgement.of_bound if self.judgement else None

    @property
    def narrower(self) -> tuple[str | None, str | None]:
        """With which fewer bits each call was computed."""
        return self.judgement.narrower if self.judgement else (None, None)

    @cached_property
    def values(self) -> tuple[Bits, Bits]:
        """The request's part of both calls' results, as they were in the runs."""
        x, y = self.isolation.want
        return tuple(x), tuple(y)

    @property
    def bounded(self) -> bool:
        """Whether it is known how far rounding alone can move a result."""
        return self.noise is not None or self.of_bound is not None

    @property
    def within(self) -> bool:
        """Whether both results are within what rounding alone can cause."""
        if self.noise is not None:
            return self.noise.verdict != "defect"
        if self.of_bound is not None:
            return max(self.of_bound) <= 1.0
        return small(self.values)

    @property
    def steady_within(self) -> bool:
        """Whether all results that either call gives, run again and again, are within rounding."""
        calls = zip(
            (self.first, self.second), self.isolation.alone, self.isolation.variants, strict=True
        )
        return self.within and all(
            _near(op, results, other) for op, results, others in calls for other in others
        )

    def argument_name(self, i: int) -> str:
        """The name of the argument that holds operand `i`."""
        return _argument_name(self.second, i)


def _near(op: Operation, x: list[torch.Tensor], y: list[torch.Tensor]) -> bool:
    """Whether two results of one call are both within what rounding alone can cause."""
    found = precision.judge(replace(op, output=x), replace(op, output=y))
    if found is not None:
        return max(found.of_bound) <= 1.0
    return small((tuple(op.parts(x)), tuple(op.parts(y))))


@on_stock
def small(values: tuple[Bits, Bits]) -> bool:
    """Whether results are as near as a few hundred roundings of the largest element."""
    for a, b in zip(*values, strict=False):
        if not a.is_floating_point() or a.shape != b.shape or a.dtype != b.dtype:
            return False
        if not bool(a.isfinite().all() and b.isfinite().all()):
            return False
        eps = min(256 * torch.finfo(a.dtype).eps, 2.0**-5)
        scale = max(float(a.abs().max()), float(b.abs().max())) if a.numel() else 0.0
        if float((a.double() - b.double()).abs().max() if a.numel() else 0.0) > eps * scale:
            return False
    return bool(values[0])


def _unlike(a: torch.Tensor, b: torch.Tensor, first: Operation, second: Operation) -> bool:
    """Whether an operand differs: the request's part of it, or what both runs have of it."""
    x, y = first.parts([a]), second.parts([b])
    if x and y and x[0].shape == y[0].shape:
        a, b = x[0], y[0]
    elif first.window.length == second.window.length:
        return a.shape == b.shape and a.dtype == b.dtype and not bits.equal(a, b)
    elif a.dim() == b.dim() and sum(m != n for m, n in zip(a.shape, b.shape, strict=True)) == 1:
        for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
            a, b = a.narrow(axis, 0, min(m, n)), b.narrow(axis, 0, min(m, n))
    return a.shape == b.shape and a.dtype == b.dtype and not bits.equal(a, b)


def _overwritten(op: Operation, i: int) -> bool:
    """Whether an operand is only written to."""
    argument = _written(op, i)
    fills = torch.Tag.nondeterministic_seeded in op.func.tags
    return argument is not None and (
        bool(argument.is_out) or fills or base_name(op.func) in ("copy", "fill", "zero")
    )


def _handed_out(op: Operation, i: int) -> bool:
    """Whether an operand is written to, and was memory without contents until then."""
    made_by = op.origins[i].made_by
    return _written(op, i) is not None and made_by is not None and "empty" in made_by[1]


def _written(op: Operation, i: int) -> Any:
    """The schema's argument of an operand that is written to, else None."""
    name = _argument_name(op, i)
    argument = next((a for a in op.func._schema.arguments if a.name == name), None)
    if argument is None or argument.alias_info is None or not argument.alias_info.is_write:
        return None
    return argument


def _argument_name(op: Operation, i: int) -> str:
    """The name of the argument that holds operand `i`."""
    seen = -1
    names = [a.name for a in op.func._schema.arguments]
    for name, value in [*zip(names, op.args, strict=False), *op.kwargs.items()]:
        for t in value if isinstance(value, (list, tuple)) else [value]:
            seen += isinstance(t, torch.Tensor)
            if seen == i and isinstance(t, torch.Tensor):
                return str(name)
    return f"operand {i}"
