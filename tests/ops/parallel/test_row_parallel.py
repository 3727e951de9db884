"""Row-parallel products of one rank: their tree, their shapes. `test_ranks` has the others."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.distributed as dist

from samebits import ops
from samebits.contract import Balanced
from samebits.contract.tree import cut, fold
from samebits.errors import SamebitsError, ShapeError
from samebits.ops.parallel.ranks import Ranks

K, N = 2048, 96


def operands(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, K, generator=noise) * torch.logspace(-3, 3, K)
    w, b = torch.randn(N, K, generator=noise), torch.randn(N, generator=noise)
    return x.to(dtype), w.to(dtype), b.to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype is b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_one_rank_has_the_bits_of_the_tree() -> None:
    x, w, b = operands(5, torch.bfloat16)
    parts = [
        ops.linear(x[:, i:j], w[:, i:j], out_dtype=torch.float32) for i, j in cut(Balanced(8), 0, K)
    ]
    total = fold(parts, "pairwise", torch.add)
    expected = (total + b.float()).to(torch.bfloat16)
    assert same(ops.row_parallel_linear(x, w, b), expected)
    assert same(ops.row_parallel_linear(x, w), total.to(torch.bfloat16))


def test_leading_axes_and_no_rows() -> None:
    x, w, b = operands(6, torch.float32)
    y = ops.row_parallel_linear(x.view(2, 3, K), w, b)
    assert y.shape == (2, 3, N) and same(y.view(6, N), ops.row_parallel_linear(x, w, b))
    assert ops.row_parallel_linear(x[:0], w, b).shape == (0, N)


def test_bad_input() -> None:
    x, w, b = operands(2, torch.float32)
    with pytest.raises(ShapeError, match="no multiple of 8"):
        ops.row_parallel_linear(x[:, :1000], w[:, :1000])
    with pytest.raises(ShapeError, match="bias must be"):
        ops.row_parallel_linear(x, w, b[:5])
    with pytest.raises(ShapeError, match="no multiple of 32"):
        ops.row_parallel_linear(x, w, parts=32)
    w.requires_grad_()
    with pytest.raises(SamebitsError, match="no backward"):
        ops.row_parallel_linear(x, w)
    with torch.no_grad():
        assert ops.row_parallel_linear(x, w).shape == (2, N)


def test_what_joins_partial_sums_is_given_the_numbers_of_a_negated_bias(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels that join read memory."""
    module, given = importlib.import_module("samebits.ops.parallel.linear"), []

    def join(ranks: Ranks, partial: torch.Tensor, bias: torch.Tensor, *_: Any) -> torch.Tensor:
        given.append(bias)
        return partial

    monkeypatch.setattr(module, "ranks_of", lambda *_: Ranks(dist.ProcessGroup(0, 2), 2, 0, "", 1))
    monkeypatch.setattr(module, "join", join)
    x, w, b = operands(2, torch.float32)
    ops.row_parallel_linear(x, w, torch._neg_view(-b))
    assert not given[0].is_neg() and same(given[0], b)
