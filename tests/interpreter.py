"""Triton's interpreter, mended, so that kernels are held to their contracts without a GPU.

Triton 3.6 interprets bf16 dots as integers, rounds conversions differently from the chip, and fails
on NumPy >= 2.3. Here conversions round once to nearest even, an fma is one, a dot computes the very
bits of a Hopper tensor core and exp2 those of its special function unit: a kernel has the bytes
that it has on the chip.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

#: Whether Triton kernels run in the interpreter: where no GPU is visible.
INTERPRETED = not torch.cuda.is_available()


def install() -> None:
    """Turns the interpreter on; call it before the first kernel is defined."""
    if not INTERPRETED:
        return
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    _index_scalars(interpreter)
    builder = interpreter.InterpreterBuilder
    builder.create_dot = _create_dot
    builder.create_fma = _create_fma
    builder.create_exp2 = _create_exp2
    for name in ("create_fp_ext", "create_fp_trunc", "create_fp_to_fp", "create_si_to_fp",
                 "create_ui_to_fp"):  # fmt: skip
        setattr(builder, name, _create_cast(interpreter, getattr(builder, name)))


def _index_scalars(interpreter: Any) -> None:
    original = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).item()))

    interpreter._patch_lang_tensor = patch_lang_tensor


#: Types that NumPy lacks: how they are stored, and torch's name.
_STORED = {
    "bf16": (np.int16, torch.bfloat16),
    "fp8e4nv": (np.uint8, torch.float8_e4m3fn),
    "fp8e5": (np.uint8, torch.float8_e5m2),
}


def _values(data: Any, dtype: Any) -> Any:
    """What a tensor handle's data stands for, as fp32 (fp64 stays)."""
    name = str(dtype.scalar)
    if name in _STORED:
        raw, kind = _STORED[name]
        bits = np.ascontiguousarray(data).view(raw)
        return torch.from_numpy(bits).view(kind).float().numpy().reshape(np.shape(data))
    return data if data.dtype == np.float64 else data.astype(np.float32)


def _stored(values: Any, dtype: Any, np_dtype: Any) -> Any:
    name = str(dtype.scalar)
    with np.errstate(all="ignore"):
        if name not in _STORED:
            return values.astype(np_dtype)
        raw, kind = _STORED[name]
        x = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        if kind is torch.float8_e4m3fn:
            x = torch.where(x.isnan(), x, x.clamp(-448, 448))  # cvt.satfinite
        return x.to(kind).view(torch.from_numpy(np.zeros(0, raw)).dtype).numpy().view(np_dtype)


def _create_cast(interpreter: Any, original: Any) -> Any:
    def cast(self: Any, src: Any, dst_type: Any, *rest: Any) -> Any:
        if rest and str(rest[0]).endswith("RTZ"):
            return original(self, src, dst_type, *rest)
        np_dtype = interpreter._get_np_dtype(dst_type)
        data = _stored(_values(src.data, src.dtype), dst_type, np_dtype)
        return interpreter.TensorHandle(np.asarray(data), dst_type.scalar)

    return cast


def _create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    from samebits.contract.numerics import fma32

    if x.data.dtype != np.float32:  # two roundings are one here: binary64 inside
        data = (x.data.astype(np.float64) * y.data + z.data).astype(z.data.dtype)
    else:
        data = fma32(x.data, y.data, z.data)
    return type(z)(np.asarray(data), z.dtype.scalar)


def _create_exp2(self: Any, x: Any) -> Any:
    from samebits.contract.mufu import ex2

    return type(x)(ex2(x.data), x.dtype.scalar)


def _create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    from samebits.contract import IEEE_FMA, Chain, hopper_mma
    from samebits.engines.cpu.evaluate import cpu_leaf_dot

    name = {"bf16": "bf16", "fp16": "fp16", "fp8e4nv": "e4m3", "fp8e5": "e5m2"}.get(
        str(a.dtype.scalar)
    )
    if name is None and str(precision).endswith("TF32"):
        name = "tf32"
    arithmetic = IEEE_FMA if name is None else hopper_mma(name)
    x, w, acc = _values(a.data, a.dtype), _values(b.data, b.dtype), d.data.astype(np.float32)
    lead = acc.shape[:-2]
    out = np.empty_like(acc)
    for i in np.ndindex(lead):
        wt = np.ascontiguousarray(np.swapaxes(w[i], -1, -2))
        out[i] = cpu_leaf_dot(x[i], wt, Chain(), arithmetic, acc=acc[i])
    return type(d)(out, d.dtype.scalar)
