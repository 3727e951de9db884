"""LinearContract.evaluate: operands, epilogue, batches, scales, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samebits import bits
from samebits.contract import (
    IEEE_FMA,
    Chain,
    Lanes,
    LinearContract,
    Segment,
    Split,
    dot,
    hopper_mma,
)
from samebits.contract import numerics as nx
from samebits.errors import ContractError, DTypeError, ShapeError

BF16 = LinearContract(Split(4), hopper_mma("bf16"), "bf16", "bf16")
CPU = LinearContract(Lanes(16), IEEE_FMA, "fp32", "fp32")


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=g).to(dtype) for s in shapes]


def test_tensors_and_arrays_give_the_same_bits() -> None:
    x, w = tensors((3, 5, 600), (7, 600))
    acc = BF16.evaluate(x, w, out_dtype=torch.float32)
    assert isinstance(acc, torch.Tensor)
    assert acc.dtype is torch.float32
    assert acc.shape == (3, 5, 7)
    wide = dot(x.float().reshape(-1, 600).numpy(), w.float().numpy(), BF16.tree, BF16.arithmetic)
    assert bits.equal(acc.reshape(-1, 7), torch.from_numpy(wide))

    words = [t.view(torch.int16).numpy().view(np.uint16) for t in (x, w)]
    for a, b in (words, (x.float().numpy(), w.float().numpy())):
        assert np.asarray(BF16.evaluate(a, b)).tobytes() == acc.numpy().tobytes()
    rounded = BF16.evaluate(x, w, out_dtype=torch.bfloat16)
    assert bits.equal(rounded, acc.to(torch.bfloat16))
    stored = BF16.evaluate(*words, out_dtype="bf16")
    assert (stored == rounded.view(torch.int16).numpy().view(np.uint16)).all()


def test_the_default_is_the_value_before_the_last_rounding() -> None:
    x, w = tensors((2, 64), (3, 64))
    assert BF16.evaluate(x, w).dtype is torch.float32


def test_a_row_does_not_depend_on_the_others() -> None:
    x, w = tensors((33, 300), (20, 300))
    whole = BF16.evaluate(x, w)
    for engine in ("numpy", "cpu"):
        for i in (0, 7, 32):
            assert bits.equal(BF16.evaluate(x[i], w, engine=engine), whole[i])


def test_epilogue_rounds_step_by_step() -> None:
    x, w, c = tensors((4, 50), (6, 50), (4, 6), dtype=torch.float32)
    acc = CPU.evaluate(x, w).numpy()
    got = CPU.evaluate(x, w, c, alpha=0.3, beta=-1.7).numpy()
    want = nx.mul32(acc, np.float32(0.3)) + nx.mul32(c.numpy(), np.float32(-1.7))
    assert got.tobytes() == want.tobytes()
    plain = CPU.evaluate(x, w, c[0]).numpy()
    assert plain.tobytes() == (acc + c[0].numpy()).tobytes()
    ignored = CPU.evaluate(x, w, torch.full((6,), torch.nan), beta=0.0)
    assert bits.equal(ignored, torch.from_numpy(acc))
    relu = LinearContract(Lanes(16), IEEE_FMA, "fp32", "fp32", epilogue=("alpha", "bias", "relu"))
    assert bits.equal(relu.evaluate(x, w, c), torch.from_numpy(acc + c.numpy()).relu())


def test_there_is_one_rounding() -> None:
    """A sum that is rounded to bf16 before the bias is added would end elsewhere."""
    contract = LinearContract(Chain(), IEEE_FMA, "bf16", "bf16")
    x = torch.tensor([[1.0, 2.0**-9]], dtype=torch.bfloat16)
    w = torch.ones(1, 2, dtype=torch.bfloat16)
    b = torch.tensor([2.0**-10], dtype=torch.bfloat16)
    got = contract.evaluate(x, w, b, torch.bfloat16)
    assert float(got) == 1.0  # 1 + 2^-9 + 2^-10 is below the tie at 1 + 2^-8
    b = torch.tensor([2.0**-8], dtype=torch.bfloat16)
    assert float(contract.evaluate(x, w, b, torch.bfloat16)) == 1.0 + 2.0**-7
    assert float((x.float() @ w.float().T).to(torch.bfloat16) + b) == 1.0


def test_batches_broadcast() -> None:
    x, w = tensors((2, 1, 3, 40), (4, 5, 40), dtype=torch.float32)
    y = CPU.evaluate(x, w)
    assert y.shape == (2, 4, 3, 5)
    assert bits.equal(y[1, 2], CPU.evaluate(x[1, 0], w[2]))
    assert CPU.evaluate(x[0, 0, 0], w[0]).shape == (5,)


@pytest.mark.parametrize("shape", [(0, 8), (2, 0), (0, 0)])
def test_empty(shape: tuple[int, int]) -> None:
    m, k = shape
    y = CPU.evaluate(torch.ones(m, k), torch.ones(3, k))
    assert y.shape == (m, 3)
    assert (bits.view(y) == 0).all() or k


def test_nan_is_the_device_s_own() -> None:
    x, w = torch.tensor([[torch.inf, -torch.inf]]), torch.ones(1, 2)
    assert bits.view(CPU.evaluate(x, w)).item() == 0x7FC00000
    half = (x.bfloat16(), w.bfloat16())
    assert bits.view(BF16.evaluate(*half)).item() == 0x7FFFFFFF
    assert bits.view(BF16.evaluate(*half, out_dtype="bf16")).item() == 0x7FFF
    fp16 = LinearContract(Chain(), hopper_mma("fp16"), "fp16", "fp16")
    assert bits.view(fp16.evaluate(x.half(), w.half(), out_dtype="fp16")).item() == 0x7FFF
    cpu16 = LinearContract(Lanes(16), IEEE_FMA, "fp16", "fp16")
    assert bits.view(cpu16.evaluate(x.half(), w.half(), out_dtype="fp16")).item() == 0x7E00


def test_block_scaled_fp8() -> None:
    contract = LinearContract(Segment(128), hopper_mma("e4m3"), "e4m3", "bf16", "block")
    x, w = tensors((3, 300), (200, 300), dtype=torch.float8_e4m3fn)
    xs, ws = (s.abs() + 0.1 for s in tensors((3, 3), (2, 3), dtype=torch.float32))
    got = contract.evaluate(x, w, x_scale=xs, w_scale=ws).numpy()
    acc = np.zeros((3, 200), np.float32)
    for i, at in enumerate((slice(0, 128), slice(128, 256), slice(256, 300))):
        leaf = dot(x.float().numpy()[:, at], w.float().numpy()[:, at], Chain(), contract.arithmetic)
        scale = xs.numpy()[:, i : i + 1] * ws.numpy()[np.arange(200) // 128, i]
        acc = nx.fma32(leaf, scale, acc)
    assert got.tobytes() == acc.tobytes()
    unscaled = LinearContract(Segment(128), hopper_mma("e4m3"), "e4m3", "bf16")
    ones = contract.evaluate(x, w, x_scale=torch.ones(3, 3), w_scale=torch.ones(2, 3))
    assert bits.equal(ones, unscaled.evaluate(x, w))
    with pytest.raises(ContractError, match="needs x_scale"):
        contract.evaluate(x, w)
    with pytest.raises(ShapeError, match="w_scale"):
        contract.evaluate(x, w, x_scale=xs, w_scale=xs)
    with pytest.raises(ContractError, match="no scales"):
        unscaled.evaluate(x, w, x_scale=xs)


def test_tf32_drops_the_low_bits() -> None:
    contract = LinearContract(Chain(), hopper_mma("tf32"), "tf32", "fp32")
    x, w = tensors((2, 20), (3, 20), dtype=torch.float32)
    cut = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (x, w)]
    assert bits.equal(contract.evaluate(x, w), contract.evaluate(*cut))
    assert not bits.equal(cut[0], x)
    low_nan = torch.tensor([[0x7F800001]], dtype=torch.int32).view(torch.float32)
    assert contract.evaluate(low_nan, torch.ones(1, 1)).item() == torch.inf


def test_operands_that_do_not_fit() -> None:
    x, w = tensors((2, 8), (3, 8))
    for call, error in [
        (lambda: BF16.evaluate(x.half(), w), DTypeError),
        (lambda: BF16.evaluate(x, w.float()), DTypeError),
        (lambda: BF16.evaluate(x.to_sparse(), w), DTypeError),
        (lambda: BF16.evaluate(x.to("meta"), w), DTypeError),
        (lambda: BF16.evaluate(x.to(torch.complex64), w), DTypeError),
        (lambda: BF16.evaluate(np.float32([[0.1] * 8]), w), DTypeError),
        (lambda: BF16.evaluate(np.zeros((2, 8)), w), DTypeError),
        (lambda: BF16.evaluate(x, w, tensors((3,), dtype=torch.float64)[0]), DTypeError),
        (lambda: BF16.evaluate(x[:, :7], w), ShapeError),
        (lambda: BF16.evaluate(x, w[0]), ShapeError),
        (lambda: BF16.evaluate(x, w, x), ShapeError),
        (lambda: CPU.evaluate(torch.ones(2, 3, 4), torch.ones(3, 5, 4)), ShapeError),
        (lambda: BF16.evaluate(x, w, out_dtype=torch.float16), ContractError),
        (lambda: BF16.evaluate(x, w, out_dtype=torch.int32), DTypeError),
    ]:
        with pytest.raises(error):
            call()


def test_row_scaled_fp8() -> None:
    contract = LinearContract(Chain(), hopper_mma("e4m3"), "e4m3", "bf16", "row")
    x, w = tensors((2, 3, 300), (20, 300), dtype=torch.float8_e4m3fn)
    xs, ws = (s.abs() + 0.1 for s in tensors((2, 3, 1), (20, 1), dtype=torch.float32))
    got = contract.evaluate(x, w, x_scale=xs, w_scale=ws).numpy()
    acc = dot(x.float().reshape(6, 300).numpy(), w.float().numpy(), Chain(), contract.arithmetic)
    want = acc.reshape(2, 3, 20) * (xs.numpy() * ws.numpy().reshape(20))
    assert got.tobytes() == want.tobytes()
    with pytest.raises(ShapeError, match="w_scale"):
        contract.evaluate(x, w, x_scale=xs, w_scale=ws[:1])
