"""Products in CUDA C++: the contract's bits from every tile and fold, and what is refused."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from msgspec.structs import replace

from samebits.contract import LinearContract, parse_tree
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.linear import choose, product
from samebits.engines.cuda.linear.schedule import ProductSchedule
from samebits.engines.leaves import leaves_of
from samebits.errors import DeviceError
from samebits.plan.contracts import contract_of

hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="runs on an sm_90 GPU",
)
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
#: (tree, a leaf a block)
FOLDS = [
    ("chain", False), ("split(2)", True), ("split(4)", False), ("split(4)", True),
    ("split(8)", True), ("balanced(4)", True), ("balanced(4)", False), ("balanced(8)", True),
    ("balanced(8)", False), ("segment(128)", False),
]  # fmt: skip


def contract(tree: str, dtype: torch.dtype = torch.bfloat16, n: int = 456) -> LinearContract:
    return contract_of("linear", dtype=dtype, n=n, k=1000, device="sm_90", tree=tree)


def numbers(rows: int, k: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-6, 7, (rows, k), generator=generator)
    return torch.ldexp(torch.randn(rows, k, generator=generator), exponents).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    words = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.cpu().view(words), b.cpu().view(words))


def run(
    agreed: LinearContract,
    s: ProductSchedule,
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.dtype,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
) -> torch.Tensor:
    """The product in a frame of sevens, which must stay."""
    m, n = len(x), len(w)
    frame = torch.full((m + 2, n + 16), 7.0, dtype=out, device=x.device)
    c = None if bias is None else bias.expand(m, n)
    assert product.run(agreed, s, x, w, frame[1:-1, 8:-8], c, alpha) is None
    inside = frame[1:-1, 8:-8].clone()
    frame[1:-1, 8:-8] = 7
    assert (frame == 7).all()
    return inside


@pytest.mark.parametrize("fold, split, wide", [(0, 0, 0), (1, 0, 1), (3, 0, 0), (0, 4, 0)])
def test_compiles_without_a_gpu(fold: int, split: int, wide: int) -> None:
    try:
        nvrtc.version()
    except DeviceError as error:
        pytest.skip(str(error))
    s = ProductSchedule(groups=2, columns=72, split=split > 0)
    values = product.constants(s, True, split or 1, fold, False, bool(wide))
    assert product.cubin(values).startswith(b"\x7fELF")


def test_what_is_refused() -> None:
    x, w = (torch.zeros(rows, 512, dtype=torch.bfloat16) for rows in (64, 64))
    y, s = torch.zeros(64, 64, dtype=torch.bfloat16), ProductSchedule(columns=64)

    def refused(
        *operands: torch.Tensor | None, schedule: ProductSchedule = s, tree: str = "chain"
    ) -> bool:
        return product.refusal(contract(tree), schedule, *operands) is not None  # type: ignore[arg-type]

    assert not refused(x, w, y)
    assert not refused(x, w, y.float(), w[:, 0].contiguous())
    assert refused(x.t(), w, y) and refused(x, w.t(), y) and refused(x, w, y.t())
    assert refused(x[:, 4:], w[:, 4:], y)  # not aligned
    assert refused(x[None], w[None], y[None])
    assert refused(x[:, :0], w[:, :0], y)
    assert refused(x, w[:60], y[:, :60])
    assert refused(x, w, y, y)
    assert refused(x, w, y, w[:, 0].float().contiguous())
    assert refused(x, w, y, schedule=replace(s, split=True))
    assert refused(x, w, y, schedule=replace(s, split=True), tree="segment(32)")
    assert not refused(x, w, y, tree="balanced(4)")
    assert refused(x, w, y, schedule=replace(s, columns=136), tree="balanced(4)")
    assert refused(x, w, y, schedule=replace(s, chunks=2), tree="segment(64)")
    assert refused(x, w, y, schedule=replace(s, columns=256), tree="split(4)")
    fp8 = contract_of("linear", dtype="e4m3", n=64, k=512, device="sm_90")
    assert product.refusal(fp8, s, x, w, y) is not None


@pytest.mark.parametrize("tree", ["chain", "split(4)", "balanced(4)", "segment(128)"])
@pytest.mark.parametrize("m, n, k", [(65, 8, 2048), (256, 576, 7168), (8192, 151936, 4096)])
def test_choices_fit_the_chip(tree: str, m: int, n: int, k: int) -> None:
    leaves = leaves_of(parse_tree(tree), k)
    found = choose.ranked((65, m), n, k, leaves, 1000)
    assert found
    assert tree != "balanced(4)" or {s.split for s in found} == {True, False}
    for s in found:
        parts = leaves.count if s.split else 1
        assert s.takes(leaves) and s.stages >= 3 and s.shared(parts) <= 227 << 10
        assert s.columns % 8 == 0 and s.columns <= 256
        assert s.height <= 65 and s.width <= n
    times = [choose.cycles(s, m, n, k, leaves) for s in found]
    assert times == sorted(times)


def test_a_skinny_weight_gets_a_leaf_a_block_until_tiles_fill_the_chip() -> None:
    leaves = leaves_of(parse_tree("split(4)"), 7168)
    assert choose.ranked((193, 256), 576, 7168, leaves, 1)[0].split
    assert not choose.ranked((4097, 8192), 2112, 7168, leaves, 1)[0].split


@hopper
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("tree, split", FOLDS)
@pytest.mark.parametrize("groups", [1, 2])
def test_bits_of_the_contract(dtype: torch.dtype, tree: str, split: bool, groups: int) -> None:
    x, w, bias = (
        numbers(150, 1000, dtype, 1),
        numbers(456, 1000, dtype, 2),
        numbers(1, 456, dtype, 3),
    )
    x[3, 5], w[7, 9], x[10] = math.inf, math.nan, -0.0
    agreed = contract(tree, dtype)
    s = ProductSchedule(groups=groups, columns=136, split=split)
    if not s.takes(leaves_of(agreed.tree, 1000)):
        s = replace(s, columns=88)
    on_gpu = x.cuda(), w.cuda()
    for out in (dtype, torch.float32):
        assert same(run(agreed, s, *on_gpu, out), agreed.evaluate(x, w, None, out))
        assert same(
            run(agreed, s, *on_gpu, out, bias[0].cuda(), 0.5),
            agreed.evaluate(x, w, bias, out, alpha=0.5),
        )


@hopper
@pytest.mark.parametrize(
    "tree, split",
    [("chain", False), ("split(4)", False), ("balanced(4)", False), ("split(4)", True)],
)
def test_tiles_do_not_matter(tree: str, split: bool) -> None:
    """Tails of rows and columns, several tiles a block, both kinds of blocks of k."""
    x, w = (
        numbers(300, 1000, torch.bfloat16, 1).cuda(),
        numbers(456, 1000, torch.bfloat16, 2).cuda(),
    )
    agreed, found = contract(tree), None
    shapes = itertools.product((32, 72, 144, 192), ((1, 1), (1, 2), (2, 1)), (0, 1, 2))
    for columns, (groups, chunks), share in shapes:
        s = ProductSchedule(
            groups=groups, columns=columns, chunks=chunks, split=split, share=share, band=2
        )
        if not s.takes(leaves_of(agreed.tree, 1000)):
            continue
        y = run(agreed, s, x, w, torch.bfloat16)
        assert found is None or same(y, found)
        found = y
        for m in (1, 63, 129):
            assert same(run(agreed, s, x[:m], w, torch.bfloat16), y[:m])


@hopper
def test_many_tiles_a_block_and_many_times() -> None:
    """More tiles than processors; every repeat has the same bits."""
    x, w = (
        numbers(4000, 512, torch.bfloat16, 1).cuda(),
        numbers(1000, 512, torch.bfloat16, 2).cuda(),
    )
    agreed = contract("split(4)", n=1000)
    first = run(agreed, ProductSchedule(columns=64), x, w, torch.bfloat16)
    for _ in range(20):
        for s in (
            ProductSchedule(columns=64),
            ProductSchedule(columns=200, split=True),
            ProductSchedule(columns=128, share=1),
            ProductSchedule(columns=128, share=2),
        ):
            assert same(run(agreed, s, x, w, torch.bfloat16), first)
