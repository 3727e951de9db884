"""Group N: scales that see the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from faults.properties import FLOATS, Pairs, every, holds, stock_is_known, values
from samebits import bits, mode
from samebits.errors import UncoveredError


def test_n1_dynamic_int8_of_a_tensor_is_refused() -> None:
    torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
    quantize = torch.ao.quantization.quantize_dynamic
    net = torch.nn.Sequential(torch.nn.Linear(256, 128))
    net.load_state_dict({"0.weight": values(128, 256), "0.bias": values(128)})
    layer = quantize(net, {torch.nn.Linear}, dtype=torch.qint8)
    x = values(4, 256)
    loud = torch.cat([x[:1], 50 * x[1:]])
    if stock_is_known():
        with mode.stock():
            assert not bits.equal(layer(x)[0], layer(loud)[0])
    with sb.deterministic():
        for batch in (x, loud, x[:1]):
            with pytest.raises(UncoveredError, match="batch"):
                layer(batch)
    assert layer(x).shape == (4, 128)


def test_n1_every_way_to_a_scale_of_the_batch_is_refused() -> None:
    x, scale, zero = values(4, 8), torch.tensor([0.1]), torch.tensor([0])
    with sb.deterministic():
        for make in (
            lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
            lambda: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
            lambda: torch.quantize_per_tensor(x, scale, zero, torch.qint8),
            lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        ):
            with pytest.raises(UncoveredError):
                make()


def test_n1_tensors_quantised_before_are_refused_and_can_be_dequantised() -> None:
    x = torch.quantize_per_tensor(values(4, 8), 0.1, 0, torch.qint8)
    plain = x.dequantize()
    with sb.deterministic():
        with pytest.raises((UncoveredError, RuntimeError)):
            F.relu(x) + x
        assert bits.equal(x.dequantize(), plain)


@pytest.mark.parametrize("dtype", FLOATS)
def test_n1_a_scale_for_each_row_is_covered(dtype: torch.dtype) -> None:
    """The remedy: per-row scales, in plain torch, whose integer product is exact."""
    w = values(64, 96, seed=1)
    w_scale = w.abs().amax(1, keepdim=True) / 127
    w_int = (w / w_scale).round().clamp(-128, 127)

    def layer(x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        scale = x.abs().amax(-1, keepdim=True) / 127
        return F.linear((x / scale).round().clamp(-128, 127), w_int) * scale * w_scale.t()

    x = values(17, 96, dtype=dtype) * torch.logspace(-3, 3, 17).to(dtype)[:, None]

    def pairs() -> Pairs:
        yield from every(layer, x, (1, 2, 8))
        loud = x.clone()
        loud[1:] *= 50
        yield "loud neighbours", layer(x)[0], layer(loud)[0]

    holds(pairs)
