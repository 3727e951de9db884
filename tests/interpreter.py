"""Triton's interpreter, mended, so that kernels are held to their contracts without a GPU.

Triton 3.6 interprets `tl.dot` on bf16 as integers and fails on NumPy >= 2.3. Here a dot on the
tensor core's types computes the very bits of the chip, by the contract's evaluator.
"""

from __future__ import annotations

import os

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
    original = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor, scope):  # type: ignore[no-untyped-def]
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).item()))

    interpreter._patch_lang_tensor = patch_lang_tensor
