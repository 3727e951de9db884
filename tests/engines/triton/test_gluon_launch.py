"""Gluon kernels start like Triton's; it has no interpreter, so all of this needs a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

import interpreter
from samebits.engines.triton.launch import descriptor, launch

pytestmark = pytest.mark.skipif(interpreter.INTERPRETED, reason="needs a GPU")


@gluon.jit
def copy_kernel(source, target):
    tile = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    at = gl.program_id(0) * source.block_type.shape[0]
    mbarrier.init(arrived, count=1)
    mbarrier.expect(arrived, source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, [at, 0], arrived, tile)
    mbarrier.wait(arrived, 0)
    tma.async_copy_shared_to_global(target, [at, 0], tile)
    tma.store_wait(0)


@triton.jit
def add_one_kernel(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_wait()
    tl.store(x + at, tl.load(x + at) + 1)
    tl.extra.cuda.gdc_launch_dependents()


@pytest.mark.parametrize("tile", [[64, 64], [32, 128], [64, 32]])
def test_descriptors(tile: list[int]) -> None:
    x = torch.randn(128, tile[1], device="cuda").to(torch.bfloat16)
    y = torch.empty_like(x)
    layout = gl.NVMMASharedLayout.get_default_for(tile, gl.bfloat16)
    for rows in (128, 64):
        y.zero_()
        args = [descriptor(t[:rows], tile, layout) for t in (x, y)]
        launch(copy_kernel, (128 // tile[0],), *args)
        assert torch.equal(y[:rows], x[:rows]) and y[rows:].eq(0).all()


def test_dependent_launches() -> None:
    x = torch.zeros(1 << 16, device="cuda")
    for _ in range(40):
        launch(add_one_kernel, (64,), x, BLOCK=1024, pdl=True)
    assert x.eq(40).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            launch(add_one_kernel, (64,), x, BLOCK=1024, pdl=True)
    graph.replay()
    assert x.eq(50).all()
