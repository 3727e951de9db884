"""The one way to start a Triton or Gluon kernel.

A kernel is compiled by Triton once for each device and class of arguments, and started by our own
launcher (`samebits.engines.driver`): Triton's takes some 40 us of host time with tensor
descriptors. All of this is safe under CUDA graph capture, on every stream and from every thread.

Contraction of a * b + c into an fma is off for every kernel: an fma is written where the contract
has one, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from samebits.engines import ahead
from samebits.engines.driver import _cuda
from samebits.errors import ContractError, DeviceError

#: grid and the kernel's arguments -> None.
Prepared = Callable[..., None]

#: Kernels and options that are in use in one process at most.
_LAUNCHERS = _cuda.Memo(1 << 16)
#: What a parameter of each scalar type is packed as; pointers are words too.
_PACKED = {
    **dict.fromkeys(("i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64"), "word"),
    "fp32": "float",
    "fp64": "double",
    "constexpr": "constant",
}


def launch(
    kernel: Any,
    grid: Sequence[int],
    *args: Any,
    num_warps: int = 4,
    num_stages: int = 3,
    pdl: bool = False,
    **constexprs: Any,
) -> None:
    """Runs `kernel` over `grid` on the current stream of its tensors' device.

    Args:
        kernel: a function decorated with ``triton.jit`` or ``gluon.jit``.
        grid: one to three numbers of programs; if one is 0, nothing runs.
        args: tensors, tensor descriptors, integers, floats and None, in the kernel's order. All
            tensors are on one device.
        num_warps, num_stages: of the schedule.
        pdl: programmatic dependent launch: the kernel waits itself for the one before it.
        constexprs: the kernel's compile-time parameters, by name; other options of the compiler
            (``maxnreg``, ``num_ctas``) too.

    Raises:
        ContractError: the compiler gave a product another tree (`_check_blocks`).
        DeviceError: the kernel does not fit the device, the driver refuses it, or an argument is
            not on the GPU.
        TypeError: the parameters given by name are not the kernel's last ones.
    """
    prepare(kernel, num_warps=num_warps, num_stages=num_stages, pdl=pdl, **constexprs)(grid, *args)


def prepare(
    kernel: Any,
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    pdl: bool = False,
    **constexprs: Any,
) -> Prepared:
    """``prepare(kernel, **options)(grid, *args)`` is ``launch(kernel, grid, *args, **options)``.

    To hold on to where the same kernel and options come again: it saves looking them up. Arguments
    and errors as `launch`.
    """
    known: Prepared | None = _LAUNCHERS.get(kernel, num_warps, num_stages, pdl, constexprs)
    if known is not None:
        return known
    named = {
        **constexprs, "num_warps": num_warps, "num_stages": num_stages, "launch_pdl": pdl,
        "enable_fp_fusion": False,
    }  # fmt: skip
    launcher: Prepared
    if hasattr(kernel, "params"):
        launcher = _cuda.Launcher(
            kernel.__name__,
            partial(_compile, kernel, named),
            _scratch,
            _constant_arguments(kernel, constexprs),
        )
    else:
        launcher = partial(_interpret, kernel, named)
    _LAUNCHERS.put(launcher, kernel, num_warps, num_stages, pdl, constexprs)
    return launcher


def descriptor(
    tensor: torch.Tensor,
    block_shape: Sequence[int],
    layout: Any = None,
    *,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """A tensor descriptor: what a kernel needs to move tiles of `tensor` with the copy engine.

    The same object as ``TensorDescriptor.from_tensor``, for a tenth of its time: the driver checks
    at the launch what that constructor checks in Python.

    Args:
        tensor: its address is a multiple of 16 bytes.
        block_shape: the tile; at most 256 an axis.
        layout: Gluon's layout of the tile in shared memory; None for a Triton kernel.
        shape, strides: in elements; the tensor's own if None. All strides but the last are
            multiples of 16 bytes, the last is 1.
    """
    made = object.__new__(_descriptor_type(layout is not None))
    made.__dict__.update(
        base=tensor,
        shape=tensor.shape if shape is None else shape,
        strides=tensor.stride() if strides is None else strides,
        block_shape=block_shape,
        padding="zero",
    )
    if layout is not None:
        made.layout = layout
    return made


_DESCRIPTORS: dict[bool, type] = {}


def _descriptor_type(gluon: bool) -> Any:
    if gluon not in _DESCRIPTORS:
        if gluon:
            from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
        else:
            from triton.tools.tensor_descriptor import TensorDescriptor
        _DESCRIPTORS[gluon] = TensorDescriptor
    return _DESCRIPTORS[gluon]


def _interpret(kernel: Any, named: dict[str, Any], grid: Sequence[int], *args: Any) -> None:
    """Triton's interpreter takes the place of the GPU (TRITON_INTERPRET=1)."""
    if min(grid) > 0:
        kernel[tuple(grid)](*args, **named)


def _constant_arguments(kernel: Any, constexprs: dict[str, Any]) -> list[bool]:
    """Of the parameters that come by position: which are compile-time ones.

    Raises:
        TypeError: see `launch`.
    """
    open_end = [
        p for p in kernel.params
        if p.name not in constexprs and not (p.is_constexpr and p.has_default)
    ]  # fmt: skip
    if [p.num for p in open_end] != list(range(len(open_end))):
        raise TypeError(
            f"{kernel.__name__}: parameters given by name must be the last ones; these come after "
            f"some of them: {[p.name for i, p in enumerate(open_end) if p.num != i]}"
        )
    by_name = [p.name for p in kernel.params if p.name in constexprs and not p.is_constexpr]
    if by_name:
        raise TypeError(f"{kernel.__name__}: pass {by_name} by position: they are not constexpr")
    return [p.is_constexpr for p in open_end]


def _compile(
    kernel: Any, named: dict[str, Any], device: int, args: tuple[Any, ...]
) -> _cuda.Kernel:
    """`kernel` compiled by Triton for the class of `args`, and loaded on `device`."""
    with torch.cuda.device(device):
        compiled = ahead.of_triton(kernel.warmup(*args, grid=(1,), **named))
    _check_blocks(kernel.__name__, compiled.asm["ttgir"])
    made = compiled.metadata
    return _cuda.Kernel(
        cubin=compiled.asm["cubin"],
        name=made.name,
        device=device,
        threads=32 * made.num_warps,
        shared=made.shared,
        ctas=made.num_ctas,
        pdl=made.launch_pdl,
        cooperative=made.launch_cooperative_grid,
        scratch=made.global_scratch_size,
        slots=_slots(kernel, compiled.src.signature, made.tensordesc_meta or (), len(args)),
    )


#: Operands of products by mma.sync, as Triton's GPU dialect prints them: bits, and elements that a
#: thread holds side by side along k.
_OPERAND = re.compile(
    r"x[bfi]+(\d+)\w*, #ttg\.dot_op<\{opIdx = \d, parent = #\w+, kWidth = (\d+)\}>"
)


def _check_blocks(name: str, ttgir: str) -> None:
    """Raises ContractError if a product by mma.sync would take k out of order.

    A thread holds 32 bits of k for each register of an operand, or one fp64. Where Triton makes
    that more, as behind operands that it widened, an instruction takes other k together than 16 in
    a row.
    """
    for line in ttgir.splitlines():
        if " tt.dot " not in line:
            continue
        for bits, width in _OPERAND.findall(line):
            if int(bits) * int(width) != max(32, int(bits)):
                raise ContractError(
                    f"{name}: the compiler orders a product's k by {width} elements of {bits} "
                    "bits, not by 32 bits, and so has another tree than the contract; pass what "
                    "the operand was made from through functions.opaque"
                )


def _slots(
    kernel: Any, signature: dict[str, Any], tiles: Sequence[dict[str, Any]], count: int
) -> list[str | tuple[int, int, int, list[int]]]:
    """How each of the first `count` parameters is packed.

    Args:
        signature: Triton's type of each parameter by name.
        tiles: what the compiler says of each tensor descriptor's tile, in order.

    Raises:
        DeviceError: a type that the launcher does not pack.
    """
    slots: list[str | tuple[int, int, int, list[int]]] = []
    left = list(tiles)
    for name, kind in list(signature.items())[:count]:
        if isinstance(kind, str) and kind.startswith("tensordesc") and left:
            slots.append(_tile(left.pop(0)))
        elif isinstance(kind, str) and (kind[0] == "*" or kind in _PACKED):
            slots.append("word" if kind[0] == "*" else _PACKED[kind])
        else:
            raise DeviceError(f"{kernel.__name__}: parameter {name} has type {kind}, not supported")
    return slots


def _tile(made: dict[str, Any]) -> tuple[int, int, int, list[int]]:
    """Swizzle, bytes and type of an element, and box of a tensor map."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    if made["fp4_padded"]:
        raise DeviceError("tensor descriptors of padded fp4 are not supported")
    kind = TMA_DTYPE_DEVICE_TO_HOST[made["elem_type"]]
    return made["swizzle"], made["elem_size"], kind, list(made["block_size"])


def _scratch(size: int, device: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")
