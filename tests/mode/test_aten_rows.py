"""Row operations under the switch: torch's results to rounding, gradients included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from samebits import bits, ops
from samebits.errors import UncoveredError

TOKENS = torch.tensor([3, 39, 0, 7, 3, 11])
CLASS_WEIGHT = torch.arange(40.0) + 1
ZERO, ONE = torch.zeros(6), torch.ones(6)

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(),
    "sum_rows": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "mean_last": lambda x: x.mean(-1, keepdim=True),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(),
    "var_mean": lambda x: sum(torch.var_mean(x, 1)),
    "std_mean": lambda x: sum(torch.std_mean(x, 1)),
    "norm": lambda x: x.norm(),
    "norm_1": lambda x: x.norm(1, dim=0),
    "norm_0": lambda x: x.norm(0, dim=0) + 0 * x.sum(0),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=-1),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "prod": lambda x: x[:, :5].prod(1),
    "nansum": lambda x: x.nansum(1),
    "nanmean": lambda x: x.nanmean(),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x[:, :5].cumprod(1),
    "trace": lambda x: x[:, :6].trace(),
    "softmax": lambda x: x.softmax(-1),
    "softmax_rows": lambda x: x.softmax(0),
    "softmax_fp32": lambda x: x.softmax(-1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (40,), x[0], x[1]),
    "layer_norm_plain": lambda x: F.layer_norm(x, (40,)),
    "rms_norm": lambda x: F.rms_norm(x, (40,), x[0]),
    "rms_norm_plain": lambda x: F.rms_norm(x.view(6, 5, 8), (5, 8)),
    "group_norm": lambda x: F.group_norm(x.view(2, 12, 10), 3, x[0, :12], x[1, :12]),
    "group_norm_flat": lambda x: F.group_norm(x, 4),
    "instance_norm": lambda x: F.instance_norm(x.view(2, 6, 20), None, None, x[0, :6], x[1, :6]),
    "batch_norm": lambda x: F.batch_norm(x.view(2, 6, 20), ZERO, ONE, ONE + x[0, :6].float()),
    "cross_entropy": lambda x: F.cross_entropy(x, TOKENS),
    "cross_entropy_ignore": lambda x: F.cross_entropy(x, TOKENS, ignore_index=3),
    "cross_entropy_weight": lambda x: F.cross_entropy(x, TOKENS, CLASS_WEIGHT.to(x.dtype)),
    "cross_entropy_smooth": lambda x: F.cross_entropy(x, TOKENS, label_smoothing=0.1),
    "cross_entropy_each": lambda x: F.cross_entropy(x, TOKENS, reduction="none"),
    "cross_entropy_one": lambda x: F.cross_entropy(x[0], TOKENS[0]),
    "cross_entropy_2d": lambda x: F.cross_entropy(
        x.view(1, 6, 8, 5), TOKENS.repeat(7)[:40].view(1, 8, 5) % 6
    ),
    "mse": lambda x: F.mse_loss(x, x.detach() * 0.5),
    "l1": lambda x: F.l1_loss(x, x.detach() * 0.5),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach() * 0.5 - 1),
    "huber": lambda x: F.huber_loss(x, x.detach() * 0.5 - 1, reduction="sum"),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), (x.detach() > 0).to(x.dtype)),
    "bce_logits": lambda x: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).to(x.dtype)),
    "group_norm_channels_last": lambda x: F.group_norm(
        x.view(1, 6, 5, 8).contiguous(memory_format=torch.channels_last), 3
    ),
    "batch_norm_channels_last": lambda x: F.batch_norm(
        x.view(1, 6, 5, 8).contiguous(memory_format=torch.channels_last).float(), ZERO, ONE
    ),
    "cosine": lambda x: F.cosine_similarity(x, x.detach() + 1),
    "normalize": lambda x: F.normalize(x),
    "foreach_norm": lambda x: sum(torch._foreach_norm([x, x * 2])),
    "weight_norm": lambda x: torch._weight_norm(x, x[:, :1].detach() + 2, 0) + x,
    "weight_norm_gain": lambda x: torch._weight_norm(x.detach() + 1, x[:, :1], 0),
    "pairwise": lambda x: F.pairwise_distance(x, x.detach() + 1),
}


def value_and_gradient(
    fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    y = fn(x)
    (y.float() ** 3).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("name", sorted(CASES))
def test_close_to_stock(name: str) -> None:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 0.06)):
        if name in ("batch_norm", "trace") and dtype is not torch.float32:
            continue  # stock refuses a weight of another type; before 2.12 it has no 16-bit trace
        with sb.deterministic():
            ours = value_and_gradient(CASES[name], x.to(dtype))
        for got, want in zip(ours, value_and_gradient(CASES[name], x.to(dtype)), strict=True):
            assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
            got, want = got.double(), want.double()
            error = (got - want).abs() / (want.abs() + want.abs().mean() + 1e-9)
            assert error.max() < tolerance


def test_default_eps_is_that_of_stock() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.full((1, 8), 2.0**-11).to(dtype)
        with sb.deterministic():
            ours = F.rms_norm(x, (8,))
        torch.testing.assert_close(ours, F.rms_norm(x, (8,)), rtol=1e-5, atol=0)


ROWWISE = ["softmax", "log_softmax", "layer_norm", "rms_norm", "mean_last", "var", "cumprod"]


@pytest.mark.parametrize("name", ROWWISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_and_its_gradient_do_not_see_neighbours(name: str, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(33, 40, generator=g).to(dtype)
    fn = CASES[name]
    if name in ("layer_norm", "rms_norm"):  # their weights are rows of x in CASES
        w, b = x[0].clone(), x[1].clone()
        fn = {
            "layer_norm": lambda t: F.layer_norm(t, (40,), w, b),
            "rms_norm": lambda t: F.rms_norm(t, (40,), w),
        }[name]
    with sb.deterministic():
        value, gradient = value_and_gradient(fn, x)
        for i in (0, 7, 32):
            alone, alone_gradient = value_and_gradient(fn, x[i : i + 1])
            assert bits.equal(alone[0], value[i]) and bits.equal(alone_gradient[0], gradient[i])


def test_switch_and_functions_give_the_same_bits() -> None:
    x = torch.randn(5, 768, generator=torch.Generator().manual_seed(1))
    w = x[0].clone()
    with sb.deterministic():
        under = [
            x.sum(0),
            x.mean(-1),
            x.softmax(0),
            F.layer_norm(x, (768,), w, w),
            F.rms_norm(x, (768,), w, 1e-6),
            torch.native_layer_norm(x, (768,), w, w, 1e-5)[0],
            torch._fused_rms_norm(x, (768,), w, 1e-6)[0],
            x.cumsum(1),
        ]
    direct = [
        ops.sum(x, 0),
        ops.mean(x, -1),
        ops.softmax(x, 0),
        ops.layer_norm(x, (768,), w, w),
        ops.rms_norm(x, (768,), w, 1e-6),
        ops.layer_norm(x, (768,), w, w),
        ops.rms_norm(x, (768,), w, 1e-6),
        ops.cumsum(x, 1),
    ]
    assert all(bits.equal(a, b) for a, b in zip(under, direct, strict=True))


def test_integers_go_to_stock_and_doubles_are_refused() -> None:
    n = torch.arange(12).view(3, 4)
    x = n.double()
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.sum(),
        lambda t: t.sum(1),
        lambda t: t.prod(),
        lambda t: t.cumsum(0),
        lambda t: t.nansum(),
    ]
    with sb.deterministic():
        assert n.sum().item() == 66 and n.sum(0).tolist() == [12, 15, 18, 21]
        assert n.cumsum(1)[2].tolist() == [8, 17, 27, 38] and (n + 1).prod().item() == 479001600
        assert n.sum(dtype=torch.float32).item() == 66 and n.float().sum(dtype=torch.int64) == 66
        for call in [*calls, lambda t: t.softmax(0), lambda t: t.norm(), lambda t: t.var()]:
            with pytest.raises(UncoveredError, match="float64"):
                call(x)


def test_statistics_of_the_batch_are_refused() -> None:
    x = torch.randn(8, 4)
    with sb.deterministic():
        with pytest.raises(UncoveredError, match="whole batch"):
            torch.nn.BatchNorm1d(4)(x)
        assert torch.nn.BatchNorm1d(4).eval()(x).shape == x.shape
        with pytest.raises(UncoveredError, match="order 3"):
            x.norm(3)
        with pytest.raises(UncoveredError):
            x.logcumsumexp(0)
        with pytest.raises(UncoveredError, match="averaged over the batch"):
            torch.nn.InstanceNorm1d(8, track_running_stats=True)(x[None])


def test_transforms_see_whole_operations() -> None:
    x = torch.randn(3, 16)
    w = torch.randn(16, requires_grad=True)
    with sb.deterministic():
        for fn in (lambda t: F.rms_norm(t, (16,), w), lambda t: F.layer_norm(t, (16,), w)):
            want = fn(x)
            compiled = torch.compile(fn, backend="aot_eager")(x)
            assert bits.equal(compiled, want)
            assert bits.equal(torch.vmap(fn)(x), want)
            with torch.inference_mode():
                assert bits.equal(fn(x), want)
        gradient = torch.func.grad(lambda t: F.rms_norm(t, (16,)).pow(2).sum())(x)
        assert gradient.shape == x.shape
