"""Prefill attention for Hopper: a warp-specialised kernel in CUDA C++ (`prefill.cu`)."""

from __future__ import annotations
