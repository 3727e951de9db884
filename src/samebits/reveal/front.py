"""`reveal`: from a function to its tree, its arithmetic, and what is not certain about them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.contract import devices
from samebits.contract.arithmetic import BlockFma
from samebits.errors import RevealError
from samebits.reveal.arithmetic import Finding, findings
from samebits.reveal.operand import (
    SIGNIFICANT,
    Operand,
    SignedBox,
    called,
    checksum,
    octets,
    same_bits,
)
from samebits.reveal.operations import Request, operand_of
from samebits.reveal.oracle import Oracle, PositiveOracle, SignedOracle
from samebits.reveal.positive import PositiveBox
from samebits.reveal.probe import reconstruct
from samebits.reveal.replay import ADDITIONS, NAMES, replay
from samebits.reveal.tree import Integers, RevealedTree
from samebits.reveal.values import ordered, unlike

#: Exponents of random addends, up and down.
_SPREAD = {torch.float64: 6, torch.float32: 6, torch.bfloat16: 14, torch.float16: 8}
#: The same where fp64 has to round sums of fp32 or bf16.
_WIDE = 30
#: Rows of random addends whose sums are compared.
_SAMPLES = 32
#: Sums of random data that show whether columns have one tree: of a short sum, and of a long one.
_FEW, _SEVERAL, _SHORT = 16, 4, 256
#: By how much larger addends in fp16 are whose averages are looked at, and units in the last place
#: that roundings of an average may move it.
_LOUDER, _ROUNDINGS = 32.0, 2
#: Operands of a fused operation all pairs of which are looked at, if it is not what it seems.
_WIDEST = 64
#: Repeats of a call by which a varying order is recognised.
_REPEATS = 3


@dataclass(frozen=True)
class Revealed:
    """What was found out about a function.

    Attributes:
        name: the function and its sizes.
        tree: its reduction tree.
        arithmetic: what each operation does, one measurement each.
        explained: whether the tree, computed in a known arithmetic, gives the bits of random data;
            None if no known arithmetic applies.
        rows: rows of results that have this tree (the others differ), or None if there is one row.
        probes: sums that were looked at for the tree.
        calls: calls of the function.
        seconds: time that it took.
        notes: what else was noticed.
    """

    name: str
    tree: RevealedTree
    arithmetic: tuple[Finding, ...] = ()
    explained: bool | None = None
    rows: tuple[int, ...] | None = None
    probes: int = 0
    calls: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Name, tree in words, arithmetic and notes, a line each."""
        lines = [self.name, f"  {self.tree.describe()}"]
        lines += [f"  {finding}" for finding in self.arithmetic]
        lines += [f"  note: {note}" for note in self.notes]
        lines.append(f"  {self.probes} probes, {self.calls} calls, {self.seconds:.2f} s")
        return "\n".join(lines)

    __str__ = describe

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "tree": self.tree.to_data(),
            "words": self.tree.describe(),
            "contracts": [str(contract) for contract in self.tree.contracts],
            "arithmetic": [finding.to_data() for finding in self.arithmetic],
            "explained": self.explained,
            "rows": None if self.rows is None else list(self.rows),
            "probes": self.probes,
            "calls": self.calls,
            "seconds": round(self.seconds, 4),
            "notes": list(self.notes),
        }


def reveal(
    fn: str | Callable[..., Any],
    *,
    k: int,
    op: str | None = None,
    m: int | None = None,
    n: int | None = None,
    dtype: str | torch.dtype = "fp32",
    device: str | torch.device = "cpu",
    batch: int = 1,
    row: int = 0,
    column: int | None = None,
    arithmetic: bool = True,
    seed: int = 0,
) -> Revealed:
    """The reduction tree of a function, and its arithmetic, from its results alone.

    Args:
        fn: the name of an operation of torch ("sum", "linear", "softmax", "pv", ...), or a function
            that is called like `op`.
        k: addends of a sum: the length of the reduced axis.
        op: how a function `fn` is called: like "sum", fn(x [m, k]) -> [m] (fn(x [k]) -> a scalar if
            m is None), if it is left out; like "linear", fn(x [m, k], w [n, k]) -> [m, n]; ...
        m: rows. The number of rows is part of the question: another one may have another tree.
        n: columns, for an operation that has them: "linear", "mm", "bmm", "conv2d", "pv", "qk".
        dtype: of the operands: "fp32", "tf32", "bf16", "fp16", "e4m3", ... or a torch dtype.
        device: where it runs.
        batch: matrices of "bmm", heads of attention ("pv" and "qk").
        row: which row of the results is looked at.
        column: which column of the results, where they have columns; by default one of those that
            most columns are like.
        arithmetic: measure what an operation does as well.
        seed: of the random choices.

    Raises:
        RevealError: the function is no reduction, returns NaN, mutates its input, is random, needs
            a device that is not there, or its order depends on values; the message says which.

    Example:
        >>> reveal(torch.sum, k=1000).tree.describe()
        >>> reveal("linear", m=8, n=4096, k=4096, dtype="bf16", device="cuda").tree.contracts
    """
    if isinstance(fn, str):
        if op is not None:
            raise RevealError(f"reveal({fn!r}, op={op!r}): op says how a function is called")
        request = Request(fn, k, m, n, dtype, device, batch)
    else:
        if not callable(fn):
            raise RevealError(f"{fn!r} is no function: pass one, or the name of an operation")
        request = Request(op or "sum", k, m, n, dtype, device, batch, fn)
    return reveal_request(request, row=row, column=column, arithmetic=arithmetic, seed=seed)


def reveal_request(
    request: Request,
    *,
    row: int = 0,
    column: int | None = None,
    arithmetic: bool = True,
    seed: int = 0,
) -> Revealed:
    """`reveal`, of a request."""
    started = time.perf_counter()
    places = {"row": row, "column": 0 if column is None else column, "seed": seed}
    for name, place in places.items():
        if not isinstance(place, int) or isinstance(place, bool) or place < 0:
            raise RevealError(f"{name} = {place!r}: use an integer from 0 on")
    operand, terms = operand_of(request)
    if column is not None and (operand.rowwise or terms is not None or operand.factors):
        raise RevealError(f"{operand.name} has no columns that could be looked at: give a row")
    notes: list[str] = []
    box: SignedBox | PositiveBox
    measured: tuple[Finding, ...] = ()
    checked = 0
    oracle: Oracle
    with torch.no_grad():
        if terms is not None:
            box = PositiveBox(operand, terms, row)
            oracle = PositiveOracle(operand.leaves, box.together, seed)
            tree = reconstruct(oracle, seed=seed)
            before = box.asked
            why = box.doubt(tree, np.random.default_rng(seed))
            checked = box.asked - before
            if why is not None:
                raise RevealError(f"{operand.name}: {why}")
            rows, explained = None, None
            notes += _others(box.use, operand.slots, "row")
        else:
            row, column = (0, row) if operand.rowwise else (row, column)
            columns, rows = alike(operand, row, column, seed)
            notes += _others(columns, operand.slots, "row" if operand.rowwise else "column")
            box = SignedBox(operand, row, use=columns)
            signed = SignedOracle(
                operand.leaves, box.count, box.capacity, seed, slots=len(box.columns)
            )
            oracle = signed
            for guess in (True, False):
                tree = reconstruct(oracle, seed=seed, guess=guess)
                measured = findings(tree, box) if arithmetic else ()
                explained, note = explain(tree, box, request, seed, measured)
                if explained or not operand.sums:
                    break
                before = box.asked
                again = unlike(tree, box, seed)
                why = again or ordered(tree, box, explained, measured, seed)
                checked += box.asked - before
                if why is None:
                    break
                if not again or not guess or max(map(len, tree.children)) > _WIDEST:
                    raise RevealError(f"{operand.name}: {why}")
            notes += [note] if note else []
    return Revealed(
        name=operand.name,
        tree=tree,
        arithmetic=measured,
        explained=explained,
        rows=rows,
        probes=oracle.probes + checked,
        calls=box.calls,
        seconds=time.perf_counter() - started,
        notes=tuple(notes),
    )


def _others(shown: Integers, slots: int, what: str) -> list[str]:
    """A note of the rows or columns that have another tree."""
    others = np.setdiff1d(np.arange(slots), shown)
    if not len(others):
        return []
    return [
        f"{len(shown)} of {slots} {what}s have the tree that is shown; {what}={others[0]} shows "
        "another"
    ]


# ---- random data --------------------------------------------------------------------------------


def noise(operand: Operand, sums: int, seed: int, spread: int | None = None) -> Tensor:
    """Addends [sums, leaves] whose exact sums are 0: what comes out is rounding, which shows order.

    Exponents are spread so far that fp32 rounds sums of so narrow values (in fp8 there is no room
    for it); an addend and its negative are at random places, the last of an odd number is 0.
    """
    rng = np.random.default_rng(seed)
    kept = operand.values or operand.dtype
    if spread is None or kept not in (torch.float32, torch.bfloat16):
        spread = _SPREAD.get(kept, 2)
    half = operand.leaves // 2
    values = rng.standard_normal((sums, half)) * 2.0 ** rng.integers(
        -spread, spread + 1, (sums, half)
    )
    both = np.zeros((sums, operand.leaves))
    order = rng.permuted(np.tile(np.arange(operand.leaves), (sums, 1)), axis=1)
    rows = np.arange(sums)[:, None]
    exact = torch.from_numpy(values).to(kept).to(torch.float64).numpy()
    both[rows, order[:, :half]] = exact
    both[rows, order[:, half : 2 * half]] = -exact
    return torch.from_numpy(both).to(operand.dtype)


def alike(
    operand: Operand, row: int, column: int | None, seed: int
) -> tuple[Integers, tuple[int, ...] | None]:
    """Columns and rows with the bits of (row, column) on random data.

    Args:
        column: a slot; None: one whose bits most slots have.

    Returns:
        The columns (slots) that do, and the rows; None if there is only one row.

    Raises:
        RevealError: results vary between runs, or there is no such row.
    """
    if operand.factors:
        return np.arange(operand.slots), None
    sample = noise(operand, min(_SAMPLES, operand.slots), seed).to(operand.device)
    tiled = sample[torch.arange(operand.slots, device=operand.device) % len(sample)]
    before = checksum(tiled)
    result = called(operand, (tiled,)).clone()
    if checksum(tiled) != before:
        raise RevealError(
            f"{operand.name} mutates its input: give it a function that works on a copy"
        )
    if not result.isfinite().all():
        raise RevealError(f"{operand.name} returned NaN or Inf for finite addends")
    if not all(same_bits(result, called(operand, (tiled,))) for _ in range(_REPEATS)):
        raise RevealError(
            f"{operand.name} varies between runs on the same input: it is random, or its additions "
            "have no fixed order (atomics)"
        )
    if row >= len(result):
        raise RevealError(f"{operand.name} has {len(result)} rows of results: there is no {row}")
    if column is not None and not 0 <= column < operand.slots:
        what = "rows" if operand.rowwise else "columns"
        raise RevealError(f"{operand.name} has {operand.slots} {what}: there is no {column}")
    words = octets(result).cpu().numpy()
    columns = np.arange(operand.slots)
    if operand.slots > 1:
        found = []
        # Sums of few addends agree by chance, and so do those of trees that are nearly alike.
        for line in sample[: _FEW if operand.leaves <= _SHORT else _SEVERAL]:
            tiled.copy_(line.expand_as(tiled))
            found.append(called(operand, (tiled,))[row].clone())
        one = torch.stack(found, 1)
        bits = octets(one).reshape(len(one), -1).cpu().numpy()
        _, first, which, count = np.unique(
            bits, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        which = which.reshape(-1)
        if column is None:  # of equally many the one that comes first
            kind = min(range(len(count)), key=lambda at: (-count[at], first[at]))
        else:
            kind = which[column]
        columns = np.flatnonzero(which == kind)
    if len(words) == 1:
        return columns, None
    same = (words[:, columns] == words[row][columns]).all((1, 2))
    return columns, tuple(np.flatnonzero(same).tolist())


def _close(result: Tensor, expected: np.ndarray) -> bool:
    """Whether results are what is expected, but for roundings to their dtype."""
    ulp = 2.0 ** (1 - SIGNIFICANT[result.dtype])
    least = torch.finfo(result.dtype).smallest_normal * ulp
    most = _ROUNDINGS * np.maximum(ulp * np.abs(expected), least)
    return bool((np.abs(result.double().numpy() - expected) <= most).all())


def explain(
    tree: RevealedTree,
    box: SignedBox,
    request: Request,
    seed: int,
    measured: tuple[Finding, ...] = (),
) -> tuple[bool | None, str]:
    """Whether the tree, computed in a known arithmetic, has the bits of random data; and a note.

    Where results are rounded once more than sums (averages), it is seen whether they are as near as
    that allows. The exact sums are 0, so another order gives numbers that have nothing to do with
    these.
    """
    operand = box.operand
    if not operand.sums:
        return None, ""
    narrow = request.op == "pv" or box.results_in == torch.float16
    averaged = box.scale != 1 and (narrow or math.frexp(box.scale)[0] != 0.5)
    said = next((f.value for f in measured if f.name == "significant bits"), "24")
    bits = int(said.split()[0])
    if tree.block == 1 and bits not in ADDITIONS:
        return None, f"sums have {said} significant bits: no known additions explain its bits"
    bits = bits if tree.block == 1 else 24
    sums = max(_FEW, min(_SAMPLES, len(box.columns)))
    addends = noise(operand, sums, seed + 1, _WIDE if bits > 24 else None)
    if averaged and operand.dtype == torch.float16:
        addends *= _LOUDER
    result = torch.cat([box.results(part) for part in torch.split(addends, len(box.columns))])
    known: list[BlockFma | None] = [None]
    if tree.block > 1:
        name = "tf32" if request.dtype == "tf32" else request.type_name
        steps = (c.arithmetic.get(name) for c in devices.described().values() if not c.machine)
        # Hopper's and Blackwell's step is one, by two names: the chip at hand is asked first.
        found = {s for s in steps if s is not None}
        known = [*sorted(found, key=lambda s: (s.name != "hopper_mma", s.name))]
        known = [step for step in known if step is not None and step.block >= tree.block]
    if not result.any():
        return None, "sums of random data are exact here, so they do not show an order"
    for arithmetic in known:
        given = addends.to(torch.float64 if bits > 24 else torch.float32).numpy()
        total = replay(tree, given, arithmetic, bits)
        what = f"{NAMES[bits]} additions" if arithmetic is None else arithmetic.name
        if averaged and _close(result, total.astype(np.float64) * box.scale):
            return True, f"this tree of {what} gives averages of random data, but for a rounding"
        expected = total * given.dtype.type(box.scale)
        if not averaged and same_bits(torch.from_numpy(expected).to(result.dtype), result):
            return True, f"this tree of {what} gives the bits of random data"
    if averaged:
        return None, (
            "averages of random data are not those of this tree in an arithmetic that is known "
            "here: that is another one, or the order depends on the values"
        )
    if tree.block > 1:
        return None, "the arithmetic of its fused blocks is none that is known here"
    return False, (
        f"this tree of {NAMES[bits]} additions does not give the bits of random data: the "
        "arithmetic is another one, or the order depends on the values"
    )
