"""Kernels of torch that the table calls tested: an element, a row, a window by itself.

Run under the switch, so what an override covers is tested through it. A dtype that is refused is in
order; other bits are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from samebits.errors import UncoveredError
from samebits.mode.table import GROUPS, Kind

aten = torch.ops.aten
Function = Callable[..., torch.Tensor]
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EVERY = tuple(
    {name for g in GROUPS if g.kind is Kind.TESTED for name in g.names.split() if "." not in name}
)


@pytest.fixture(autouse=True)
def switch() -> Iterator[None]:
    torch.manual_seed(0)
    with sb.deterministic():
        yield


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = (
        t.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
        for t in (a, b)
    )
    return torch.equal(a, b)


def call(name: str, *extra: object) -> Function:
    def f(*args: torch.Tensor) -> torch.Tensor:
        out = getattr(aten, name)(*args, *extra)
        return out[0] if isinstance(out, tuple) else out

    return f


UNARY = """
    acos acosh asin asinh atan cos erf erfc erfinv exp expm1 hardsigmoid hardswish i0
    lgamma log log10 log1p log2 log_sigmoid_forward sin sinc special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr special_erfcx special_i1
    special_i1e special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_spherical_bessel_j0 tan tanh angle
    abs neg sqrt reciprocal ceil floor round trunc frac sign sgn relu hardtanh leaky_relu
    hardshrink deg2rad rad2deg isnan isinf signbit nan_to_num
"""
BINARY = """
    fmod remainder floor_divide special_xlog1py special_zeta xlogy sigmoid_backward tanh_backward
    hardswish_backward hardsigmoid_backward
    add sub mul div rsub copysign nextafter fmax fmin maximum minimum _prelu_kernel
"""
ELEMENTWISE: dict[str, tuple[int, Function]] = {
    **{name: (1, call(name)) for name in UNARY.split()},
    **{name: (2, call(name)) for name in BINARY.split()},
}
ELEMENTWISE |= {
    "addcdiv": (2, lambda a, b: torch.addcdiv(a, b, a + 1, value=0.7)),
    "addcmul": (2, lambda a, b: torch.addcmul(a, b, a + 1, value=0.7)),
    "addr": (1, lambda a: torch.addr(a[:, None].expand(-1, 2), a, a.new_tensor([0.3, 0.7]))),
    "elu_backward": (2, lambda a, b: aten.elu_backward(a, 1.0, 1.0, 1.0, False, b)),
    "glu": (2, lambda a, b: F.glu(torch.stack([a, b], -1))),
    "glu_backward": (2, lambda a, b: aten.glu_backward(a[:, None], torch.stack([a, b], -1), -1)),
    "huber_loss_backward": (2, lambda a, b: aten.huber_loss_backward(a, b, a * 2, 0, 0.5)),
    "lerp": (2, lambda a, b: torch.lerp(a, b, 0.3)),
    "lerp weights": (2, lambda a, b: torch.lerp(a, b, b * 0.1)),
    "linalg_cross": (
        2,
        lambda a, b: torch.linalg.cross(
            torch.stack([a, b, a * b], -1), torch.stack([b, b + 1, a], -1)
        ),
    ),
    "log_sigmoid_backward": (
        2,
        lambda a, b: aten.log_sigmoid_backward(a, b, aten.log_sigmoid_forward(b)[1]),
    ),
    "mse_loss_backward": (2, lambda a, b: aten.mse_loss_backward(a, b, a * 2, 0)),
    "mvlgamma": (1, lambda a: torch.mvlgamma(a.abs() + 3, 2)),
    "polygamma": (1, lambda a: torch.polygamma(2, a.abs() + 0.1)),
    "_prelu_kernel_backward": (2, lambda a, b: aten._prelu_kernel_backward(a, b, b * 0.1)[0]),
    "smooth_l1_loss_backward": (
        2,
        lambda a, b: aten.smooth_l1_loss_backward(a, b, a * 2, 0, 0.5),
    ),
    "division modes": (2, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "leaky_relu_backward": (2, lambda a, b: aten.leaky_relu_backward(a, b, 0.1, False)),
    "threshold": (1, lambda a: F.threshold(a, 0.3, 7.0)),
}


def values(dtype: torch.dtype, n: int) -> torch.Tensor:
    x = torch.randn(n, dtype=torch.float64)
    x *= torch.tensor([0.01, 0.1, 0.5, 1.0, 4.0, 16.0])[torch.randint(6, (n,))]
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_element_by_itself(name: str, dtype: torch.dtype) -> None:
    count, f = ELEMENTWISE[name]
    n = 333
    operands = [values(dtype, n) for _ in range(count)]
    try:
        full = f(*operands)
    except (UncoveredError, NotImplementedError):
        return
    except RuntimeError as error:
        assert "not implemented" in str(error)
        return
    for start, stop in [(i, n) for i in (1, 3, 8, 17)] + [(i, i + 1) for i in range(0, n, 5)]:
        part = f(*(x[start:stop].clone() for x in operands))
        assert same(part, full[start:stop]), (start, stop)
    strided = [torch.stack([x, x + 1, x], -1)[:, 0] for x in operands]
    assert same(f(*strided), full)
    many = [x.repeat(230) for x in operands]  # several threads
    expected = full.repeat(230, *[1] * (full.dim() - 1))
    assert same(f(*many), expected)


def pad(mode: str, size: tuple[int, ...]) -> Function:
    return lambda x: F.pad(x, size, mode=mode)


def resize(mode: str, **settings: object) -> Function:
    return lambda x: F.interpolate(x, mode=mode, **settings)  # type: ignore[arg-type]


WINDOWS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (5, 37)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (21, 19, 23)),
    "avg_pool2d unpadded": (lambda x: F.avg_pool2d(x, (2, 3), count_include_pad=False), (5, 9, 9)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (5, 8, 9, 10)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (5, 3)), (19, 19, 23)),
    "global average": (lambda x: F.adaptive_avg_pool2d(x, 1), (5, 19, 23)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (5, 3, 2)), (5, 19, 13, 9)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (5, 7)), (5, 19, 23)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (5, 7, 3)), (5, 9, 9, 9)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 1, 1), (5, 19, 23)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 1, 1), (5, 7, 8, 9)),
    "nearest 1": (resize("nearest", scale_factor=2.3), (5, 37)),
    "nearest 2": (resize("nearest", scale_factor=2.3), (5, 19, 23)),
    "nearest 3": (resize("nearest", scale_factor=2.3), (5, 7, 8, 9)),
    "nearest exact 1": (resize("nearest-exact", scale_factor=2.3), (5, 37)),
    "nearest exact 2": (resize("nearest-exact", scale_factor=2.3), (5, 19, 23)),
    "nearest exact 3": (resize("nearest-exact", scale_factor=2.3), (5, 7, 8, 9)),
    "linear": (resize("linear", scale_factor=2.3), (5, 37)),
    "bilinear": (resize("bilinear", size=(7, 31), align_corners=True), (21, 19, 23)),
    "bilinear doubled": (resize("bilinear", scale_factor=2), (5, 19, 23)),
    "bicubic": (resize("bicubic", scale_factor=1.7), (21, 19, 23)),
    "bilinear antialias": (resize("bilinear", size=(9, 11), antialias=True), (5, 19, 23)),
    "bicubic antialias": (resize("bicubic", size=(9, 11), antialias=True), (5, 19, 23)),
    "reflect 1": (pad("reflect", (3, 4)), (5, 37)),
    "reflect 2": (pad("reflect", (3, 4, 2, 1)), (5, 19, 23)),
    "reflect 3": (pad("reflect", (3, 4, 2, 1, 1, 1)), (5, 7, 8, 9)),
    "replicate 1": (pad("replicate", (3, 4)), (5, 37)),
    "replicate 2": (pad("replicate", (3, 4, 2, 1)), (5, 19, 23)),
    "replicate 3": (pad("replicate", (3, 4, 2, 1, 1, 1)), (5, 7, 8, 9)),
    "fold": (lambda x: F.fold(x, (7, 9), (3, 3)), (18, 35)),
    "unfold": (lambda x: F.unfold(x, (3, 3)), (5, 19, 23)),
    "sliding": (lambda x: x.unfold(-1, 5, 2), (5, 37)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_by_itself(name: str, dtype: torch.dtype) -> None:
    f, shape = WINDOWS[name]
    x = torch.randn(7, *shape).to(dtype)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        out = f(leaf)
        try:
            (gradient,) = torch.autograd.grad(out, leaf, out * 0.3)
        except UncoveredError:
            return (out,)
        return out, gradient

    try:
        full = both(x)
    except (UncoveredError, NotImplementedError):
        return
    except RuntimeError as error:
        assert "not implemented" in str(error)
        return
    for start, stop in ((0, 1), (3, 4), (6, 7), (2, 5)):
        assert all(same(p, q[start:stop]) for p, q in zip(both(x[start:stop]), full, strict=True))
    if len(shape) > 2:
        other = torch.channels_last if len(shape) == 3 else torch.channels_last_3d
        assert all(map(same, both(x.to(memory_format=other)), full))
    threads = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            assert all(map(same, both(x), full))
    finally:
        torch.set_num_threads(threads)


def test_every_elementwise_entry_of_the_table_is_tested() -> None:
    windows = ("pool", "upsample", "pad", "col2im", "unfold")
    names = {n for n in EVERY if not any(w in n for w in windows)}
    assert names - ELEMENTWISE.keys() == set()
