"""Overrides of aten operations, one module an area. Importing this package fills the registry."""

from __future__ import annotations
