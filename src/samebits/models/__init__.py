"""Models that come with the package."""

from __future__ import annotations
