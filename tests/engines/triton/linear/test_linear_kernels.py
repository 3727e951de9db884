"""Kernels of matrix products against the evaluator, fp32 accumulators, in the interpreter or on a
GPU. On a GPU the sweeps are wide."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

pytest.importorskip("triton")
from gemm_samples import contract, operand, schedules_for, with_specials
from interpreter import INTERPRETED
from samebits import bits
from samebits.contract import Balanced, Chain, LinearContract, Segment, Split, Tree
from samebits.engines.triton.linear.run import run
from samebits.engines.triton.linear.schedule import GemmSchedule, fitting
from samebits.errors import ContractError

DEVICE = "cpu" if INTERPRETED else "cuda"
GPU = pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
TREES = (Chain(), Split(4), Balanced(4), Balanced(8), Segment(512), Segment(200))

#: One of every kind: swapped or not, by pointers or by the copy engine, split, persistent.
KINDS = (
    GemmSchedule(block_m=16, block_n=64, block_k=128, swap=True),
    GemmSchedule(block_m=16, block_n=32, block_k=128),
    GemmSchedule(block_m=64, block_n=64, block_k=64, split=True),
    GemmSchedule(block_m=32, block_n=64, block_k=128, swap=True, split=True, tma=True),
    GemmSchedule(block_m=64, block_n=128, block_k=64, tma=True),
    GemmSchedule(block_m=128, block_n=64, block_k=64, warps=8, persistent=True),
)
#: Those that have fp8's bits.
FP8 = tuple(s for s in KINDS if s.swap or s.block_m >= 64)


def computed(
    agreed: LinearContract, s: GemmSchedule, x: torch.Tensor, w: torch.Tensor,
    c: torch.Tensor | None = None, out: torch.dtype = torch.float32, **rest: object,
) -> torch.Tensor:  # fmt: skip
    """What a schedule gives, on a CPU; y starts as NaN."""
    y = torch.full((*x.shape[:-1], w.shape[-2]), torch.nan, dtype=out, device=DEVICE)
    moved = {k: placed(v) if isinstance(v, torch.Tensor) else v for k, v in rest.items()}
    run(agreed, s, placed(x), placed(w), y, None if c is None else placed(c).expand(y.shape),
        **moved)  # type: ignore[arg-type]  # fmt: skip
    return y.cpu()


def placed(x: torch.Tensor) -> torch.Tensor:
    """`x` on the device under test, with its strides, its offset and what lies between."""
    storage = x.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8).set_(storage).to(DEVICE)
    return torch.empty(0, dtype=x.dtype, device=DEVICE).set_(
        flat.untyped_storage(), x.storage_offset(), x.shape, x.stride()
    )


def assert_bits(got: torch.Tensor, want: torch.Tensor, what: object) -> None:
    assert bits.equal(got, want), f"{what}: {bits.count_different(got, want)} of {got.numel()}"


def check(
    agreed: LinearContract, schedules: Iterable[GemmSchedule], x: torch.Tensor, w: torch.Tensor,
    c: torch.Tensor | None = None, **rest: object,
) -> None:  # fmt: skip
    want = agreed.evaluate(x, w, c, **rest)  # type: ignore[arg-type]
    for s in schedules:
        assert_bits(computed(agreed, s, x, w, c, **rest), want, (str(agreed.tree), s))


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_kind_of_schedule_has_the_tree(dtype: str, tree: Tree) -> None:
    x, w = operand(dtype, 19, 1160, seed=1), operand(dtype, 40, 1160, seed=2)
    check(contract(dtype, tree), KINDS, x, w)


@pytest.mark.parametrize("tree", [Chain(), Split(4), Balanced(4), Segment(128)], ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_fp32_by_fma_and_by_tensor_core(dtype: str, tree: Tree) -> None:
    x, w = operand(dtype, 19, 265, seed=1, spread=20), operand(dtype, 40, 265, seed=2, spread=20)
    check(contract(dtype, tree), KINDS, x, w)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_fp8(kind: str) -> None:
    x, w = operand(kind, 19, 400, seed=1), operand(kind, 150, 400, seed=2)
    check(contract(kind, Chain()), FP8, x, w)
    check(contract(kind, Split(2)), FP8, x, w)
    rows = {"x_scale": operand("fp32", 19, 1, seed=3), "w_scale": operand("fp32", 150, 1, seed=4)}
    check(contract(kind, Chain(), scaling="row"), FP8, x, w, operand("bf16", 150, seed=5), **rows)
    blocks = {"x_scale": operand("fp32", 19, 4, seed=3), "w_scale": operand("fp32", 2, 4, seed=4)}
    check(contract(kind, Segment(128), scaling="block"), FP8, x, w, **blocks)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_strides_offsets_and_odd_lengths(dtype: str) -> None:
    agreed = contract(dtype, Split(2))
    k = 264
    w = operand(dtype, 40, k, seed=2)
    x = operand(dtype, 17, k, seed=1)
    whole = operand(dtype, 17 * k + 1, seed=3)
    for case in (
        (operand(dtype, k, 17, seed=4).t(), w),
        (operand(dtype, k, 24, seed=4).t(), operand(dtype, k, 40, seed=5).t()),
        (operand(dtype, 17, 2 * k, seed=4)[:, ::2], operand(dtype, 80, k, seed=5)[::2]),
        (whole[1:].view(17, k), w),
        (x[:1].expand(17, k), w),
        (x[:, :257], operand(dtype, 40, 257, seed=5)),
        (operand(dtype, 40, 17, 8, seed=6)[:, :, 3], operand(dtype, 40, 17, seed=7)),
        (x[:, :0], w[:, :0]),
    ):
        left, right = case if case[0].shape[1] == case[1].shape[1] else (case[0].t(), x)
        check(agreed, KINDS, left, right)


def test_strides_that_need_64_bits() -> None:
    x = torch.zeros(3 << 21, dtype=torch.bfloat16).as_strided((3, 40), ((1 << 21), 1))
    x.copy_(operand("bf16", 3, 40, seed=1))
    w = operand("bf16", 24, 40, seed=2)
    check(contract("bf16", Chain()), KINDS[:3], x, w)
    check(contract("bf16", Chain()), KINDS[:1], w, x)


def test_batches() -> None:
    agreed = contract("bf16", Chain())
    a, b = operand("bf16", 3, 17, 136, seed=1), operand("bf16", 3, 136, 24, seed=2)
    c = operand("bf16", 3, 17, 24, seed=3)
    check(agreed, KINDS, a, b.mT)
    check(agreed, KINDS, a, b.mT, c, alpha=-0.3, beta=1.7)
    check(agreed, KINDS, a, operand("bf16", 24, 136, seed=4).expand(3, 24, 136), c[:, :1])
    check(agreed, KINDS, a[:1].expand(3, 17, 136), b.mT, c[..., :1])


@pytest.mark.parametrize("shape", [(40,), (19, 40), (19, 1), (1, 1)])
def test_the_epilogue_rounds_step_by_step(shape: tuple[int, ...]) -> None:
    x, w = operand("bf16", 19, 72, seed=1), operand("bf16", 40, 72, seed=2)
    c = operand("bf16", *shape, seed=3)
    check(contract("bf16", Chain()), KINDS, x, w, c, alpha=0.3, beta=-1.7)
    check(contract("bf16", Chain(), relu=True), KINDS, x, w, c)
    nothing = torch.full_like(c, torch.nan)
    check(contract("bf16", Chain()), KINDS, x, w, nothing, beta=0.0)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_one_rounding_to_the_result(dtype: str) -> None:
    agreed = contract(dtype, Chain())
    x, w = operand(dtype, 19, 72, seed=1), operand(dtype, 40, 72, seed=2)
    c = operand(dtype, 40, seed=3)
    want = agreed.evaluate(x, w, c, dtype)
    for s in KINDS:
        assert_bits(computed(agreed, s, x, w, c, out=x.dtype), want, s)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("tree", [Chain(), Split(2)], ids=str)
def test_rows_keep_their_specials_to_themselves(dtype: str, tree: Tree) -> None:
    x, w = operand(dtype, 19, 264, seed=1), operand(dtype, 40, 264, seed=2)
    check(contract(dtype, tree), KINDS, with_specials(x), w)
    plain = computed(contract(dtype, tree), KINDS[0], x, w)
    beside = computed(contract(dtype, tree), KINDS[0], with_specials(x), w)
    assert bits.equal(plain[7:], beside[7:])


@pytest.mark.parametrize("tree", [Chain(), Split(4), Balanced(4), Segment(16)], ids=str)
def test_a_negative_zero_survives_the_fold(tree: Tree) -> None:
    """An fma chain that underflows from below ends in -0; padding and folds must not lose it."""
    x = torch.full((5, 600), 2.0**-100)
    check(contract("fp32", tree), KINDS, x, -x[:3])
    assert computed(contract("fp32", tree), KINDS[0], x, -x[:3]).signbit().all()


def test_what_has_no_kernel_is_refused() -> None:
    x = operand("bf16", 2, 4096, seed=1)
    long = contract("bf16", Segment(128, fold="pairwise"))
    with pytest.raises(ContractError, match="at most 16"):
        computed(long, KINDS[0], x, x)


def test_schedules_are_fitted_without_touching_the_contract() -> None:
    wanted = GemmSchedule(block_m=16, block_n=64, block_k=512, stages=8, persistent=True)
    fp8 = fitting(wanted, contract("e4m3", Chain()), 4096, 1, 4)
    assert fp8.block_m >= 64
    fma = fitting(wanted, contract("fp32", Chain()), 4096, 1, 4)
    assert not fma.persistent
    assert fma.block_k <= 32
    leaf = fitting(wanted, contract("bf16", Segment(96)), 96, 10, 4)
    assert leaf.block_k == 32
    for s in (fp8, fma, leaf):
        assert s.stages * (s.block_m + s.block_n) * s.block_k <= 232448


@GPU
@pytest.mark.parametrize("tree", [Chain(), Split(4), Balanced(4), Segment(512)], ids=str)
def test_candidates_agree_on_a_gpu(tree: Tree) -> None:
    """Every candidate of the tuner for every bucket up to 512, at its edges."""
    agreed = contract("bf16", tree)
    w = operand("bf16", 200, 1544, seed=2).cuda()
    x = operand("bf16", 513, 1544, seed=1).cuda()
    want = agreed.evaluate(x.cpu(), w.cpu()).cuda()
    for m in (1, 2, 15, 16, 17, 33, 64, 65, 127, 130, 192, 257, 513):
        for s in schedules_for(agreed, m):
            y = torch.full((m, 200), torch.nan, device="cuda")
            run(agreed, s, x[:m], w, y)
            assert_bits(y, want[:m], (m, s))


@GPU
def test_every_number_of_rows_and_every_position() -> None:
    agreed = contract("bf16", Split(4))
    w = operand("bf16", 576, 2048, seed=2).cuda()
    x = operand("bf16", 1100, 2048, seed=1).cuda()
    want = torch.empty(1100, 576, device="cuda")
    run(agreed, KINDS[2], x, w, want)
    assert_bits(want[:9].cpu(), agreed.evaluate(x[:9].cpu(), w.cpu()), "reference")
    for m in range(1, 1100, 7):
        y = torch.full((m, 576), torch.nan, device="cuda")
        run(agreed, schedules_for(agreed, m)[0], x[1100 - m :], w, y)
        assert_bits(y, want[1100 - m :], m)


@GPU
def test_captured_split_products_repeat() -> None:
    """200 replays of a graph with several split products, beside eager ones on another stream."""
    agreed = contract("bf16", Split(4))
    x, w = operand("bf16", 33, 4096, seed=1).cuda(), operand("bf16", 576, 4096, seed=2).cuda()
    want = agreed.evaluate(x.cpu(), w.cpu()).cuda()
    s = GemmSchedule(block_m=64, block_n=64, block_k=128, swap=True, split=True)
    outs = [torch.empty(33, 576, device="cuda") for _ in range(4)]
    run(agreed, s, x, w, outs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for y in outs:
            run(agreed, s, x, w, y)
    side = torch.cuda.Stream()
    eager = torch.empty(33, 576, device="cuda")
    for _ in range(200):
        for y in outs:
            y.zero_()
        graph.replay()
        with torch.cuda.stream(side):
            run(agreed, s, x, w, eager)
        torch.cuda.synchronize()
        assert all(bits.equal(y, want) for y in (*outs, eager))


@GPU
def test_stock_products_depend_on_the_number_of_rows() -> None:
    """What all this is for: without it this test fails to find a difference."""
    w = operand("bf16", 4096, 14336, seed=2, spread=2).cuda()
    x = operand("bf16", 512, 14336, seed=1, spread=2).cuda()
    first = {torch.mm(x[:m], w.t())[0].view(torch.int16).cpu().numpy().tobytes()
             for m in (1, 2, 16, 48, 64, 128, 256, 512)}  # fmt: skip
    assert len(first) > 1
