"""Tensors and arrays in, exact fp32 values inside, stored words out.

Every storage type of a contract fits into fp32, so evaluation computes on fp32 values. torch is
imported only when a tensor was given, and only to look at its words as integers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import FORMATS
from samebits.contract.numerics import F32, Array
from samebits.errors import DTypeError

if TYPE_CHECKING:
    import torch

#: What `evaluate` takes and gives: a CPU tensor or a NumPy array.
Operand: TypeAlias = "Array | torch.Tensor"

#: Storage types that results are rounded to.
OUTPUTS = ("fp32", "bf16", "fp16")

#: Rows of a weight, and elements along K, that share one scale of a block-scaled fp8 weight.
SCALE_BLOCK = 128

_ALIASES = {
    "float32": "fp32", "bfloat16": "bf16", "float16": "fp16",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}  # fmt: skip
_WORD = {8: np.uint8, 16: np.uint16, 32: np.uint32}


def dtype_name(dtype: Any) -> str:
    """The contract's name of a dtype: "fp32", "bf16", "fp16", "tf32", "e4m3" or "e5m2".

    Args:
        dtype: such a name, or a torch or NumPy dtype (or either's name).

    Raises:
        DTypeError: no contract knows it.
    """
    name = np.dtype(dtype).name if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name not in FORMATS:
        raise DTypeError(f"no contract knows dtype {dtype}: use one of {', '.join(FORMATS)}")
    return name


def is_tensor(x: Any) -> TypeGuard[torch.Tensor]:
    """True for a torch.Tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def values(x: Operand, dtype: str, name: str) -> F32:
    """The exact fp32 values of an operand that is stored as `dtype` (a `Format` name).

    Args:
        x: a dense CPU tensor of that dtype (fp32 for tf32); or a NumPy array of it, where bf16 and
            fp8 (and fp16, if one likes) are words in uint16 and uint8; or a float32 array whose
            values all fit the type.
        dtype: the storage type.
        name: what an error calls the operand.

    Raises:
        DTypeError: `x` has another dtype, is not dense, is not on a CPU, or does not fit.
    """
    if is_tensor(x):
        words = _tensor_words(x, dtype, name)
    else:
        array = np.asarray(x)
        if array.dtype == np.float32 and dtype not in ("fp32", "tf32"):
            return _fitting(array, dtype, name)
        floats = {"fp32": np.float32, "tf32": np.float32, "fp16": np.float16}
        word = _WORD[FORMATS[dtype].bits]
        if array.dtype not in (word, floats.get(dtype, word)):
            raise DTypeError(f"{name} is {array.dtype}, and the contract takes {dtype}")
        words = np.ascontiguousarray(array).view(word).reshape(array.shape)
    return widen(words, dtype)


def _tensor_words(x: torch.Tensor, dtype: str, name: str) -> Array:
    import torch

    wanted = "fp32" if dtype == "tf32" else dtype
    if x.layout is not torch.strided or x.device.type != "cpu" or x.is_quantized:
        raise DTypeError(
            f"{name}: evaluation takes dense CPU tensors, not {x.layout} on {x.device}"
        )
    if x.is_complex() or dtype_name(x.dtype) != wanted:
        raise DTypeError(f"{name} is {x.dtype}, and the contract takes {dtype}")
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()]
    array: Array = x.detach().contiguous().view(signed).numpy()
    return array.view(_WORD[8 * x.element_size()])


def _fitting(x: Array, dtype: str, name: str) -> F32:
    """float32 values for a narrower type: taken if they are exactly values of that type."""
    fmt = FORMATS[dtype]
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    e = np.maximum(np.frexp(finite)[1] - 1, fmt.min_exponent)
    scaled = np.ldexp(finite, fmt.fraction - e)
    largest = {"bf16": 2.0**128, "fp16": 2.0**16, "e4m3": 480.0, "e5m2": 2.0**16}[dtype]
    if (scaled != np.trunc(scaled)).any() or (np.abs(finite) >= largest).any():
        raise DTypeError(f"{name}: the contract takes {dtype}, and some fp32 values do not fit it")
    return nx.canonical(x)


def widen(words: Array, dtype: str) -> F32:
    """Stored words (uint8, uint16 or uint32) as fp32 values: exact, canonical NaN."""
    if dtype == "bf16":
        return nx.bf16_to_f32(words)
    if dtype == "fp16":
        return nx.fp16_to_f32(words)
    if dtype == "e5m2":  # the upper half of an fp16 word
        return nx.fp16_to_f32(words.astype(np.uint16) << 8)
    if dtype == "e4m3":
        return _E4M3[words]
    if dtype == "tf32":
        words = words & np.uint32(0xFFFFE000)
    return nx.canonical(words.view(np.float32))


def _e4m3_table() -> F32:
    """All 256 values of e4m3fn: no Inf, NaN at 0x7f and 0xff, largest 448."""
    word = np.arange(256)
    exponent, fraction = word >> 3 & 15, word & 7
    magnitude = np.where(
        exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0)
    )
    signed = np.where(word & 0x80, -magnitude, magnitude)
    return nx.canonical(np.where((word & 0x7F) == 0x7F, np.nan, signed))


_E4M3 = _e4m3_table()


def store(x: F32, dtype: str, nan: int, like: Operand) -> Operand:
    """fp32 results rounded once to `dtype`, as a tensor if `like` is one, else as an array.

    Args:
        x: fp32 values.
        dtype: "fp32", "bf16" or "fp16".
        nan: fp32 word of a stored NaN; a 16-bit word keeps its upper bits.
        like: an operand of the evaluation.

    Returns:
        A tensor of the dtype; or float32, float16, or (for bf16) uint16 words.

    Raises:
        DTypeError: results are not rounded to `dtype`.
    """
    if dtype not in OUTPUTS:
        raise DTypeError(f"a result is fp32, bf16 or fp16, not {dtype}")
    is_nan = np.isnan(x)
    words: Array
    if dtype == "fp32":
        words = np.where(is_nan, np.uint32(nan), np.ascontiguousarray(x).view(np.uint32))
    elif dtype == "bf16":
        words = np.where(is_nan, np.uint16(nan >> 16), nx.f32_to_bf16(x))
    else:
        words = np.where(is_nan, np.uint16(0x7C00 | nan >> 13 & 0x3FF), nx.f32_to_fp16(x))
    if is_tensor(like):
        import torch

        kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        signed = words.view(np.int32 if dtype == "fp32" else np.int16)
        return torch.from_numpy(signed).view(kind)
    return words if dtype == "bf16" else words.view(np.float32 if dtype == "fp32" else np.float16)


@dataclass(frozen=True)
class Call:
    """The operands of an attention in fp32, which fit together.

    q [..., T, D], k [..., S, D], v [..., S, Dv]; seen [..., T, S]; bias [..., T, S] or None; scale
    is a number, never None.
    """

    q: F32
    k: F32
    v: F32
    seen: npt.NDArray[np.bool_]
    bias: F32 | None
    scale: float
    softcap: float | None
    sink: float | None
    k_scale: float | None
    v_scale: float | None
