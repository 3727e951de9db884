"""Kernels in CUDA C++ that check their paths: the same bits, no false alarm, faults are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from samebits import bits
from samebits.contract import (
    Balanced,
    Chain,
    Segment,
    Split,
    Tree,
    hopper_attention,
)  # fmt: skip
from samebits.engines import tickets
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.attention import decode, prefill, spread
from samebits.engines.cuda.attention.schedule import DecodeSchedule, PrefillSchedule
from samebits.engines.cuda.linear import product
from samebits.engines.cuda.linear.schedule import ProductSchedule
from samebits.plan.contracts import contract_of

hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="runs on an sm_90 GPU",
)
CONTRACT = hopper_attention("bf16")
Run = Callable[[], torch.Tensor]


@pytest.fixture
def checked() -> Iterator[None]:
    """Paths are checked, and nothing is left of earlier tests."""
    forget()
    tickets.check(True)
    tickets.take(device())
    yield
    tickets.check(False)
    forget()


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


LAUNCHERS = (decode._decode_launcher, decode._fold_launcher, spread._launcher,
             prefill._launcher, product._launcher)  # fmt: skip


def forget() -> None:
    product._PLANS.clear()
    for cached in LAUNCHERS:
        cached.cache_clear()


def wrong() -> int:
    return sum(n for _, n in tickets.take(device()))


def random(*shape: int) -> torch.Tensor:
    generator = torch.Generator(device()).manual_seed(sum(shape))
    return torch.randn(shape, device=device(), dtype=torch.bfloat16, generator=generator)


def decoding(keys: int, window: int = 0, d: int = 128, batch: int = 2) -> Run:
    q, k, v = random(batch, 8, d), random(batch, 2, keys, d), random(batch, 2, keys, d)
    out = torch.empty_like(q)

    def run() -> torch.Tensor:
        decode.decode(CONTRACT, DecodeSchedule(), q, k, v, out, scale=0.1, keys=keys, window=window)
        return out.clone()

    return run


def spreading(keys: int, window: int = 0, d: int = 128, group: int = 4) -> Run:
    q, k, v = random(2, 2 * group, d), random(2, 2, keys, d), random(2, 2, keys, d)
    out = torch.empty_like(q)

    def run() -> torch.Tensor:
        spread.spread(CONTRACT, q, k, v, out, scale=0.1, keys=keys, window=window)
        return out.clone()

    return run


def prefilling(keys: int, window: int = 0) -> Run:
    q, k, v = random(1, 4, keys, 128), random(1, 2, keys, 128), random(1, 2, keys, 128)
    out = torch.empty_like(q)

    def run() -> torch.Tensor:
        prefill.prefill(
            CONTRACT, PrefillSchedule(), q, k, v, out, scale=0.1, causal=True, window=window
        )
        return out.clone()

    return run


def multiplying(tree: Tree, schedule: ProductSchedule, m: int = 200, k: int = 2048) -> Run:
    contract = contract_of(
        "linear", dtype=torch.bfloat16, n=256, k=k, device="sm_90", tree=str(tree)
    )
    x, w = random(m, k), random(256, k)

    def run() -> torch.Tensor:
        y = torch.empty(m, 256, device=device(), dtype=torch.bfloat16)
        assert product.run(contract, schedule, x, w, y) is None
        return y

    return run


PRODUCTS = {
    "chain": (Chain(), ProductSchedule(groups=1, columns=128, share=1)),
    "folded": (Segment(512), ProductSchedule(groups=2, columns=64)),
    "pairwise": (Balanced(4), ProductSchedule(groups=1, columns=64)),
    "split": (Split(4), ProductSchedule(groups=1, columns=72, chunks=2, split=True)),
}
KERNELS: dict[str, Callable[[], Run]] = {
    "decode": lambda: decoding(5000),
    "decode, a long one": lambda: decoding(40_000),
    "decode, a window": lambda: decoding(5000, 1000),
    "decode, 64 columns": lambda: decoding(3000, d=64),
    "spread, a leaf": lambda: spreading(300),
    "spread, 4 leaves": lambda: spreading(2000),
    "spread, 8 leaves": lambda: spreading(4000),
    "spread, a window": lambda: spreading(2000, 700),
    "spread, 64 columns": lambda: spreading(1500, d=64),
    "spread, a head": lambda: spreading(1500, group=1),
    "prefill": lambda: prefilling(1111),
    "prefill, a window": lambda: prefilling(1111, 300),
    **{name: (lambda case=case: multiplying(*case)) for name, case in PRODUCTS.items()},
}


@hopper
@pytest.mark.parametrize("name", KERNELS)
def test_right_paths_are_right(name: str, checked: None) -> None:
    run = KERNELS[name]()
    result = run()
    for _ in range(50):
        assert bits.equal(run(), result)
    assert wrong() == 0
    tickets.check(False)
    product._PLANS.clear()
    assert bits.equal(run(), result)


@hopper
@pytest.mark.parametrize("name", KERNELS)
def test_another_contract_is_seen(
    name: str, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    honest = tickets.ticket

    def other(*args: Any) -> torch.Tensor:
        place, subject, expected, *leaf = args
        return honest(place, subject, expected ^ (not leaf), *(n // 2 for n in leaf))

    monkeypatch.setattr(tickets, "ticket", other)
    KERNELS[name]()()
    assert wrong() > 0


@hopper
@pytest.mark.parametrize("harmed", [False, True])
def test_a_ticket_may_be_made_while_a_graph_is_captured(
    harmed: bool, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    tickets.check(False)
    run = decoding(5000)
    right = run()
    tickets.check(True)
    honest = decode._fold_launcher

    def fold(*kernel: Any) -> Callable[..., None]:
        def launch(grid: tuple[int, ...], *args: Any) -> None:
            if harmed:
                flip(args[6])
            honest(*kernel)(grid, *args)

        return launch

    monkeypatch.setattr(tickets, "_tables", {})
    monkeypatch.setattr(decode, "_fold_launcher", fold)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    assert wrong() == 0
    for _ in range(2):
        graph.replay()
        assert harmed or bits.equal(out, right)
        assert (wrong() > 0) == harmed


def flip(x: torch.Tensor) -> None:
    x.view(torch.int32).view(-1)[5] ^= 1 << 11


def swap(x: torch.Tensor, places: tuple[int, int]) -> None:
    a, b = places
    x[[a, b]] = x[[b, a]]


#: What happens to the leaves' partial results [rows, slices, leaves, 32] and [leaves, 2].
HARM: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a bit of o": lambda partial, sums: flip(partial),
    "a bit of l": lambda partial, sums: flip(sums),
    "zeros": lambda partial, sums: partial[:320].copy_(torch.zeros_like(partial[:320])),
    "leaves of o change places": lambda partial, sums: swap(partial.view(-1, 32), (0, 1)),
    "denominators change places": lambda partial, sums: swap(sums.view(-1, 2), (2, 5)),
}


@hopper
@pytest.mark.parametrize("fault", HARM)
def test_faults_between_leaves_and_their_fold_are_seen(
    fault: str, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    run = decoding(5000)
    run()
    honest = decode._fold_launcher

    def harmed(*kernel: Any) -> Callable[..., None]:
        def launch(grid: tuple[int, ...], *args: Any) -> None:
            HARM[fault](args[6], args[7])
            honest(*kernel)(grid, *args)

        return launch

    monkeypatch.setattr(decode, "_fold_launcher", harmed)
    run()
    assert wrong() > 0


@hopper
def test_leaves_of_an_earlier_call_are_seen(monkeypatch: pytest.MonkeyPatch, checked: None) -> None:
    kept: dict[Any, torch.Tensor] = {}
    honest = torch.Tensor.new_empty

    def new_empty(x: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        return kept.setdefault((size, options.get("dtype")), honest(x, *size, **options))

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    run = decoding(5000)
    run()
    assert wrong() == 0
    monkeypatch.setattr(decode, "_decode_launcher", lambda *_: lambda *_: None)
    run()
    assert wrong() > 0


#: Kernels whose loops take leaves otherwise than the contract has it: what is written, and instead.
ORDERS = {
    "decode: o": (decode, "decode.cu", "tile[n & 1][i][lane]", "tile[n & 1][count - 1 - i][lane]",
                  "decode"),
    "decode: l": (decode, "decode.cu", "__shfl_sync(~0u, l[j], i / EACH)",
                  "__shfl_sync(~0u, l[j], (count - 1 - i) / EACH)", "decode"),
    "decode: a leaf twice": (decode, "decode.cu", "tile[n & 1][i][lane]",
                             "tile[n & 1][i == 3 ? 2 : i][lane]", "decode"),
    "product: leaves": (product, "product.cu", "smem + exchange_at(leaf, octet))",
                        "smem + exchange_at(PARTS - 1 - leaf, octet))", "split"),
    "spread: o": (spread, "spread.cu", "own.part[j][row])[c]", "own.part[leaves - 1 - j][row])[c]",
                  "spread, 4 leaves"),
    "spread: l": (spread, "spread.cu", "l = own.sums[j][row]", "l = own.sums[leaves - 1 - j][row]",
                  "spread, 4 leaves"),
}  # fmt: skip


def changed(module: ModuleType, file: str, text: str, instead: str) -> str:
    """The source of a kernel with another text somewhere."""
    source: str = (Path(module.__file__ or "").parent / file).read_text()
    assert source.count(text) == 1, text
    return source.replace(text, instead)


@hopper
@pytest.mark.parametrize("case", ORDERS)
def test_leaves_in_another_order_are_seen(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checked: None
) -> None:
    module, file, text, instead, kernel = ORDERS[case]
    place = tmp_path / file
    place.write_text(changed(module, file, text, instead))
    compile_source = nvrtc.compile_source
    monkeypatch.setattr(nvrtc, "compile_source", lambda _, *args: compile_source(place, *args))
    KERNELS[kernel]()()
    assert wrong() > 0


@pytest.mark.parametrize("case", ORDERS)
def test_other_orders_are_what_the_sources_have(case: str) -> None:
    """Also without a GPU: what the test above changes is there."""
    assert changed(*ORDERS[case][:4])
