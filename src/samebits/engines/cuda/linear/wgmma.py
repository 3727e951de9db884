"""The tensor core's instruction for tiles of any width, as a header for a kernel."""

from __future__ import annotations


def header(columns: int, dtype: str) -> str:
    """C++ of ``wgmma(d, a, b, add)``: d[64, columns] = a[64, K] b[columns, K]^T (+ d).

    Both operands lie in shared memory with k contiguous, K being 32 bytes; d is fp32, or int32 for
    "s8", in `columns` / 2 registers of each thread of a warpgroup (PTX ISA 8.0, "wgmma.mma_async").

    Args:
        columns: a multiple of 8 (16 for "s8"), at most 256.
        dtype: of the operands, as PTX names it: "bf16", "f16" or "s8".
    """
    count, whole = columns // 2, dtype == "s8"
    places = ", ".join(f"%{i}" for i in range(count))
    kind, to, by, k, modes = (
        ("u32", "r", "s32", 32, "") if whole else ("float", "f", "f32", 16, ", 1, 1, 0, 0")
    )
    registers = ", ".join(f'"+{to}"(d[{i}])' for i in range(count))
    return f"""#pragma once
DEVICE void wgmma({kind} (&d)[{count}], u64 a, u64 b, bool add) {{
  asm volatile("{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 2}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k{k}.{by}.{dtype}.{dtype} "
               "{{{places}}}, %{count}, %{count + 1}, add{modes};\\n}}"
               : {registers} : "l"(a), "l"(b), "r"((u32)add));
}}
"""
