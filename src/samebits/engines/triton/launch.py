"""The one way to start a Triton kernel.

Contraction of a * b + c into an fma is off for every kernel: an fma is written where the contract
has one, and nowhere else.
"""

from __future__ import annotations

from typing import Any


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    num_warps: int = 4,
    num_stages: int = 3,
    pdl: bool = False,
    **constexprs: Any,
) -> None:
    """Runs `kernel` over `grid` on the current stream of its tensors' device.

    Args:
        kernel: a function decorated with ``triton.jit`` or ``gluon.jit``.
        grid: one to three positive numbers of programs.
        args: tensors, integers and floats, in the kernel's order.
        num_warps, num_stages: of the schedule.
        pdl: programmatic dependent launch: the kernel waits itself for the one before it.
        constexprs: the kernel's compile-time parameters, by name.
    """
    if min(grid) == 0:
        return
    options: dict[str, Any] = {"launch_pdl": True} if pdl else {}
    kernel[grid](
        *args, **constexprs, num_warps=num_warps, num_stages=num_stages, enable_fp_fusion=False,
        **options,
    )  # fmt: skip
