"""An operation as a sum of addends that we choose, in any dtype and on any device.

`Operand` says how: it takes a matrix of addends, one row a sum, and gives the sums. The black box
below puts masks, units and zeros into it and reads the answers of `oracle` from its results. Every
assumption that reading rests on is tested first, and named where it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from samebits.errors import RevealError
from samebits.reveal.tree import Integers
from samebits.reveal.triples import Bools

#: Significant bits of a result, and the masks and units of an addend. A mask swamps what fp32 or
#: fp64 accumulators may hold in units: fp16 ends at 65504, so its units are subnormal.
SIGNIFICANT = {torch.float64: 53, torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
#: Units that fp16 and bf16 count, where the results, or partial ones, are narrower than they look.
_NARROW = 1 << 11, 1 << 8
#: Units that can be counted for each bit of a place that is tested.
_CHEAP = 8
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Levels:
    """The addends of a probe.

    Attributes:
        mask: what swamps units.
        unit: what is counted.
        countable: units that together are still swamped by a mask.
    """

    mask: float
    unit: float
    countable: int = 1 << 22


WIDE = Levels(2.0**100, 1.0)
LEVELS = {
    torch.float64: Levels(2.0**200, 1.0),
    torch.float32: WIDE,
    torch.bfloat16: WIDE,
    torch.float16: Levels(2.0**15, 2.0**-24, 1 << 13),
    torch.float8_e5m2: Levels(2.0**15, 2.0**-16, 32),
}


@dataclass
class Operand:
    """How an operation is a sum.

    Attributes:
        name: what is shown to a user.
        leaves: addends of a sum.
        slots: sums of different addends in one call.
        dtype, device: of the addends.
        run: addends [slots, leaves] -> sums [rows, slots]; every row has the same addends. With
            `factors` it takes two matrices, whose elementwise products are the addends.
        levels: masks and units; None takes those of the dtype.
        factors: addends have two factors, for types that are too narrow alone.
        multiply: x [leaves], w [slots, leaves] -> sums of products [rows, slots], where the
            operation multiplies.
        scale: what the operation multiplies a sum by; measured from a single unit if None.
        direct: results are sums, and not only tell how many units are in one.
        rowwise: the slots are the rows of the operation's input, and not columns of a weight.
        values: a type whose values pass the operation's own conversion of its input unchanged.
    """

    name: str
    leaves: int
    slots: int
    dtype: torch.dtype
    device: torch.device
    run: Callable[..., Tensor]
    levels: Levels | None = None
    factors: bool = False
    multiply: Callable[[Tensor, Tensor], Tensor] | None = None
    scale: float | None = None
    direct: bool = True
    rowwise: bool = False
    values: torch.dtype | None = None

    @property
    def sums(self) -> bool:
        """Whether addends of any size can be given, and their sum is what is returned."""
        return self.direct and not self.factors


@dataclass
class SignedBox:
    """Counts units of an `Operand`; reads one of its rows, and the slots of `use` (all if None).

    `asked` counts `sums`; `results_in` is the dtype of results.

    Raises (at construction and on every call):
        RevealError: an assumption does not hold; the message says which.
    """

    operand: Operand
    row: int = 0
    calls: int = 0
    scale: float = 1.0
    capacity: int = 1 << 22
    use: Integers | None = None
    levels: Levels = field(init=False)
    asked: int = 0
    results_in: torch.dtype = torch.float32
    _buffers: list[Tensor] = field(default_factory=list)
    _written: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.use is None:
            self.use = np.arange(self.operand.slots)
        levels = self.operand.levels or LEVELS.get(self.operand.dtype)
        if levels is None:
            raise RevealError(f"{self.operand.name}: no masks are known for {self.operand.dtype}")
        self.levels = levels
        self._calibrate()

    # ---- assumptions ---------------------------------------------------------------------------

    def _calibrate(self) -> None:
        n, name = self.operand.leaves, self.operand.name
        none, one = np.zeros((1, n), bool), np.zeros((1, n), bool)
        one[0, 0] = True
        addends = self._addends(None, None, one, np.zeros(1, np.int64))
        before = [checksum(t) for t in addends]
        result = self._call(addends).clone()
        if [checksum(t) for t in addends] != before:
            raise RevealError(f"{name} mutates its input: give it a function that works on a copy")
        if not same_bits(result, self._call(addends)):
            raise RevealError(f"{name} varies between runs on the same input: it has no one tree")
        if self.row >= len(result):
            raise RevealError(f"{name} has {len(result)} rows of results: there is no {self.row}")
        self.results_in = result.dtype
        alone = self._results(none, np.zeros(1, np.int64))
        if alone[0] != 0:
            raise RevealError(f"{name} gives {alone[0]:g} for zeros: it is not a sum")
        unit = self._results(one, np.zeros(1, np.int64))[0] / self.levels.unit
        known = self.operand.scale
        if not math.isfinite(unit) or unit <= 0 or (known and not 0.7 < unit / known < 1.4):
            raise RevealError(f"{name} does not return its addend: 1 unit gave {unit:g} units")
        self.scale = known or unit
        if self.operand.sums:
            self._signed()
        exact = math.frexp(self.scale)[0] == 0.5
        significant = SIGNIFICANT[result.dtype]
        most = 1 << significant if exact else 1 << max(significant - 2, 1)
        self.capacity = self._counted(max(2, min(most, self.levels.countable)))
        self._once()

    def _signed(self) -> None:
        """Tests that the negative of an addend gives the negative of the result."""
        unit = self.levels.unit
        there, back = self.sums([{0: unit}, {0: -unit}]) / unit
        if back != -there:
            raise RevealError(
                f"{self.operand.name} gives {there:g} units for an addend and {back:g} for its "
                "negative: it is not a sum. A sum of positive terms, such as squares or absolute "
                'values, is looked at with op="norm"'
            )

    def _counted(self, most: int) -> int:
        """The units that a result counts exactly: fewer where partial results are narrow."""
        n, name = self.operand.leaves, self.operand.name
        wrong = ""
        for capacity in (most, *(c for c in _NARROW if c < most)):
            sets = np.arange(n) // capacity == np.arange(-(-n // capacity))[:, None]
            counted = self._counts(self._results(sets, np.arange(len(sets))))
            differs = np.flatnonzero(counted != sets.sum(1))
            if not len(differs):
                return capacity
            at = differs[0]
            wrong = wrong or f"{counted[at]} units for {sets[at].sum()} addends of one unit"
        raise RevealError(f"{name} gives {wrong}: it is not a sum of all its addends")

    def _once(self) -> None:
        """Tests that no addend counts twice and another not at all: by the bits of their places."""
        n = self.operand.leaves
        order = np.random.default_rng(0).permutation(n)
        bits = range(min((n - 1).bit_length(), max(2, self.capacity // _CHEAP)))
        halves = [order[order >> bit & 1 == 1] for bit in bits]
        parts = [
            h[at : at + self.capacity] for h in halves for at in range(0, len(h), self.capacity)
        ]
        if not parts:
            return
        sets = np.zeros((len(parts), n), bool)
        for mask, part in zip(sets, parts, strict=True):
            mask[part] = True
        counted = self._counts(self._results(sets, np.arange(len(sets))))
        if (counted != sets.sum(1)).any():
            raise RevealError(
                f"{self.operand.name} counts some addends more than once and others not at all, or "
                "it weights them: it is not a plain sum of its addends"
            )

    # ---- probes --------------------------------------------------------------------------------

    def count(self, i: Integers, j: Integers, units: Bools, which: Integers) -> Integers:
        """See `oracle.Count`."""
        found = []
        step = len(self.columns)
        for at in range(0, len(i), step):
            part = slice(at, at + step)
            addends = self._addends(i[part], j[part], units, which[part])
            found.append(self._read(self._call(addends), len(i[part])))
        return self._counts(np.concatenate(found)) if found else np.zeros(0, np.int64)

    @property
    def columns(self) -> Integers:
        """The slots that are used."""
        assert self.use is not None
        return self.use

    def _places(self, sums: int, first: int = 0) -> Tensor | slice:
        """The slots of some sums; a slice, which needs no copies, where all are used."""
        if len(self.columns) == self.operand.slots:
            return slice(first, sums)
        return torch.from_numpy(self.columns[first:sums]).to(self.operand.device)

    def _words(self, sums: int, number: int = 0) -> Tensor:
        """The same memory every time: zeros, but for the slots of the first sums, to be written."""
        operand = self.operand
        if number == len(self._buffers):
            word = _WORDS[operand.dtype.itemsize]
            shape = operand.slots, operand.leaves
            self._buffers.append(torch.zeros(shape, dtype=word, device=operand.device))
            self._written.append(0)
        if self._written[number] > sums:
            self._buffers[number][self._places(self._written[number], sums)] = 0
        self._written[number] = sums
        return self._buffers[number]

    def results(self, addends: Tensor) -> Tensor:
        """The results for addends [P, leaves] as they are, of the row that is looked at, [P]."""
        full = self._words(len(addends))
        places = self._places(len(addends))
        full[places] = addends.view(full.dtype).to(full.device)
        result = self._call((full.view(self.operand.dtype),))[self.row][places]
        return result.cpu().clone()  # the function may reuse its memory

    def sums(self, rows: Sequence[dict[int, float]]) -> np.ndarray:
        """Sums of a few addends each, all others 0, as if every addend were counted once."""
        operand, found = self.operand, []
        self.asked += len(rows)
        for at in range(0, len(rows), len(self.columns)):
            part = rows[at : at + len(self.columns)]
            small = torch.zeros((len(part), operand.leaves), dtype=torch.float64, device="cpu")
            for line, addends in zip(small, part, strict=True):
                line[list(addends)] = torch.tensor(
                    list(addends.values()), dtype=torch.float64, device="cpu"
                )
            words = small.to(operand.dtype).view(_WORDS[operand.dtype.itemsize]).to(operand.device)
            full = self._words(len(part))
            full[self._places(len(part))] = words
            found.append(self._read(self._call((full.view(operand.dtype),)), len(part)))
        return np.concatenate(found) / self.scale

    def _results(self, units: Bools, which: Integers) -> np.ndarray:
        """Sums of units alone, of the row that is looked at."""
        step = len(self.columns)
        parts = [which[at : at + step] for at in range(0, len(which), step)]
        return np.concatenate(
            [
                self._read(self._call(self._addends(None, None, units, part)), len(part))
                for part in parts
            ]
        )

    def _addends(
        self, i: Integers | None, j: Integers | None, units: Bools, which: Integers
    ) -> tuple[Tensor, ...]:
        operand, levels = self.operand, self.levels
        rows = self._places(len(which))
        lines = torch.from_numpy(self.columns[: len(which)]).to(operand.device)

        def matrix(number: int, unit: float, masks: tuple[float, float]) -> Tensor:
            word = _words([0.0, unit, *masks], operand.dtype, operand.device)
            full = self._words(len(which), number)
            table = torch.from_numpy(units).to(operand.device)
            if len(table) == 1:
                full[rows] = torch.where(table[0], word[1], word[0])
            else:
                chosen = table[torch.from_numpy(which).to(operand.device)]
                full[rows] = torch.where(chosen, word[1], word[0])
            if i is not None and j is not None:
                full[lines, torch.from_numpy(i).to(operand.device)] = word[2]
                full[lines, torch.from_numpy(j).to(operand.device)] = word[3]
            return full.view(operand.dtype)

        if not operand.factors:
            return (matrix(0, levels.unit, (levels.mask, -levels.mask)),)
        unit, mask = 2.0**-6, math.sqrt(levels.mask * 2)
        first = matrix(0, unit, (mask / 2, mask / 2))
        return first, matrix(1, levels.unit / unit, (mask, -mask))

    def _call(self, addends: tuple[Tensor, ...]) -> Tensor:
        self.calls += 1
        return called(self.operand, addends)

    def _read(self, result: Tensor, sums: int) -> np.ndarray:
        seen = result[self.row].double()[self._places(sums)].cpu()
        values: np.ndarray = seen.numpy().copy()  # the function may reuse its memory
        if not np.isfinite(values).all():
            raise RevealError(
                f"{self.operand.name} returned {values[~np.isfinite(values)][0]} for finite "
                "addends: partial results overflow, or it is not a sum"
            )
        return values

    def _counts(self, values: np.ndarray) -> Integers:
        units = values / (self.scale * self.levels.unit)
        if (np.abs(units) > 2 * self.operand.leaves).any():
            raise RevealError(
                f"{self.operand.name} gave {units[np.abs(units).argmax()]:g} units for at most "
                f"{self.operand.leaves}: a mask and its negative do not cancel, so it is not a sum"
            )
        counts = np.rint(units)
        if (np.abs(units - counts) > 0.3).any() or (counts < 0).any():
            worst = units[np.argmax(np.abs(units - counts))]
            raise RevealError(
                f"{self.operand.name} gave {worst:g} units: beside a mask a unit is neither lost "
                "nor kept, so it is not a plain sum of its addends"
            )
        return counts.astype(np.int64)


def called(operand: Operand, addends: tuple[Tensor, ...], *, axes: int = 2) -> Tensor:
    try:
        result = operand.run(*addends)
    except (RevealError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise RevealError(f"{operand.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, Tensor) or result.dim() != axes or result.shape[1] != operand.slots:
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise RevealError(
            f"{operand.name} gave {shape}, where one result is needed for each of "
            f"{operand.slots} sums: it is not a reduction along the last axis"
        )
    if result.is_meta:
        raise RevealError(f"{operand.name} returns a meta tensor, which has no numbers")
    if result.dtype not in SIGNIFICANT:
        raise RevealError(
            f"{operand.name} returns {result.dtype}: units are counted in floating-point "
            "results of fp16, bf16, fp32 or fp64"
        )
    # An expanded result has strides of 0, a single column may have any, and yet be contiguous.
    strides = result.stride()
    apart = 0 in strides or strides[-1:] != (1,)
    return result.clone(memory_format=torch.contiguous_format) if apart else result


def octets(x: Tensor) -> Tensor:
    """The bytes of every element: x's shape and one axis more.

    The new axis is what allows the view: an axis of one element may have any stride.
    """
    return x.contiguous().unsqueeze(-1).view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    words = _WORDS[a.element_size()]
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(words), b.contiguous().view(words)
    )


def checksum(x: Tensor) -> int:
    """The sum of the words of some rows: cheaper than a copy, to see that nobody wrote to them."""
    some = x[:: max(1, len(x) // 4)]
    return int(some.view(_WORDS[x.element_size()]).sum(dtype=torch.int64))


def _words(values: list[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The words of some values, as integers: not every dtype can be indexed."""
    return (
        torch.tensor(values, dtype=torch.float64, device="cpu")
        .to(dtype)
        .view(_WORDS[dtype.itemsize])
        .to(device)
    )
