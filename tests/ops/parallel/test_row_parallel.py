"""Row-parallel products over gloo: one tree for 1, 2 and 4 ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from samebits import ops
from samebits.contract import Balanced
from samebits.contract.tree import cut, fold
from samebits.errors import ShapeError

K, N, ROWS = 2048, 96, (1, 3, 64, 129)


def operands(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, K, generator=noise) * torch.logspace(-3, 3, K)
    w, b = torch.randn(N, K, generator=noise), torch.randn(N, generator=noise)
    return x.to(dtype), w.to(dtype), b.to(dtype)


def rank(index: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet{ranks}", rank=index,
                            world_size=ranks)  # fmt: skip
    found: dict[str, torch.Tensor] = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rows in ROWS:
            x, w, b = operands(rows, dtype)
            share = slice(index * K // ranks, (index + 1) * K // ranks)
            for exchange in (False, True, None):
                y = ops.row_parallel_linear(
                    x[:, share], w[:, share], b, group=dist.group.WORLD, exchange=exchange
                )
                found[f"{dtype} {rows} {exchange}"] = y
            partial = torch.nn.functional.linear(x[:, share], w[:, share])
            dist.all_reduce(partial)
            found[f"{dtype} {rows} stock"] = partial + b
    torch.save(found, f"{folder}/{ranks}-{index}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, torch.Tensor]]]:
    """By number of ranks, what each rank computed."""
    folder = tmp_path_factory.mktemp("ranks")
    found = {}
    for ranks in (1, 2, 4):
        mp.spawn(rank, args=(ranks, str(folder)), nprocs=ranks)  # type: ignore[no-untyped-call]
        found[ranks] = [torch.load(folder / f"{ranks}-{i}.pt") for i in range(ranks)]
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype is b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_the_bits_do_not_depend_on_the_number_of_ranks(
    results: dict[int, list[dict[str, torch.Tensor]]],
) -> None:
    one = results[1][0]
    for ranks in (2, 4):
        for found in results[ranks]:
            for name, y in found.items():
                if "stock" not in name:
                    assert same(y, one[name]), f"{ranks} ranks, {name}"


def test_stock_all_reduce_depends_on_it(
    results: dict[int, list[dict[str, torch.Tensor]]],
) -> None:
    stock = [name for name in results[1][0] if "stock" in name]
    assert any(not same(results[1][0][name], results[2][0][name]) for name in stock)


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
