"""The properties that faults break, as streams of pairs that must have equal bits.

A property yields ``(what, expected, got)``. `holds` demands equal bits with the switch on,
`stock_fails` demands that stock PyTorch gives at least one unequal pair, so that the property is
known to bite. Functions take and give tensors whose first axis is the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

import samebits as sb
from samebits import bits, mode
from samebits.engines import cpu

Function = Callable[[torch.Tensor], torch.Tensor]
Pairs = Iterator[tuple[str, torch.Tensor, torch.Tensor]]
Property = Callable[[], Pairs]

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def stock_is_known() -> bool:
    """Whether this machine is of the class on which stock's faults were measured.

    Which faults fire depends on the kernels that torch and its libraries choose: torch 2.13 with
    MKL on an AMD processor with AVX-512.
    """
    info = Path("/proc/cpuinfo")
    return (
        torch.__version__.startswith("2.13.")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and info.exists()
        and "AuthenticAMD" in info.read_text()
    )


def holds(pairs: Property, *, any_nan: bool = False) -> None:
    """With the switch on, all pairs have equal bits.

    any_nan: NaNs count as equal, for what torch itself computes (docs/guarantees.md).
    """
    with sb.deterministic():
        count = 0
        for what, expected, got in pairs():
            count += 1
            assert expected.shape == got.shape and expected.dtype == got.dtype, what
            if any_nan:
                assert torch.equal(expected.isnan(), got.isnan()), what
                expected, got = (t.masked_fill(t.isnan(), 0) for t in (expected, got))
            different = bits.count_different(expected, got)
            assert different == 0, f"{what}: {different} of {expected.numel()} elements differ"
    assert count


def stock_fails(pairs: Property) -> None:
    """On stock PyTorch at least one pair differs (asserted where stock's faults are known)."""
    if not stock_is_known():
        return
    with mode.stock():
        assert any(not bits.equal(a, b) for _, a, b in pairs()), "stock PyTorch does not fail here"


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers in [-4, 4], small ones more often; unlike randn the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-(2**23), 2**23, shape, generator=generator).float() for _ in range(2))
    return (a * 2.0**-22 * (b * 2.0**-22)).to(dtype)


def row(f: Function, x: torch.Tensor, sizes: Sequence[int]) -> Pairs:
    """ROW: rows computed in a batch of each size, at its start, middle and end, equal the whole."""
    whole, n = f(x), x.shape[0]
    for m in sizes:
        for start in sorted({0, (n - m) // 2, n - m}):
            yield f"{m} rows from {start}", whole[start : start + m], f(x[start : start + m])


def chunks(f: Function, x: torch.Tensor, sizes: Sequence[int]) -> Pairs:
    """CHUNK of the batch: cut into pieces of a size and put together again."""
    whole = f(x)
    for size in sizes:
        yield f"chunks of {size}", whole, torch.cat([f(part) for part in x.split(size)])


def position(f: Function, x: torch.Tensor) -> Pairs:
    """POS: permuted rows give permuted outputs; one row everywhere gives one output everywhere."""
    whole, n = f(x), x.shape[0]
    for name, order in {
        "reversed": torch.arange(n - 1, -1, -1),
        "rotated": torch.arange(n).roll(1),
        "shuffled": torch.randperm(n, generator=torch.Generator().manual_seed(1)),
    }.items():
        yield name, whole[order], f(x[order])
    for i in (0, n - 1):
        yield f"row {i} repeated", whole[i].expand_as(whole), f(x[i].expand_as(x).contiguous())


def layout(f: Function, x: torch.Tensor) -> Pairs:
    """LAYOUT: the same numbers with other strides, offsets and alignments."""
    want = f(x)
    yield "transposed", want, f(x.transpose(0, -1).contiguous().transpose(0, -1))
    room = x.new_full((x.numel() + 3,), float("nan"))
    for offset in (1, 3):
        moved = room[offset : offset + x.numel()].view_as(x)
        moved.copy_(x)
        yield f"offset {offset}", want, f(moved)
    wide = x.new_full((*x.shape[:-1], x.shape[-1] + 5), float("nan"))
    wide[..., 2:-3] = x
    yield "rows with gaps", want, f(wide[..., 2:-3])
    apart = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    apart[..., ::2] = x
    yield "every second element", want, f(apart[..., ::2])


def threads(f: Callable[[], torch.Tensor], counts: Sequence[int] = (2, 3, 4, 8)) -> Pairs:
    """THR: any number of threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = f()
        for n in counts:
            torch.set_num_threads(n)
            yield f"{n} threads", want, f()
    finally:
        torch.set_num_threads(before)


def instruction_sets(f: Callable[[], torch.Tensor]) -> Pairs:
    """ISA: any instruction set of the engine."""
    before = cpu.isa()
    want = f()
    try:
        for name in cpu.isas():
            cpu.set_isa(name)
            yield name, want, f()
    finally:
        cpu.set_isa(before)


def repeats(f: Callable[[], torch.Tensor], count: int = 20) -> Pairs:
    """RUN: the same call again, with other work and other memory in between."""
    want = f()
    for i in range(count):
        keep = torch.ones(1 + 97 * i)  # moves the next allocation
        yield f"repeat {i}", want, f()
        del keep


def every(f: Function, x: torch.Tensor, sizes: Sequence[int]) -> Pairs:
    """ROW, POS, LAYOUT, THR and ISA of one function."""
    yield from row(f, x, sizes)
    yield from position(f, x)
    yield from layout(f, x)
    yield from threads(lambda: f(x))
    yield from instruction_sets(lambda: f(x))
