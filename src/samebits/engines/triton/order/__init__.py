"""Order on the GPU: keys that make every comparison one of integers, and selection by them."""

from __future__ import annotations
