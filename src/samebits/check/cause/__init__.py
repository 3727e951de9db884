"""First divergence and cause: which operation parts two runs that should agree, and why."""

from __future__ import annotations

from samebits.check.cause.explain import explain
from samebits.check.cause.marks import Request

__all__ = ["Request", "explain"]
