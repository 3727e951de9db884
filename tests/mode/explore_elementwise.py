"""Finds elementwise aten operations whose result for an element depends on where the element lies.

`depends_on_layout(case, dtype)` runs one operation on the same values in several presentations
(sizes, offsets, strides, transposed, one element at a time, large enough for threads) and compares
bytes; any NaN equals any NaN. Run as a script it prints the whole table for the installed torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

aten = torch.ops.aten
Fn = Callable[..., torch.Tensor]
LARGE = 70_001


@dataclass(frozen=True)
class Case:
    """An elementwise operation of `arity` tensors."""

    name: str
    fn: Fn
    arity: int = 1

    def __str__(self) -> str:
        return self.name


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Values in [0, 1], from operations that are alike everywhere."""
    return x.nan_to_num(0.5, 1.0, 0.0).abs().clamp(0, 1)


def _unary(names: str) -> list[Case]:
    return [Case(n, getattr(aten, n).default) for n in names.split()]


def _binary(names: str) -> list[Case]:
    return [Case(n, getattr(aten, n), 2) for n in names.split()]


_SPECIAL_1 = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "entr",
    "erfcx",
    "i0e",
    "i1",
    "i1e",
    "log_ndtr",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "ndtri",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
]
_SPECIAL_2 = [
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "xlog1py",
    "zeta",
]

UNARY = [
    *_unary(
        """abs acos acosh angle asin asinh atan atanh ceil celu cos cosh deg2rad digamma elu erf
        erfc erfinv exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh i0
        leaky_relu lgamma log log10 log1p log2 log_sigmoid logit mish nan_to_num neg rad2deg
        reciprocal relu relu6 round rsqrt selu sgn sigmoid sign silu sin sinc sinh softplus
        softshrink sqrt square tan tanh trunc"""
    ),
    *[Case(f"special_{n}", getattr(aten, f"special_{n}").default) for n in _SPECIAL_1],
    Case("gelu(tanh)", lambda x: aten.gelu(x, approximate="tanh")),
    Case("elu(0.7,1.1,0.9)", lambda x: aten.elu(x, 0.7, 1.1, 0.9)),
    Case("softplus(2,5)", lambda x: aten.softplus(x, 2.0, 5.0)),
    Case("logit(0.1)", lambda x: aten.logit(x, 0.1)),
    Case("threshold", lambda x: aten.threshold(x, 0.1, 0.3)),
    Case("clamp", lambda x: aten.clamp(x, -0.5, 0.7)),
    Case("polygamma(1)", lambda x: aten.polygamma(1, x)),
    Case("mvlgamma(2)", lambda x: aten.mvlgamma(x.abs() + 2, 2)),
    Case("round(2)", lambda x: aten.round(x, decimals=2)),
    *[Case(f"pow({e})", lambda x, e=e: aten.pow(x, e))
      for e in (2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 0.3, 2.7, 5)],
    Case("pow(2.5,x)", lambda x: aten.pow(2.5, x)),
    Case("add(0.3)", lambda x: torch.add(x, 0.3, alpha=0.7)),
    Case("rsub(0.3)", lambda x: torch.rsub(x, 0.3, alpha=0.7)),
    Case("mul(0.3)", lambda x: aten.mul(x, 0.3)),
    Case("div(0.3)", lambda x: aten.div(x, 0.3)),
    Case("div(0.3,floor)", lambda x: aten.div(x, 0.3, rounding_mode="floor")),
    Case("div(0.3,trunc)", lambda x: aten.div(x, 0.3, rounding_mode="trunc")),
    Case("remainder(0.3)", lambda x: aten.remainder(x, 0.3)),
    Case("fmod(0.3)", lambda x: aten.fmod(x, 0.3)),
    Case("xlogy(x,2)", lambda x: aten.xlogy(x, 2.0)),
    Case("xlogy(2,x)", lambda x: aten.xlogy(2.0, x)),
]  # fmt: skip

BINARY = [
    *_binary(
        """add atan2 copysign div fmax fmin fmod heaviside hypot logaddexp logaddexp2 maximum
        minimum mul nextafter polar pow remainder sub xlogy igamma igammac ldexp float_power
        floor_divide"""
    ),
    *[Case(f"special_{n}", getattr(aten, f"special_{n}"), 2) for n in _SPECIAL_2],
    Case("add(alpha)", lambda a, b: torch.add(a, b, alpha=0.7), 2),
    Case("sub(alpha)", lambda a, b: torch.sub(a, b, alpha=0.7), 2),
    Case("rsub(alpha)", lambda a, b: torch.rsub(a, b, alpha=0.7), 2),
    Case("div(floor)", lambda a, b: aten.div(a, b, rounding_mode="floor"), 2),
    Case("div(trunc)", lambda a, b: aten.div(a, b, rounding_mode="trunc"), 2),
    Case("lerp(0.3)", lambda a, b: aten.lerp(a, b, 0.3), 2),
    Case("lerp(0.7)", lambda a, b: aten.lerp(a, b, 0.7), 2),
    Case("where", lambda a, b: aten.where(a > b, a, b), 2),
    Case("_prelu_kernel", aten._prelu_kernel, 2),
    Case("mse_loss", lambda a, b: aten.mse_loss(a, b, 0), 2),
    Case("smooth_l1_loss", lambda a, b: aten.smooth_l1_loss(a, b, 0, 0.7), 2),
    Case("huber_loss", lambda a, b: aten.huber_loss(a, b, 0, 0.7), 2),
    Case("soft_margin_loss", lambda a, b: aten.soft_margin_loss(a, b, 0), 2),
    Case("binary_cross_entropy", lambda a, b: aten.binary_cross_entropy(
        _unit(a), _unit(b), None, 0), 2),
    Case("bce_with_logits", lambda a, b: aten.binary_cross_entropy_with_logits(
        a, b, None, None, 0), 2),
    Case("kl_div", lambda a, b: aten.kl_div(a, b, 0), 2),
    Case("poisson_nll_loss", lambda a, b: aten.poisson_nll_loss(a, b, True, True, 1e-8, 0), 2),
    Case("sigmoid_backward", aten.sigmoid_backward, 2),
    Case("tanh_backward", aten.tanh_backward, 2),
    Case("silu_backward", aten.silu_backward, 2),
    Case("mish_backward", aten.mish_backward, 2),
    Case("gelu_backward", aten.gelu_backward, 2),
    Case("gelu_backward(tanh)", lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), 2),
    Case("softplus_backward", lambda g, x: aten.softplus_backward(g, x, 2.0, 5.0), 2),
    Case("elu_backward", lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, False, x), 2),
    Case("elu_backward(result)", lambda g, x: aten.elu_backward(g, 0.7, 1.1, 0.9, True, x), 2),
    Case("log_sigmoid_backward", lambda g, x: aten.log_sigmoid_backward(
        g, x, aten.log_sigmoid_forward(x)[1]), 2),
    Case("logit_backward", lambda g, x: aten.logit_backward(g, x, 0.1), 2),
    Case("threshold_backward", lambda g, x: aten.threshold_backward(g, x, 0.1), 2),
    Case("hardtanh_backward", lambda g, x: aten.hardtanh_backward(g, x, -0.5, 0.5), 2),
    Case("hardsigmoid_backward", aten.hardsigmoid_backward, 2),
    Case("hardswish_backward", aten.hardswish_backward, 2),
    Case("hardshrink_backward", lambda g, x: aten.hardshrink_backward(g, x, 0.5), 2),
    Case("softshrink_backward", lambda g, x: aten.softshrink_backward(g, x, 0.5), 2),
    Case("leaky_relu_backward", lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), 2),
    Case("mse_loss_backward", lambda g, x: aten.mse_loss_backward(g, x, x * 0.5, 0), 2),
    Case("smooth_l1_loss_backward", lambda g, x: aten.smooth_l1_loss_backward(
        g, x, x * 0.5, 0, 0.7), 2),
    Case("huber_loss_backward", lambda g, x: aten.huber_loss_backward(g, x, x * 0.5, 0, 0.7), 2),
    Case("soft_margin_loss_backward", lambda g, x: aten.soft_margin_loss_backward(
        g, x, x.sign(), 0), 2),
    Case("binary_cross_entropy_backward", lambda g, x: aten.binary_cross_entropy_backward(
        g, _unit(x), _unit(x * 0.3), None, 0), 2),
    Case("_add_relu", aten._add_relu.Tensor, 2),
    Case("_prelu_kernel_backward", lambda g, x: aten._prelu_kernel_backward(g, x, x.frac())[0], 2),
    Case("rrelu_with_noise_backward", lambda g, x: aten.rrelu_with_noise_backward(
        g, x, x.frac(), 0.1, 0.3, True, False), 2),
    Case("addr", lambda a, b: aten.addr(
        a.reshape(-1, 1), b.reshape(-1), b.new_full((1,), 0.3)).reshape(a.shape), 2),
    Case("linalg_cross", lambda a, b: aten.linalg_cross(
        torch.stack([a, b, a], -1), torch.stack([b, b, a], -1))[..., 0], 2),
    Case("addcmul", lambda a, b: aten.addcmul(a, b, a * 0.3, value=0.7), 2),
    Case("addcdiv", lambda a, b: aten.addcdiv(a, b, a * 0.3, value=0.7), 2),
    Case("lerp(tensor)", lambda a, b: aten.lerp(a, b, (a * 0.3).frac()), 2),
    Case("glu(0)", lambda a, b: aten.glu(torch.stack([a, b]), 0)[0], 2),
    Case("glu(-1)", lambda a, b: aten.glu(torch.stack([a, b], -1), -1).squeeze(-1), 2),
    Case("glu_backward(0)", lambda g, x: aten.glu_backward(
        g.unsqueeze(0), torch.stack([x, x * 0.3]), 0)[0], 2),
    Case("glu_backward(-1)", lambda g, x: aten.glu_backward(
        g.unsqueeze(-1), torch.stack([x, x * 0.3], -1), -1)[..., 1], 2),
]  # fmt: skip

CASES = UNARY + BINARY


def values(n: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values of many magnitudes, with specials strewn in."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 5, (n,), generator=g)
    x = torch.randn(n, generator=g, dtype=torch.float64)
    wide = x * 2.0 ** torch.randint(-14, 10, (n,), generator=g)
    unit = torch.rand(n, generator=g, dtype=torch.float64) * 2 - 1
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 1e-41, 100.5, -90]
    )
    y = torch.where(kind == 0, unit, torch.where(kind == 1, wide, 3 * x)).where(
        torch.rand(n, generator=g) < 0.9, special[torch.randint(0, 10, (n,), generator=g)].double()
    )
    return torch.where(kind == 4, y.abs(), y).to(dtype)


def _bits(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        x = torch.view_as_real(x)
    if not x.dtype.is_floating_point:
        return x
    x = torch.where(x.isnan(), torch.full_like(x, torch.nan), x).contiguous()
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def presentations(
    fn: Fn, args: tuple[torch.Tensor, ...]
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """name -> (result computed so, the elements of the plain result it must equal)."""
    n = args[0].numel()
    whole = fn(*args)
    out: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def spread(x: torch.Tensor, step: int, offset: int) -> torch.Tensor:
        room = x.new_zeros(step * x.numel() + offset)
        view = room[offset::step][: x.numel()]
        return view.copy_(x)

    out["stride 2"] = (fn(*(spread(a, 2, 0) for a in args)), whole)
    out["offset 1"] = (fn(*(spread(a, 1, 1) for a in args)), whole)
    if len(args) > 1:
        mixed = (spread(args[0], 1, 3), *(spread(a, 3, 1) for a in args[1:]))
        out["mixed strides"] = (fn(*mixed), whole)
    side = 37
    square = n // side
    cut = [a[: side * square].reshape(square, side) for a in args]
    out["transposed"] = (
        fn(*(c.t() for c in cut)).t().reshape(side * square, *whole.shape[1:]),
        whole[: side * square],
    )
    out["rows apart"] = (
        fn(*(spread(c.reshape(-1), 1, 0).reshape(square, side)[:, 1:] for c in cut)),
        whole[: side * square].reshape(square, side, *whole.shape[1:])[:, 1:],
    )
    begin = 0
    parts, wants = [], []
    for size in range(1, 41):
        parts.append(fn(*(a[begin : begin + size] for a in args)))
        wants.append(whole[begin : begin + size])
        begin += size
    out["sizes 1 to 40"] = (torch.cat(parts), torch.cat(wants))
    ones = range(0, n, max(1, n // 64))
    out["one by one"] = (
        torch.cat([fn(*(a[i : i + 1] for a in args)) for i in ones]),
        torch.stack([whole[i] for i in ones]),
    )
    return out  # fmt: skip


def depends_on_layout(
    case: Case, dtype: torch.dtype, sizes: tuple[int, ...] = (901, LARGE)
) -> dict[str, int]:
    """Presentations in which elements get other bits, with how many; empty if there are none.

    Raises whatever the operation raises for a dtype that it does not take.
    """
    different: dict[str, int] = {}
    for n in sizes:
        args = tuple(values(n, dtype, 11 * n + i) for i in range(case.arity))
        for name, (got, want) in presentations(case.fn, args).items():
            count = int((_bits(got) != _bits(want)).sum())
            if count:
                different[name] = different.get(name, 0) + count
    return different


def main() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for case in CASES:
            try:
                found = depends_on_layout(case, dtype)
            except (RuntimeError, NotImplementedError) as e:
                print(f"{dtype} {case} not available: {str(e).splitlines()[0][:90]}")
                continue
            print(f"{dtype} {case} {found or 'safe'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
