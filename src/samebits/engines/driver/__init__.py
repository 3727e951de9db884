"""The CUDA driver and cuBLASLt, called directly: launches for little host time, pinned algorithms.

`_cuda` is built without a CUDA toolkit and finds both libraries when they are first used. It
imports on every machine; where something is missing, calls raise `DeviceError` with the reason.
"""

from __future__ import annotations

from samebits.engines.driver import _cuda

__all__ = ["_cuda"]
