"""The operations that models are made of, each by itself: the target ``ops``.

Where `samebits.check.functions` compares requests one by one, these compare whole results, so that
every number of rows up to 1100 takes seconds. torch's own functions are called, as models call
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from samebits.check.compare import Bits
from samebits.check.subject import LAYOUTS, Call, NotApplicable, Probe, repeat_probes, rows_of

Function = Callable[[torch.Tensor], torch.Tensor]

HEADS, KV_HEADS, D = 8, 2, 64
#: Tokens of the attention that is cut in pieces: more than two leaves, and no multiple of a tile.
TOKENS = 1301


@dataclass(frozen=True)
class Operation:
    """A function of rows: x [M, width] to [M, ...].

    Attributes:
        aligned: torch's own kernel for a GPU reads rows 16 bytes at a time without looking at their
            addresses: on others it faults, and the process has lost the GPU.
    """

    name: str
    width: int
    fn: Function
    aligned: bool = False


class OperationsSubject:
    """Products, norms, softmax and attention on one device.

    Args:
        device: where they are computed.
        sweep: numbers of rows.
        repeats: how often a call is repeated.
        sizes: (N, K) of the products; the other operations take rows of the first K.
    """

    name, kind = "ops", "operations"
    module: torch.nn.Module | None = None

    def __init__(
        self,
        device: torch.device,
        *,
        sweep: Sequence[int] = tuple(range(1, 1101)),
        repeats: int = 200,
        sizes: Sequence[tuple[int, int]] = ((4096, 4096), (6144, 4096), (576, 7168)),
        seed: int = 0,
    ) -> None:
        self.device, self._sweep, self._repeats = device, tuple(sweep), repeats
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._operations = list(self._all(sizes))
        self._inputs = {
            width: self._random(max(self._sweep), width)
            for width in {o.width for o in self._operations}
        }

    def _random(self, *shape: int) -> torch.Tensor:
        x = torch.randn(shape, generator=self._generator)
        # Wide exponents: another order of a sum then shows in its bits.
        spread = torch.randint(-6, 7, shape, generator=self._generator)
        return torch.ldexp(x, spread).to(self.device, self._dtype)

    def _all(self, sizes: Sequence[tuple[int, int]]) -> Iterator[Operation]:
        for n, k in sizes:
            yield Operation(f"linear {n}x{k}", k, _linear(self._random(n, k)))
        width = sizes[0][1]
        scale = self._random(width)
        yield Operation("rms_norm", width, lambda x: F.rms_norm(x, (width,), scale, 1e-6))
        yield Operation("layer_norm", width, lambda x: F.layer_norm(x, (width,), scale, scale))
        yield Operation("softmax", width, lambda x: x.softmax(-1))
        yield Operation("log_softmax", width, lambda x: x.log_softmax(-1))
        yield Operation("sum", width, lambda x: x.sum(-1))
        yield Operation("silu and product", width, lambda x: F.silu(x) * x)
        keys, values = (self._random(1, KV_HEADS, TOKENS, D) for _ in range(2))
        yield Operation("attention, decode", HEADS * D, _decode(keys, values), aligned=True)

    def describe(self) -> dict[str, str]:
        """The operations, their dtype and the numbers of rows."""
        return {
            "operations": ", ".join(o.name for o in self._operations),
            "dtype": str(self._dtype).removeprefix("torch."),
            "rows": f"{len(self._sweep)} numbers of rows up to {max(self._sweep)}",
        }

    def probes(self, test: str) -> Iterator[Probe]:
        """The probes of one test."""
        probes = getattr(self, f"_probes_{test}", None)
        if probes is None:
            raise NotApplicable("operations by themselves")
        yield from probes()

    def _call(self, operation: Operation, x: torch.Tensor) -> Call:
        def run() -> Sequence[Bits]:
            with torch.no_grad():
                return [(operation.fn(x),)]

        return run

    def _probes_repeats(self) -> Iterator[Probe]:
        for operation in self._operations:
            call = self._call(operation, self._inputs[operation.width][:33])
            for probe in repeat_probes(call, 1, self._repeats, self.device):
                label = f"{operation.name}, {probe.label.partition(', ')[2]}"
                yield Probe(label, probe.call, probe.expected, x=probe.x, group=operation.name)

    def _probes_rows(self) -> Iterator[Probe]:
        for operation in self._operations:
            x = self._inputs[operation.width]
            prefixes = self._prefixes(operation)
            for index, rows in enumerate(self._sweep):
                yield Probe(
                    f"{operation.name}, M = {rows}",
                    self._call(operation, x[:rows]),
                    ((prefixes, index),),
                    x=rows,
                    group=operation.name,
                )

    def _prefixes(self, operation: Operation) -> Call:
        """The first rows of the widest call, for every number of rows."""
        widest = self._call(operation, self._inputs[operation.width])

        def run() -> Sequence[Bits]:
            ((full,),) = widest()
            return [(full[:rows],) for rows in self._sweep]

        return run

    def _probes_position(self) -> Iterator[Probe]:
        for operation in self._operations:
            x = self._inputs[operation.width][:130]
            plain = self._call(operation, x)
            for shift in (1, 2, 7, 16, 63, 64, 65, 128, 129):
                moved = self._call(operation, x.roll(shift, 0))
                yield Probe(
                    f"{operation.name}, rows {shift} places on",
                    _back(moved, shift),
                    rows_of(plain, 1),
                    x=shift,
                    group=operation.name,
                )

    def _probes_neighbours(self) -> Iterator[Probe]:
        for operation in self._operations:
            x = self._inputs[operation.width][:130]
            plain = _first(self._call(operation, x))
            for label, value in (
                ("zeros", 0.0),
                ("NaN", float("nan")),
                ("infinities", float("inf")),
            ):
                changed = x.clone()
                changed[1:] = value
                call = _first(self._call(operation, changed))
                yield Probe(f"{operation.name}, beside {label}", call, rows_of(plain, 1))

    def _probes_layout(self) -> Iterator[Probe]:
        for operation in self._operations:
            x = self._inputs[operation.width][:70]
            plain = self._call(operation, x)
            for label, move in LAYOUTS.items():
                moved = move(x)
                yield Probe(
                    f"{operation.name}, {label}",
                    self._call(operation, moved),
                    rows_of(plain, 1),
                    stock=not (operation.aligned and moved.is_cuda and _odd_rows(moved)),
                )

    def _probes_chunks(self) -> Iterator[Probe]:
        whole, cut = self._attention()
        for size in (17, 128, 512, 1000):
            cuts = [size] * (TOKENS // size) + [TOKENS % size]
            yield Probe(f"attention, pieces of {size}", cut(cuts), rows_of(whole, 1), x=size)

    def _probes_decode(self) -> Iterator[Probe]:
        whole, cut = self._attention()
        for prompt in (1, 511, 1023):
            cuts = [prompt, *([1] * (TOKENS - prompt))]
            yield Probe(
                f"attention, prompt of {prompt}, then one by one",
                cut(cuts),
                rows_of(whole, 1),
                prompt,
            )

    def _attention(self) -> tuple[Call, Callable[[Sequence[int]], Call]]:
        """Causal attention of `TOKENS` tokens, and the same in pieces over a growing cache."""
        q = self._random(1, HEADS, TOKENS, D)
        k, v = (self._random(1, KV_HEADS, TOKENS, D) for _ in range(2))

        def cut(cuts: Sequence[int]) -> Call:
            def run() -> Sequence[Bits]:
                done, parts = 0, []
                with torch.no_grad():
                    for size in cuts:
                        stop = done + size
                        parts.append(
                            _piece(q[:, :, done:stop], k[:, :, :stop], v[:, :, :stop], done)
                        )
                        done = stop
                return [(torch.cat(parts, 2),)]

            return run

        return cut([TOKENS]), cut


def _linear(weight: torch.Tensor) -> Function:
    return lambda x: F.linear(x, weight)


def _decode(keys: torch.Tensor, values: torch.Tensor) -> Function:
    """Every row a request with one query, over keys that all share."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        q = x.reshape(len(x), HEADS, 1, D)
        k, v = (t.expand(len(x), -1, -1, -1) for t in (keys, values))
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return attend


def _piece(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int) -> torch.Tensor:
    """Queries from position `start` on over all keys up to their own, as models ask for it."""
    tokens, keys = q.shape[2], k.shape[2]
    if start == 0 or tokens == 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
    columns = torch.arange(keys, device=q.device)
    mask = columns <= columns[start:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def _back(call: Call, shift: int) -> Call:
    def run() -> Sequence[Bits]:
        return [(result.roll(-shift, 0),) for (result,) in call()]

    return run


def _odd_rows(x: torch.Tensor) -> bool:
    """Whether `x` has contiguous rows that do not all begin at a multiple of 16 bytes."""
    return x.stride(-1) == 1 and bool(x.data_ptr() % 16 or x.stride(0) * x.element_size() % 16)


def _first(call: Call) -> Call:
    def run() -> Sequence[Bits]:
        return [(result[:1],) for (result,) in call()]

    return run
