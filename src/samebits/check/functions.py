"""Plain functions and modules: the first axis of some arguments is the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from samebits.check.compare import Bits
from samebits.check.subject import (
    LAYOUTS,
    Call,
    NotApplicable,
    NotRowwise,
    Probe,
    moved,
    repeat_probes,
    rows_of,
    thread_probes,
    to_cpu,
)
from samebits.check.tape import window
from samebits.errors import ShapeError

SWEEP = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 24, 31, 32, 33, 48, 64)
#: On a GPU: every number of rows up to 1100 but for those far from an edge of any tile.
WIDE_SWEEP = (*range(1, 260), *(m for m in range(260, 1101) if (m + 2) % 32 < 5))
POSITION_BATCH = 11
NEIGHBOUR_BATCH = 9


class FunctionSubject:
    """A function of tensors whose outputs have one row for each row of its batched inputs.

    Args:
        fn: the function or module.
        inputs: its positional arguments.
        name: for the report.
        batched: which arguments carry the batch on axis 0 (default: the first tensor alone).
        sweep: the batch sizes to try.
        seed: of the generator that makes further rows like the given ones.

    Raises:
        ShapeError: no argument has a batch axis, or they disagree in its length.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        name: str | None = None,
        batched: Sequence[bool] | None = None,
        sweep: Sequence[int] = SWEEP,
        seed: int = 0,
    ) -> None:
        self.module = fn if isinstance(fn, torch.nn.Module) else None
        self.kind = "module" if self.module is not None else "function"
        self.name: str = name or str(getattr(fn, "__name__", type(fn).__name__))
        self._fn, self._inputs, self._sweep = fn, tuple(inputs), tuple(sweep)
        self._batched = self._batch_arguments(batched)
        self.device = self._inputs[self._batched[0]].device
        if self.device.type == "cuda":
            self._sweep = tuple(sweep) if sweep is not SWEEP else WIDE_SWEEP
        self._generator = torch.Generator().manual_seed(seed)
        self._pool = self._make_pool(max(*self._sweep, POSITION_BATCH, NEIGHBOUR_BATCH))

    def _batch_arguments(self, batched: Sequence[bool] | None) -> tuple[int, ...]:
        tensors = [i for i, x in enumerate(self._inputs) if isinstance(x, torch.Tensor) and x.dim()]
        if not tensors:
            raise ShapeError(
                f"{self.name}: no input has a batch axis. Pass inputs=(x, ...) with x of shape "
                "[rows, ...]"
            )
        if batched is None:
            return (tensors[0],)
        chosen = tuple(i for i, flag in enumerate(batched) if flag)
        if not chosen or not set(chosen) <= set(tensors):
            raise ShapeError(f"{self.name}: batched={batched!r} names no tensor with a batch axis")
        if len({self._inputs[i].shape[0] for i in chosen}) > 1:
            raise ShapeError(f"{self.name}: the batched inputs have different numbers of rows")
        return chosen

    def _make_pool(self, rows: int) -> dict[int, torch.Tensor]:
        """The given rows, then more of the same kind up to `rows`."""
        return {i: self._more(self._inputs[i], rows) for i in self._batched}

    def _more(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        missing = rows - x.shape[0]
        if missing <= 0:
            return x[:rows].contiguous()
        shape = (missing, *x.shape[1:])
        if x.is_floating_point() and x.numel():
            finite = x[x.isfinite()].float()
            finite = finite.cpu()
            mean, std = (finite.mean(), finite.std(correction=0)) if len(finite) else (0.0, 1.0)
            noise = torch.randn(shape, generator=self._generator)
            more = (noise * std + mean).to(x.dtype).to(x.device)
        elif x.numel():
            pick = torch.randint(x.numel(), shape, generator=self._generator).to(x.device)
            more = x.reshape(-1)[pick]
        else:
            more = x.new_empty(shape)
        return torch.cat([x, more])

    def describe(self) -> dict[str, str]:
        """Shapes and dtypes of the inputs."""
        return {
            "inputs": ", ".join(
                f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
                if isinstance(x, torch.Tensor)
                else repr(x)
                for x in self._inputs
            )
        }

    def _rows(self, order: Sequence[int]) -> list[torch.Tensor]:
        index = torch.tensor(order)
        return [self._pool[i][index] for i in self._batched]

    def _run(self, batch: Sequence[torch.Tensor], fixed: Sequence[Any] | None = None) -> list[Bits]:
        """Calls the function; one `Bits` for each row."""
        arguments = list(fixed if fixed is not None else self._inputs)
        for i, x in zip(self._batched, batch, strict=True):
            arguments[i] = x
        count = batch[0].shape[0]
        with torch.no_grad(), window(count):
            output = self._fn(*arguments)
        leaves = _tensors(output)
        if not leaves or any(not t.dim() or t.shape[0] != count for t in leaves):
            shapes = ", ".join(str(tuple(t.shape)) for t in leaves) or type(output).__name__
            raise NotRowwise(
                f"{self.name} does not work row by row: {count} rows in, {shapes} out. Check a "
                "function whose outputs have one row for each row of its first input"
            )
        leaves = [to_cpu(t) for t in leaves]
        return [tuple(t[row] for t in leaves) for row in range(count)]

    def batch(self, count: int) -> Call:
        """The call with the first `count` rows (also what is timed)."""
        return self._call(self._rows(range(count)))

    def _call(self, batch: Sequence[torch.Tensor], fixed: Sequence[Any] | None = None) -> Call:
        return lambda: self._run(batch, fixed)

    def probes(self, test: str) -> Iterator[Probe]:
        """The probes of one test."""
        if test in ("chunks", "decode", "prefix"):
            raise NotApplicable("not a model of sequences with a cache")
        yield from getattr(self, f"_probes_{test}")()

    def _probes_repeats(self) -> Iterator[Probe]:
        for count in (1, 5):
            times = 200 if self.device.type == "cuda" else 5
            yield from repeat_probes(self.batch(count), count, times, self.device)

    def _probes_rows(self) -> Iterator[Probe]:
        alone = [self._call(self._rows([row])) for row in range(max(self._sweep))]
        for count in self._sweep:
            expected = tuple((alone[row], 0) for row in range(count))
            yield Probe(f"M = {count}", self.batch(count), expected, x=count)

    def _probes_position(self) -> Iterator[Probe]:
        count = POSITION_BATCH
        plain = self.batch(count)
        others = list(range(1, count))
        for place in range(1, count):
            order = [*others[:place], 0, *others[place:]]
            yield Probe(
                f"place {place} of {count}",
                self._call(self._rows(order)),
                rows_of(plain, count),
                x=place,
                places=tuple(order.index(row) for row in range(count)),
            )

    def _probes_neighbours(self) -> Iterator[Probe]:
        plain = self.batch(NEIGHBOUR_BATCH)
        for label, change in self._contents().items():
            changed = self._rows(range(NEIGHBOUR_BATCH))
            for x in changed:
                x[1:] = change(x[1:], x[:1])
            yield Probe(f"beside {label}", self._call(changed), rows_of(plain, 1))

    def _contents(self) -> dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]:
        copies = {"copies of itself": lambda x, first: first.expand_as(x)}
        others = {"others in reverse order": lambda x, first: x.flip(0)}
        if not all(self._pool[i].is_floating_point() for i in self._batched):
            return copies | others
        info = torch.finfo(self._pool[self._batched[0]].dtype)
        return {
            **copies,
            **others,
            "zeros": lambda x, first: 0.0,
            "negative zeros": lambda x, first: -0.0,
            "subnormals": lambda x, first: x.sign() * info.smallest_normal / 4,
            "huge numbers": lambda x, first: x.sign() * info.max / 2,
            "infinities": lambda x, first: x.sign() / 0.0,
            "NaN": lambda x, first: float("nan"),
        }

    def _probes_padding(self) -> Iterator[Probe]:
        """Rows of zeros around the request, as a bucket of fixed size has them."""
        rows = self._rows([0])
        alone = self._call(rows)
        for size in (2, 4, 8, 16, 32):
            fill = [x.new_zeros((size - 1, *x.shape[1:])) for x in rows]
            for side, place in (("after", 0), ("before", size - 1)):
                pairs = zip(rows, fill, strict=True)
                batch = [torch.cat([x, f] if place == 0 else [f, x]) for x, f in pairs]
                yield Probe(
                    f"{size - 1} rows of padding {side}",
                    self._call(batch),
                    rows_of(alone, 1),
                    x=size - 1,
                    group=side,
                    places=(place,),
                )

    def _probes_threads(self) -> Iterator[Probe]:
        for count in (1, 16):
            yield from thread_probes(self.batch(count), count, self.device)

    def _probes_layout(self) -> Iterator[Probe]:
        for count in (1, 5, 16):
            rows, plain = self._rows(range(count)), self.batch(count)
            for label, move in LAYOUTS.items():
                calls = {"input": self._call([move(x) for x in rows])}
                if any(self._is_fixed(i) for i in range(len(self._inputs))):
                    calls["other arguments"] = self._call(rows, self._moved(move))
                if self.module is not None and any(True for _ in self.module.parameters()):
                    calls["parameters"] = moved(self.module, self._call(rows), move)
                for what, call in calls.items():
                    expected = rows_of(plain, count)
                    yield Probe(f"M = {count}, {what} {label}", call, expected)

    def _is_fixed(self, i: int) -> bool:
        return isinstance(self._inputs[i], torch.Tensor) and i not in self._batched

    def _moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        return [move(x) if self._is_fixed(i) else x for i, x in enumerate(self._inputs)]


def _tensors(output: Any) -> list[torch.Tensor]:
    """All tensors of a (nested) output, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return [t for item in output for t in _tensors(item)]
    return []
