"""Matrix products: tiles of any width, leaves folded in registers or in a cluster."""

from __future__ import annotations
