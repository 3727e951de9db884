"""Kernels in CUDA C++ for what Triton cannot express, compiled where they run.

NVRTC, which comes with torch, compiles them the first time that they are needed; a user needs no
CUDA toolkit. Importing this package needs neither.
"""

from __future__ import annotations
