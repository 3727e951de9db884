"""Engines compute contracts. They know no policy: what to compute is decided above them."""

from __future__ import annotations
