"""Elementwise functions and gates: f(x)[i] depends on x[i] alone, and has the CPU engine's bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton import functions, functions64
from samebits.engines.triton import functions_bf16 as bf16
from samebits.engines.triton.launch import launch
from samebits.engines.triton.rows.schedule import cdiv
from samebits.engines.triton.rows.tree import begin, overlaps

#: Functions of one argument that have a kernel.
FUNCTIONS = frozenset({"silu", "sigmoid", "gelu", "gelu_tanh"})
#: With those whose kernels of torch have other bits than a CPU's: for the portable contracts.
PORTABLE_FUNCTIONS = FUNCTIONS | {
    "cos", "cube", "erf", "exp", "exp2", "expm1", "inverse_square", "log", "log1p", "reciprocal",
    "rsqrt", "sin", "square", "square_root", "tanh",
}  # fmt: skip
#: A program has four warps. Eight elements a thread (16 bytes of bf16) reach the memory's speed;
#: four, and so twice as many programs, are faster while there are fewer than `MANY` elements.
WARPS, MANY = 4, 1 << 22
#: Rows of one launch of a gate: the second axis of a grid holds no more.
MOST_ROWS = 65535


@triton.jit
def apply(x, F: tl.constexpr):
    """F of `x`, rounded to its type."""
    v = x.to(tl.float32)
    if F == "sigmoid":
        y = functions.sigmoid(v)
    elif F == "silu":
        y = bf16.silu(v) if x.dtype == tl.bfloat16 else functions.silu(v)
    elif F == "gelu":
        y = bf16.gelu(v) if x.dtype == tl.bfloat16 else functions.gelu(v)
    elif F == "gelu_tanh":
        y = bf16.gelu_tanh(v) if x.dtype == tl.bfloat16 else functions.gelu_tanh(v)
    else:
        y = _portable(v, F)
    return y.to(x.dtype)


@triton.jit
def _portable(v, F: tl.constexpr):
    """The other functions of `PORTABLE_FUNCTIONS`, fp32."""
    if F == "exp":
        y = functions.exp(v)
    elif F == "exp2":
        y = functions64.exp2(v)
    elif F == "expm1":
        y = functions64.expm1(v)
    elif F == "log":
        y = functions.log(v)
    elif F == "log1p":
        y = functions.log1p(v)
    elif F == "tanh":
        y = functions64.tanh(v)
    elif F == "erf":
        y = functions64.erf(v)
    elif F == "sin":
        y = functions64.sin(v)
    elif F == "cos":
        y = functions64.cos(v)
    elif F == "rsqrt":
        y = functions64.rsqrt(v)
    elif F == "square_root":
        y = tl.sqrt_rn(v)
    elif F == "square":
        y = v * v
    elif F == "cube":
        y = v * v * v
    elif F == "reciprocal":
        y = functions64.reciprocal(v)
    else:
        tl.static_assert(F == "inverse_square")
        y = functions64.reciprocal(v * v)
    return y


@triton.jit
def unary_kernel(x, y, n, F: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """BLOCK elements of dense memory."""
    begin(PDL)
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + k, apply(tl.load(x + k, k < n), F), k < n)


@triton.jit
def gated_kernel(
    gate, up, y, n, gate_stride, up_stride, F: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program (block, row): BLOCK columns of f(gate) * up, f(gate) rounded to the type first."""
    begin(PDL)
    row = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + row * gate_stride + k, k < n)
    u = tl.load(up + row * up_stride + k, k < n)
    t = apply(g, F).to(tl.float32) * u.to(tl.float32)
    tl.store(y + row * n + k, t.to(y.dtype.element_ty), k < n)


def block_for(elements: int) -> int:
    """Elements of a program."""
    return 1024 if elements >= MANY else 512


def unary(name: str, x: torch.Tensor) -> torch.Tensor:
    """A function of `PORTABLE_FUNCTIONS` of every element; strides as torch gives them."""
    y = torch.empty_like(x)
    if y.stride() != x.stride():  # not dense: gather it first
        x = y.copy_(x)
    n = x.numel()
    block = block_for(n)
    blocks = cdiv(n, block)
    pdl = overlaps(x, blocks)
    launch(
        unary_kernel, (blocks,), x, y, n,
        F=name, BLOCK=block, PDL=pdl, num_warps=WARPS, pdl=pdl,
    )  # fmt: skip
    return y


def gated(name: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """f(gate) * up of two [M, n] tensors whose last axes are contiguous: contiguous [M, n]."""
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    rows, n = gate.shape
    if gate.is_contiguous() and up.is_contiguous():
        _gated(name, gate, up, y, 1, rows * n)
    elif rows <= MOST_ROWS:
        _gated(name, gate, up, y, rows, n)
    else:
        for first in range(0, rows, MOST_ROWS):
            g, u, to = (x[first : first + MOST_ROWS] for x in (gate, up, y))
            _gated(name, g, u, to, len(g), n)
    return y


def _gated(
    name: str, gate: torch.Tensor, up: torch.Tensor, y: torch.Tensor, rows: int, n: int
) -> None:
    block = block_for(rows * n)
    blocks = cdiv(n, block)
    pdl = overlaps(gate, rows * blocks)
    launch(
        gated_kernel, (blocks, rows), gate, up, y, n, gate.stride(0), up.stride(0),
        F=name, BLOCK=block, PDL=pdl, num_warps=WARPS, pdl=pdl,
    )  # fmt: skip
