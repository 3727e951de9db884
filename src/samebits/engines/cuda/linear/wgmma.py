"""The tensor core's instruction for tiles of any width, as a header for a kernel."""

from __future__ import annotations


def header(columns: int, dtype: str) -> str:
    """C++ of ``wgmma(d, a, b, add)``: d[64, columns] = a[64, 16] b[columns, 16]^T (+ d).

    Both operands lie in shared memory with k contiguous; d is fp32 in `columns` / 2 registers of
    each thread of a warpgroup (PTX ISA 8.0, "wgmma.mma_async").

    Args:
        columns: a multiple of 8, at most 256.
        dtype: of the operands, as PTX names it: "bf16" or "f16".
    """
    count = columns // 2
    places = ", ".join(f"%{i}" for i in range(count))
    registers = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""#pragma once
DEVICE void wgmma(float (&d)[{count}], u64 a, u64 b, bool add) {{
  asm volatile("{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 2}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype} "
               "{{{places}}}, %{count}, %{count + 1}, add, 1, 1, 0, 0;\\n}}"
               : {registers} : "l"(a), "l"(b), "r"((u32)add));
}}
"""
