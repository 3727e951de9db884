"""Functions of complex numbers whose vector and scalar code in torch round differently: refused."""

from __future__ import annotations

from typing import Any

import torch

from samebits.mode.fallback import stock
from samebits.mode.registry import aten

_ANGLE, _SGN = stock("angle"), stock("sgn")
_REASON = "torch's vector and scalar code for complex numbers differ"


@aten("angle")
def angle(self: torch.Tensor) -> Any:
    return _ANGLE.uncovered(_REASON, self) if self.is_complex() else _ANGLE(self)


@aten("sgn")
def sgn(self: torch.Tensor) -> Any:
    return _SGN.uncovered(_REASON, self) if self.is_complex() else _SGN(self)
