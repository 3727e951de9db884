"""`explain` on a GPU: what cuBLAS, atomics, tf32 and fresh memory do there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from planted import values
from torch import Tensor, nn

from samebits.check import explain

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


class Layers(nn.Module):
    """Residual layers, each a wide and a narrow product, as in a decoder."""

    def __init__(self, depth: int = 4, width: int = 1024, inner: int = 3072) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """x [M, D]."""
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        return x


def test_a_prompt_alone_and_in_a_batch() -> None:
    """cuBLAS splits K where few rows leave multiprocessors idle."""
    torch.manual_seed(0)
    model = Layers().cuda().bfloat16().requires_grad_(False)
    x = values(592, 1024).cuda().bfloat16()
    found = explain(model, x[:37], x, align=(0, 0))
    if found.verdict == "equal":
        pytest.skip("this cuBLAS takes one kernel for both")
    assert found.place is not None and found.place.op == "aten.mm.default", found
    assert (found.kind, found.trigger) == ("reordering", "rows"), found
    assert any("launches" in line for line in found.evidence)
    assert found.passes < 20 and found.swaps[-1].differing == 0


def test_tf32_is_named() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
    x = values(64, 1024).cuda()

    def fast() -> Tensor:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return model(x)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    found = explain(model, lambda: model(x), fast)
    assert found.place is not None and found.place.module == "0"
    assert (found.kind, found.detail, found.trigger) == ("precision", "tf32", "setting"), found


def test_atomic_additions() -> None:
    class Scatter(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> Tensor:
            return torch.zeros(8, 64, device=x.device).index_add(0, index, x)

    x, index = values(20000, 64).cuda(), torch.arange(20000, device="cuda") % 8
    found = explain(Scatter(), (x, index), (x, index))
    assert found.place is not None and found.place.op == "aten.index_add.default"
    assert (found.kind, found.detail, found.trigger) == ("reordering", "atomic", "repeat"), found
    assert found.swaps[0].differing == 0


def test_memory_of_another_request() -> None:
    class Unwritten(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            room = torch.empty_like(x)
            room[:, :8] = x[:, :8]
            return torch.relu(x + room)

    model, x = Unwritten(), values(64, 1024).cuda()

    def after(value: float) -> Callable[[], Tensor]:
        def call() -> Tensor:
            another = torch.full_like(x, value)
            del another
            return model(x)

        return call

    found = explain(model, after(1.0), after(2.0))
    assert found.place is not None and found.place.op == "aten.add.Tensor"
    assert (found.kind, found.detail) == ("memory", "uninitialised"), found
