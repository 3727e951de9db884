"""The engines that people use, with samebits inside. Nothing here computes."""

from __future__ import annotations
