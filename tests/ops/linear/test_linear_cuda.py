"""Public matrix products on CUDA: the contract's bits, and errors. Without a GPU the dispatch runs
on CPU tensors, with kernels in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")
from gemm_samples import operand
from interpreter import INTERPRETED
from samebits import bits, contract_of, ops
from samebits.engines.cuda.linear import chains
from samebits.errors import ContractError, DTypeError, ShapeError
from samebits.ops.linear.operands import cuda_products
from samebits.ops.linear.scaled import scaling_of

DEVICE = "cpu" if INTERPRETED else "cuda"
GPU = pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a GPU, CPU tensors stand for those of an sm_90."""
    if INTERPRETED:
        monkeypatch.setattr(cuda_products(), "contract_class", lambda index: "sm_90")
        monkeypatch.setattr(chains, "refusal", lambda *operands: "CUDA C++ is not interpreted")
        cuda_products()._KNOWN.clear()
        cuda_products()._READY.clear()
    yield
    if INTERPRETED:
        cuda_products()._KNOWN.clear()
        cuda_products()._READY.clear()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("shape", [(5, 72), (2, 3, 72), (72,), (0, 72), (2, 0, 3, 72)])
def test_linear(dtype: str, shape: tuple[int, ...]) -> None:
    x, w = operand(dtype, *shape, seed=1), operand(dtype, 40, 72, seed=2)
    b = operand(dtype, 40, seed=3)
    agreed = contract_of("linear", n=40, k=72, dtype=dtype, device="sm_90")
    linear = cuda_products().linear
    for bias in (None, b):
        for out in (None, torch.float32):
            moved = None if bias is None else bias.to(DEVICE)
            y = linear(x.to(DEVICE), w.to(DEVICE), moved, out).cpu()
            want = agreed.evaluate(x, w, bias, dtype if out is None else "fp32")
            assert bits.equal(y, want)
    wide = operand(dtype, 72, *shape[:-1], seed=4).to(DEVICE)
    turned = wide.permute(*range(1, wide.dim()), 0)  # K is the slowest axis
    y = linear(turned, w.to(DEVICE), None).cpu()
    assert bits.equal(y, agreed.evaluate(turned.cpu(), w, None, dtype))


def test_a_weight_without_columns_or_rows() -> None:
    linear = cuda_products().linear
    x = torch.ones(3, 0, dtype=torch.bfloat16, device=DEVICE)
    b = operand("bf16", 5, seed=1).to(DEVICE)
    assert bits.equal(linear(x, x[:, :0].new_empty(5, 0), b), b.expand(3, 5))
    assert linear(x.new_ones(3, 4), x.new_empty(0, 4), None).shape == (3, 0)


def test_a_tree_of_one_s_own() -> None:
    x, w = operand("bf16", 5, 520, seed=1), operand("bf16", 24, 520, seed=2)
    for tree in ("balanced(4)", "segment(128)", "split(2)"):
        agreed = contract_of("linear", n=24, k=520, dtype="bf16", tree=tree, device="sm_90")
        y = cuda_products().linear(x.to(DEVICE), w.to(DEVICE), None, torch.float32, tree).cpu()
        assert bits.equal(y, agreed.evaluate(x, w))
    with pytest.raises(ContractError, match="leaves are chains"):
        cuda_products().linear(x.to(DEVICE), w.to(DEVICE), None, None, "lanes(16)")
    with pytest.raises(ContractError, match="on a CPU"):
        ops.linear(x, w, tree="chain")


@pytest.mark.parametrize("lead", [(), (3,)])
def test_products_with_an_addend(lead: tuple[int, ...]) -> None:
    a, b = operand("bf16", *lead, 9, 40, seed=1), operand("bf16", *lead, 40, 24, seed=2)
    agreed = contract_of("bmm", n=24, k=40, dtype="bf16", device="sm_90")
    for c in (None, operand("bf16", 24, seed=3), operand("bf16", *lead, 9, 24, seed=3),
              operand("bf16", 9, 1, seed=3)):  # fmt: skip
        given = None if c is None else c.to(DEVICE)
        y = cuda_products().bmm(a.to(DEVICE), b.to(DEVICE), given, 0.7, -1.3).cpu()
        assert bits.equal(y, agreed.evaluate(a, b.mT, c, "bf16", alpha=0.7, beta=-1.3))
    out = torch.empty(*lead, 24, 9, dtype=torch.bfloat16, device=DEVICE).mT
    assert cuda_products().bmm(a.to(DEVICE), b.to(DEVICE), out=out) is out
    assert bits.equal(out.cpu(), agreed.evaluate(a, b.mT, None, "bf16"))


def test_plans_in_force_are_asked_anew() -> None:
    from samebits.plan import planner

    x, w = operand("bf16", 3, 40, seed=1).to(DEVICE), operand("bf16", 24, 40, seed=2).to(DEVICE)
    cuda_products().linear(x, w, None)
    assert cuda_products()._READY
    planner.back_to_tables()
    assert not cuda_products()._READY
    assert not cuda_products()._KNOWN


@GPU
def test_the_public_functions() -> None:
    x, w = operand("bf16", 7, 264, seed=1).cuda(), operand("bf16", 40, 264, seed=2).cuda()
    b = operand("bf16", 40, seed=3).cuda()
    agreed = contract_of("linear", n=40, k=264, dtype="bf16", device="sm_90")
    want = agreed.evaluate(x.cpu(), w.cpu(), b.cpu(), "bf16")
    plain = agreed.evaluate(x.cpu(), w.cpu(), None, "bf16")
    assert bits.equal(ops.linear(x, w, b).cpu(), want)
    assert bits.equal(ops.addmm(b, x, w.t()).cpu(), want)
    assert bits.equal(ops.mm(x, w.t()).cpu(), plain)
    assert bits.equal(ops.matmul(x, w.t()).cpu(), plain)
    assert bits.equal(ops.mv(w, x[0]).cpu(), plain[0])
    batch = ops.bmm(x[None].expand(3, 7, 264), w.t()[None].expand(3, 264, 40))
    assert bits.equal(batch.cpu()[2], plain)
    assert bits.equal(ops.matmul(x[None, None].expand(2, 3, 7, 264), w.t()).cpu()[1, 2], plain)
    accumulators = ops.linear(x, w, out_dtype=torch.float32)
    assert bits.equal(accumulators.cpu(), agreed.evaluate(x.cpu(), w.cpu()))


@GPU
def test_gradients_are_products_too() -> None:
    x, w = operand("bf16", 7, 264, seed=1).cuda(), operand("bf16", 40, 264, seed=2).cuda()
    x.requires_grad_()
    w.requires_grad_()
    y = ops.linear(x, w)
    g = operand("bf16", 7, 40, seed=3).cuda()
    y.backward(g)
    assert x.grad is not None and w.grad is not None
    with torch.no_grad():
        assert bits.equal(x.grad, ops.mm(g, w))
        assert bits.equal(w.grad, ops.mm(g.t(), x))


@GPU
def test_fp32_goes_through_tensor_cores_only_if_allowed() -> None:
    x, w = operand("fp32", 7, 264, seed=1).cuda(), operand("fp32", 40, 264, seed=2).cuda()
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            agreed = contract_of(
                "linear", n=40, k=264, dtype="tf32" if allowed else "fp32", device="sm_90"
            )
            assert bits.equal(ops.linear(x, w).cpu(), agreed.evaluate(x.cpu(), w.cpu()))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@GPU
def test_bad_input() -> None:
    x, w = operand("bf16", 7, 264, seed=1).cuda(), operand("bf16", 40, 264, seed=2).cuda()
    with pytest.raises(DTypeError, match="one device"):
        ops.linear(x, w.cpu())
    with pytest.raises(DTypeError, match="one device"):
        ops.linear(x, w, torch.zeros(40, dtype=torch.bfloat16))
    with pytest.raises(DTypeError, match="one dtype"):
        ops.linear(x, w.half())
    with pytest.raises(ShapeError):
        ops.linear(x, w[:, 1:])
    with pytest.raises(DTypeError, match="no contract"):
        ops.linear(x.double(), w.double())


@GPU
def test_more_elements_than_32_bits_count() -> None:
    x = torch.ones(2**16 + 3, 2**15, dtype=torch.bfloat16, device="cuda")
    w = operand("bf16", 8, 2**15, seed=2).cuda()
    x[-1] = operand("bf16", 2**15, seed=1).cuda()
    assert bits.equal(ops.linear(x, w)[-1:], ops.linear(x[-1:].clone(), w))


@pytest.mark.parametrize("scaling", ["row", "block"])
@pytest.mark.parametrize("shape", [(7, 300), (2, 3, 300), (0, 300)])
def test_scaled_fp8(scaling: str, shape: tuple[int, ...]) -> None:
    n, k = 150, 300
    x, w = operand("e4m3", *shape, seed=1), operand("e4m3", n, k, seed=2)
    b = operand("bf16", n, seed=3)
    leaves = 1 if scaling == "row" else 3
    xs = operand("fp32", *shape[:-1], leaves, seed=4)
    ws = operand("fp32", n if scaling == "row" else 2, leaves, seed=5)
    agreed = contract_of("linear", n=n, k=k, dtype="e4m3", scaling=scaling, device="sm_90")
    want = agreed.evaluate(x, w, b, "bf16", x_scale=xs, w_scale=ws)
    assert scaling_of(x, w, xs, ws, b) == scaling
    if INTERPRETED:
        m = want.numel() // n
        flat = x.reshape(m, k), w, xs.reshape(m, leaves), ws, b
        y = cuda_products().scaled(*flat, torch.bfloat16, scaling).view(want.shape)
    else:
        y = ops.scaled_linear(x.cuda(), w.cuda(), xs.cuda(), ws.cuda(), b.cuda()).cpu()
    assert bits.equal(y, want)
    with pytest.raises(ShapeError, match="weight_scale"):
        scaling_of(x, w, xs, ws[1:], b)
    with pytest.raises(DTypeError, match="on CUDA only"):
        ops.scaled_linear(x, w, xs, ws)
