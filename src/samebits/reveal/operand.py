"""An operation as a sum of addends that we choose, in any dtype and on any device.

`Operand` says how: it takes a matrix of addends, one row a sum, and gives the sums. The black boxes
below put masks, units and zeros into it and read the answers of `oracle` from its results. Every
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
from samebits.reveal.oracle import Bools
from samebits.reveal.tree import Integers

#: Significant bits of a result, and the masks and units of an addend. A mask swamps what fp32 or
#: fp64 accumulators may hold in units: fp16 ends at 65504, so its units are subnormal.
SIGNIFICANT = {torch.float64: 53, torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
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


@dataclass
class SignedBox:
    """Counts units of an `Operand`; reads one of its rows, and the slots of `use` (all if None).

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
        alone = self._results(none, np.zeros(1, np.int64))
        if alone[0] != 0:
            raise RevealError(f"{name} gives {alone[0]:g} for zeros: it is not a sum")
        unit = self._results(one, np.zeros(1, np.int64))[0] / self.levels.unit
        if self.operand.scale is not None:
            unit = self.operand.scale
        if not math.isfinite(unit) or unit <= 0:
            raise RevealError(f"{name} does not return its addend: 1 unit gave {unit:g} units")
        self.scale = unit
        exact = math.frexp(unit)[0] == 0.5
        significant = SIGNIFICANT[result.dtype]
        most = 1 << significant if exact else 1 << max(significant - 2, 1)
        self.capacity = max(2, min(most, self.levels.countable))
        everything = np.zeros((-(-n // self.capacity), n), bool)
        for part, mask in enumerate(everything):
            mask[part * self.capacity : (part + 1) * self.capacity] = True
        counted = self._counts(self._results(everything, np.arange(len(everything))))
        expected = everything.sum(1)
        if (counted != expected).any():
            at = int(np.flatnonzero(counted != expected)[0])
            raise RevealError(
                f"{name} gives {counted[at]} units for {expected[at]} addends of one unit: it is "
                "not a sum of all its addends"
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
        return self._call((full.view(self.operand.dtype),))[self.row][places].cpu()

    def sums(self, rows: Sequence[dict[int, float]]) -> np.ndarray:
        """Sums of a few addends each, all others 0, as if every addend were counted once."""
        operand, found = self.operand, []
        for at in range(0, len(rows), len(self.columns)):
            part = rows[at : at + len(self.columns)]
            small = torch.zeros((len(part), operand.leaves), dtype=torch.float64)
            for line, addends in zip(small, part, strict=True):
                line[list(addends)] = torch.tensor(list(addends.values()), dtype=torch.float64)
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
        counts = np.rint(units)
        if (np.abs(units - counts) > 0.3).any() or (counts < 0).any():
            worst = units[np.argmax(np.abs(units - counts))]
            raise RevealError(
                f"{self.operand.name} gave {worst:g} units: beside a mask a unit is neither lost "
                "nor kept, so it is not a plain sum of its addends"
            )
        return counts.astype(np.int64)


@dataclass(frozen=True)
class Terms:
    """Elements whose terms are positive, such as squares or exponentials.

    Attributes:
        of: the element whose term has a given size.
        nothing: the element whose term is 0.
        masks: terms to try for the mask, until a change of one ulp is seen in the result.
    """

    of: Callable[[float], float]
    nothing: float
    masks: tuple[float, ...] = (1.0, 1.25, 1.5, 1.75, 1.3, 1.1, 1.9, 2.5, 3.0, 3.5)


@dataclass
class PositiveBox:
    """Asks which terms meet first, of an `Operand` whose `run` gives [1, slots, elements].

    The result at the mask's own element is looked at (at the only one if there is one), in those
    slots that give the bits of slot `row` for the same elements.

    Raises (at construction and on every call):
        RevealError: an assumption does not hold; the message says which.
    """

    operand: Operand
    terms: Terms
    row: int = 0
    calls: int = 0
    mask: float = 1.0
    use: Integers = field(init=False)
    _alone: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, name = self.operand.leaves, self.operand.name
        self.use = np.arange(self.operand.slots)
        if self.row >= self.operand.slots:
            raise RevealError(f"{name} has {self.operand.slots} rows: there is no {self.row}")
        if n < 2:
            return
        elements = self._elements(np.zeros(1, int), ())
        before = checksum(elements)
        result = self._call(elements).clone()
        if checksum(elements) != before:
            raise RevealError(f"{name} mutates its input: give it a function that works on a copy")
        if not same_bits(result, self._call(elements)):
            raise RevealError(f"{name} varies between runs on the same input: it has no one tree")
        self.use = self._alike()
        for mask in self.terms.masks:
            self.mask = mask
            ulp = 2.0 ** (math.frexp(mask)[1] - 24)
            one, zero = np.ones(1, int), np.zeros(1, int)
            alone = self._seen(zero, ())
            if not np.isfinite(alone).all():
                raise RevealError(f"{name} returned {alone[0]} for finite input")
            lost = self._seen(zero, ((one, 0.375 * ulp),))
            moved = self._seen(zero, ((one, 1.0 * ulp),))
            if lost[0] == alone[0] != moved[0]:
                return
        raise RevealError(
            f"{name}: a change of one ulp in the sum is not seen in its result, so the order of "
            "its terms is not either; a result in fp32 may show it"
        )

    def _alike(self) -> Integers:
        """The slots with the bits of slot `row`, for the same terms of random sizes in all."""
        rng, n = np.random.default_rng(0), self.operand.leaves
        line = [self.terms.of(float(term)) for term in rng.uniform(0.5, 2.0, n)]
        shape = self.operand.slots, n
        one = torch.tensor(line, dtype=torch.float64).to(self.operand.dtype)
        result = self._call(one.to(self.operand.device).expand(shape).contiguous())[0]
        words = result.contiguous().view(torch.uint8).reshape(shape[0], -1)
        return np.flatnonzero((words == words[self.row]).all(1).cpu().numpy())

    def together(self, i: Integers, j: Integers, k: Integers) -> Bools:
        """See `oracle.Together`."""
        ulp = 2.0 ** (math.frexp(self.mask)[1] - 24)
        new = np.array(sorted(set(i.tolist()) - self._alone.keys()), int)
        for at in range(0, len(new), len(self.use)):
            part = new[at : at + len(self.use)]
            self._alone |= dict(zip(part.tolist(), self._seen(part, ()).tolist(), strict=True))
        found = []
        for at in range(0, len(i), len(self.use)):
            now = slice(at, at + len(self.use))
            found.append(self._seen(i[now], ((j[now], 0.375 * ulp), (k[now], 0.375 * ulp))))
        alone = np.array([self._alone[at] for at in i.tolist()])
        return np.concatenate(found) != alone if found else np.zeros(0, bool)

    def _elements(self, i: Integers, small: tuple[tuple[Integers, float], ...]) -> Tensor:
        operand = self.operand
        shape = operand.slots, operand.leaves
        x = torch.full(shape, self.terms.nothing, dtype=operand.dtype, device=operand.device)
        x[:, 0] = self.terms.of(self.mask)  # slots that are not used
        rows = torch.from_numpy(self.use[: len(i)])
        x[rows] = self.terms.nothing
        for at, term in ((i, self.mask), *small):
            x[rows, torch.from_numpy(at)] = self.terms.of(term)
        return x

    def _seen(self, i: Integers, small: tuple[tuple[Integers, float], ...]) -> np.ndarray:
        result = self._call(self._elements(i, small))[0]
        at = torch.from_numpy(i).to(result.device) if result.shape[-1] > 1 else 0
        rows = torch.from_numpy(self.use[: len(i)]).to(result.device)
        return result[rows, at].double().cpu().numpy()

    def _call(self, elements: Tensor) -> Tensor:
        self.calls += 1
        return called(self.operand, (elements,), axes=3)


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
    return result


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
        torch.tensor(values, dtype=torch.float64).to(dtype).view(_WORDS[dtype.itemsize]).to(device)
    )
