"""The CPU engine: a C++ extension whose AVX-512, AVX2, NEON and scalar code give the same bits.

One module an area launches its kernels: it takes validated tensors, allocates the result, and hands
raw pointers to the extension. Nothing here looks at batch sizes to decide bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samebits import settings
from samebits.engines.cpu import _cpu
from samebits.errors import SettingError

#: dtype codes of csrc/types.hpp; a dtype that is not here is not computed by this engine.
DTYPE_CODE: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def isa() -> str:
    """The instruction set in use: ``avx512``, ``avx2``, ``neon`` or ``scalar``."""
    return _cpu.isa()


def isas() -> list[str]:
    """All instruction sets that this machine and this build can run, the fastest first."""
    return _cpu.isas()


def set_isa(name: str) -> None:
    """Use instruction set `name` from now on, in all threads. Bits do not depend on it.

    Raises:
        SettingError: this machine or this build does not have it.
    """
    if not _cpu.set_isa(name):
        raise SettingError(f"instruction set {name!r} is not available here: use one of {isas()}")


@contextmanager
def isa_here(name: str) -> Iterator[None]:
    """Instruction set `name` for the calls of this thread in a block of code.

    Raises:
        SettingError: this machine or this build does not have it.
    """
    if not _cpu.set_thread_isa(name):
        raise SettingError(f"instruction set {name!r} is not available here: use one of {isas()}")
    try:
        yield
    finally:
        _cpu.set_thread_isa("")


def set_worker_flush(flush: bool) -> bool:
    """Makes the workers of this thread's pool flush subnormals or not; whether one did before."""
    return _cpu.set_worker_flush(flush)


_forced = settings.forced_isa()
if _forced is not None:
    set_isa(_forced)
