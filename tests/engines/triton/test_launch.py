"""The launcher: which calls share a compiled kernel, what is refused, and that kernels run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

import interpreter
from samebits.engines.driver import _cuda
from samebits.engines.triton import launch as module
from samebits.engines.triton.launch import descriptor, launch, prepare
from samebits.errors import DeviceError

DEVICE = "cpu" if interpreter.INTERPRETED else "cuda"
needs_gpu = pytest.mark.skipif(interpreter.INTERPRETED, reason="needs a GPU")


@triton.jit
def scaled_kernel(x, y, n, alpha, ADD: tl.constexpr, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) * alpha + ADD, at < n)


@triton.jit
def tile_kernel(source, target, BLOCK: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([m, n], source.load([m, n]))


def test_runs_and_masks() -> None:
    x = torch.arange(100, dtype=torch.float32, device=DEVICE)
    y = torch.full_like(x, -1)
    launch(scaled_kernel, (2,), x, y, 99, 2.0, ADD=3, BLOCK=64)
    assert y.tolist() == [2.0 * v + 3 for v in range(99)] + [-1]


def test_prepared_is_launch() -> None:
    x = torch.arange(64, dtype=torch.float32, device=DEVICE)
    y = torch.empty_like(x)
    prepare(scaled_kernel, num_warps=2, ADD=1)([1], x, y, 64, 0.5)
    assert torch.equal(y, x * 0.5 + 1)


def test_empty_grid_runs_nothing() -> None:
    x = torch.ones(4, device=DEVICE)
    launch(scaled_kernel, (3, 0), x, x, 4, 2.0, ADD=3)
    assert x.tolist() == [1, 1, 1, 1]


def test_descriptors() -> None:
    x = torch.randn(96, 160, device=DEVICE).to(torch.bfloat16)
    y = torch.empty_like(x)
    args = [descriptor(t, [32, 32]) for t in (x, y)]
    launch(tile_kernel, (3, 5), *args, BLOCK=32)
    assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((torch.ones(1), 2), "argument 0 is not on a GPU"),
        ((1, 2), "no argument is a tensor"),
        ((torch._efficientzerotensor((3,)), 2), "argument 0 has elements but no memory"),
        ((torch.zeros(3, device="meta"), 2), "no plain memory"),
        ((torch.ones(1), [1]), "argument 0 is not on a GPU"),
        (((1, 2), 3), "argument 0 is a tuple"),
        ((torch.ones(1),), "takes 2 positional arguments here, not 1"),
    ],
)
def test_refusals(args: tuple[Any, ...], text: str) -> None:
    launcher = _cuda.Launcher("k", lambda *_: None, lambda *_: None, [False, False])
    with pytest.raises(DeviceError, match=text):
        launcher((1,), *args)


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), (-1,), (2**31,)])
def test_bad_grids(grid: tuple[int, ...]) -> None:
    launcher = _cuda.Launcher("k", lambda *_: None, lambda *_: None, [False])
    with pytest.raises(DeviceError, match="grid"):
        launcher(grid, torch.ones(1))


class Parameter:
    """What `prepare` reads of a Triton parameter."""

    def __init__(self, num: int, name: str, constant: bool, default: bool = False) -> None:
        self.num, self.name, self.is_constexpr, self.has_default = num, name, constant, default


class Compiled:
    __name__ = "k"
    params = (Parameter(0, "x", False), Parameter(1, "B", True), Parameter(2, "C", True, True))


def test_named_parameters_are_the_last() -> None:
    kernel = Compiled()
    assert module._constant_arguments(kernel, {"B": 1}) == [False]
    assert module._constant_arguments(kernel, {}) == [False, True]
    with pytest.raises(TypeError, match=r"come after some of them: \['B'\]"):
        module._constant_arguments(kernel, {"x": 1, "C": 1})
    with pytest.raises(TypeError, match="by position"):
        module._constant_arguments(kernel, {"x": 1, "B": 1, "C": 1})


def test_slots_follow_triton_types() -> None:
    tile = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [64, 64], "fp4_padded": 0}
    kinds = {"x": "*bf16", "d": "tensordesc<bf16[64, 64]>", "n": "i32", "one": "constexpr"}
    assert module._slots(Compiled(), {**kinds, "f": "fp32"}, [tile], 5) == [
        "word", (3, 2, 9, [64, 64]), "word", "constant", "float",
    ]  # fmt: skip
    with pytest.raises(DeviceError, match="parameter h has type fp16, not supported"):
        module._slots(Compiled(), {"h": "fp16"}, [], 1)


@needs_gpu
def test_one_compilation_a_class_of_arguments() -> None:
    launcher = prepare(scaled_kernel, ADD=5)
    x = torch.ones(256, device="cuda")
    y = torch.empty_like(x)
    calls = [(64, 1), (128, 1), (65, 2), (67, 2), (1, 3), (2**40, 4), (2**40 + 1, 5)]
    for n, compiled in calls:
        launcher((1,), x, y, n, 2.0)
        assert launcher.compiled == compiled, n  # type: ignore[attr-defined]
        assert y[: min(n, 64)].eq(7).all()
    launcher((1,), x[1:], y, 64, 2.0)
    assert launcher.compiled == 6  # type: ignore[attr-defined]
    launcher((1,), x.to(torch.bfloat16), y, 64, 2.0)
    assert launcher.compiled == 7  # type: ignore[attr-defined]


@needs_gpu
def test_capture_compiles_and_replays() -> None:
    x = torch.ones(64, device="cuda")
    y = torch.zeros_like(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(scaled_kernel, (1,), x, y, 64, 3.0, ADD=11)
    assert y.eq(0).all()
    graph.replay()
    assert y.eq(14).all()


@needs_gpu
def test_streams_and_threads() -> None:
    out = torch.zeros(8, 4096, device="cuda")
    x = torch.ones(4096, device="cuda")
    torch.cuda.synchronize()

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                launch(scaled_kernel, (64,), x, out[i], 4096, float(i), ADD=1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.cuda.synchronize()
    assert torch.equal(out, torch.arange(1.0, 9.0, device="cuda")[:, None].expand(8, 4096))


@needs_gpu
def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(DeviceError, match="tensor descriptor"):
        launch(tile_kernel, (1, 1), *[descriptor(x[:, 1:], [32, 32])] * 2, BLOCK=32)
    with pytest.raises(DeviceError, match=r"launch of scaled_kernel with grid \(1, 70000, 1\)"):
        launch(scaled_kernel, (1, 70000), x, x, 64, 1.0, ADD=0)
