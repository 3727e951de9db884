"""Grouped matrix products for mixtures of experts: every row picks the weight that it meets."""

from __future__ import annotations
