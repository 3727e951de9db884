"""Attention on NVIDIA GPUs: every layout of keys, one contract; see `forward`."""

from __future__ import annotations
