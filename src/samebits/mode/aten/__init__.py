"""Overrides of aten operations, one module an area. Importing this package fills the registry."""

from __future__ import annotations

from samebits.mode.aten import order as order
