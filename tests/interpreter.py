"""Triton's interpreter, mended, so that kernels are held to their contracts without a GPU.

Triton 3.6 interprets bf16 dots as integers, rounds conversions differently from the chip, and fails
on NumPy >= 2.3. Here conversions round once to nearest even, an fma is one, a dot computes the very
bits of a Hopper tensor core and exp2 those of its special function unit, and a NaN that is computed
has the chip's pattern: a kernel has the bytes that it has on the chip. In which order
terms of a reduction or scan meet is the layout's affair, so kernels may not depend on it: here
neighbours meet, all at a time, where Triton walks over the elements.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

#: Whether Triton kernels run in the interpreter: where no GPU is visible.
INTERPRETED = not torch.cuda.is_available()
#: 1 / x of fp32; a chip's may be off by one unit.
RECIPROCAL: Any = np.reciprocal


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
    _patch_once(interpreter)
    _remember_types(interpreter)
    builder = interpreter.InterpreterBuilder
    builder.create_dot = _create_dot
    builder.create_fma = _create_fma
    builder.create_exp2 = _create_exp2
    builder.create_inline_asm = _create_inline_asm
    for name in ("create_fp_ext", "create_fp_trunc", "create_fp_to_fp", "create_si_to_fp",
                 "create_ui_to_fp"):  # fmt: skip
        setattr(builder, name, _create_cast(interpreter, getattr(builder, name)))
    for name in _COMPUTING:
        setattr(builder, name, _with_the_chips_nan(getattr(builder, name)))
    reduce = interpreter.ReduceOps
    reduce.generic_reduce = _reduce
    reduce.apply_impl = _reduce_with_the_chips_nan(reduce.apply_impl)
    interpreter.ScanOps.generic_scan = _scan


def _index_scalars(interpreter: Any) -> None:
    original = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).item()))

    interpreter._patch_lang_tensor = patch_lang_tensor


def _patch_once(interpreter: Any) -> None:
    """Triton patches its language again whenever a function calls another: once a kernel does."""
    original, modules = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)
    patched: list[Any] = []

    def patch_lang(fn: Any) -> Any:
        seen = [m for m in modules if any(x is m for x in fn.__globals__.values())]
        if patched and all(m in patched for m in seen):
            return interpreter._LangPatchScope()
        scope = original(fn)
        if not patched:  # the kernel itself, which ends by a call of `restore`
            restore = scope.restore
            scope.restore = lambda: (patched.clear(), restore())
        patched.extend(seen)
        return scope

    interpreter._patch_lang = patch_lang


def _remember_types(interpreter: Any) -> None:
    """Triton makes a table of all types for every value."""
    original, known = interpreter._get_np_dtype, dict[str, Any]()

    def np_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = original(dtype.scalar)
        return known[name]

    interpreter._get_np_dtype = np_dtype


def _meet(ops: Any, input: Any, before: list[Any], now: list[Any]) -> list[Any]:
    """Partial results meet, all of them in one call."""
    kinds = [x.dtype for x in input]
    found = ops.combine_fn.fn(*map(ops.to_tensor, [*before, *now], [*kinds, *kinds]))
    return [x.handle.data for x in (found if isinstance(found, tuple) else (found,))]


def _reduce(ops: Any, input: Any) -> list[Any]:
    shape = list(input[0].handle.data.shape)
    kept = [1] * len(shape) if ops.axis is None else shape
    input, axis = ops.unravel(input, ops.axis)
    kept[axis] = 1
    total = [np.moveaxis(x.handle.data, axis, 0) for x in input]
    while len(total[0]) > 1:
        total = _meet(ops, input, [x[::2] for x in total], [x[1::2] for x in total])
    total = [x.reshape(kept) if ops.keep_dims else x[0] for x in total]
    return [ops.to_tensor(x, of.dtype) for x, of in zip(total, input, strict=True)]


def _scan(ops: Any, input: Any) -> list[Any]:
    total, step = [np.moveaxis(x.handle.data, ops.axis, 0) for x in input], 1
    while step < len(total[0]):
        met = _meet(ops, input, [np.roll(x, step, 0) for x in total], total)
        total = [np.concatenate([x[:step], y[step:]]) for x, y in zip(total, met, strict=True)]
        step *= 2
    total = [np.moveaxis(x, 0, ops.axis) for x in total]
    return [ops.to_tensor(x, of.dtype) for x, of in zip(total, input, strict=True)]


#: Operations whose NaN the chip makes itself, whatever the operands' NaN. (Selections, signs and
#: conversions from bf16 to fp32 keep theirs.)
_COMPUTING = (
    "create_fadd", "create_fsub", "create_fmul", "create_fdiv", "create_precise_divf", "create_fma",
    "create_sqrt", "create_precise_sqrt", "create_rsqrt", "create_exp2", "create_floor",
    "create_ceil", "create_minimumf", "create_maximumf", "create_minnumf", "create_maxnumf",
    "create_clampf", "create_dot",
)  # fmt: skip
#: That NaN, by the type that computes.
_CHIPS_NAN = {
    np.dtype(np.float16): np.uint16(0x7FFF).view(np.float16),
    np.dtype(np.float32): np.uint32(0x7FFFFFFF).view(np.float32),
    np.dtype(np.float64): np.uint64(0xFFF8 << 48).view(np.float64),
}


def chips_nan(x: torch.Tensor) -> torch.Tensor:
    """fp32, bf16 or fp16 numbers, every NaN as the chip computes it: all ones but the sign."""
    words = x.view(torch.int32 if x.dtype is torch.float32 else torch.int16)
    return torch.where(x.isnan(), torch.iinfo(words.dtype).max, words).view(x.dtype)


def _create_inline_asm(
    self: Any, asm: str, constraints: str, values: Any, kind: Any, pure: bool, pack: int
) -> Any:
    """The assembly that kernels have: `functions.opaque`, which moves a register, and
    `functions.reciprocal`, here by `RECIPROCAL`."""
    assert (constraints, len(values)) == ("=r,r", 1), (asm, constraints)
    if asm == "rcp.approx.ftz.f32 $0, $1;":
        x = values[0]
        return SimpleNamespace(get_result=lambda _: type(x)(RECIPROCAL(x.data), x.dtype.scalar))
    assert asm == "mov.b32 $0, $1;", asm
    return SimpleNamespace(get_result=values.__getitem__)


def _chips_nan(data: Any) -> Any:
    nan = _CHIPS_NAN.get(getattr(data, "dtype", None))
    return data if nan is None else np.where(np.isnan(data), nan, data)


def _with_the_chips_nan(original: Any) -> Any:
    def compute(self: Any, *args: Any) -> Any:
        result = original(self, *args)
        result.data = _chips_nan(result.data)
        return result

    return compute


def _reduce_with_the_chips_nan(original: Any) -> Any:
    def apply_impl(self: Any, input: Any) -> Any:
        result = original(self, input)
        for x in result if isinstance(result, (list, tuple)) else (result,):
            x.handle.data = _chips_nan(x.handle.data)
        return result

    return apply_impl


#: Types that NumPy lacks: how they are stored, torch's name, and the NaN of a conversion to them.
_STORED = {
    "bf16": (np.int16, torch.bfloat16, 0x7FFF),
    "fp8e4nv": (np.uint8, torch.float8_e4m3fn, 0x7F),
    "fp8e5": (np.uint8, torch.float8_e5m2, 0x7F),
}


def _values(data: Any, dtype: Any) -> Any:
    """What a tensor handle's data stands for, as fp32 (fp64 and integers stay)."""
    name = str(dtype.scalar)
    if name in _STORED:
        raw, kind, _ = _STORED[name]
        bits = np.ascontiguousarray(data).view(raw)
        return torch.from_numpy(bits).view(kind).float().numpy().reshape(np.shape(data))
    wide = data.dtype == np.float64 or data.dtype.kind in "iu"
    return data if wide else data.astype(np.float32)


def _stored(values: Any, dtype: Any, np_dtype: Any) -> Any:
    name = str(dtype.scalar)
    with np.errstate(all="ignore"):
        if name not in _STORED:
            return values.astype(np_dtype)
        raw, kind, nan = _STORED[name]
        x = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        if kind is torch.float8_e4m3fn:
            x = torch.where(x.isnan(), x, x.clamp(-448, 448))  # cvt.satfinite
        bits = x.to(kind).view(torch.from_numpy(np.zeros(0, raw)).dtype).numpy()
        return np.where(np.isnan(values), raw(nan), bits).view(np_dtype)


def _create_cast(interpreter: Any, original: Any) -> Any:
    def cast(self: Any, src: Any, dst_type: Any, *rest: Any) -> Any:
        if rest and str(rest[0]).endswith("RTZ"):
            return original(self, src, dst_type, *rest)
        np_dtype = interpreter._get_np_dtype(dst_type)
        data = _stored(_values(src.data, src.dtype), dst_type, np_dtype)
        if str(src.dtype.scalar) != "bf16":  # whose bits are the upper half of a float's
            data = _chips_nan(data)
        return interpreter.TensorHandle(np.asarray(data), dst_type.scalar)

    return cast


def _create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    from samebits.contract.functions64 import fma64
    from samebits.contract.numerics import fma32

    if x.data.dtype == np.float64:
        data = fma64(x.data, y.data, z.data)
    elif x.data.dtype != np.float32:  # two roundings are one here: binary64 inside
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

    if d.data.dtype != np.float32:  # fp64 and integers; in which order fp64 adds is not known
        data = a.data.astype(d.data.dtype) @ b.data.astype(d.data.dtype) + d.data
        return type(d)(data.astype(d.data.dtype), d.dtype.scalar)
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
