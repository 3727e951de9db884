"""Tests whether a model or function keeps a request's bits, promise by promise."""

from __future__ import annotations

from samebits.check.adapters import subject_of
from samebits.check.cause import Request, explain
from samebits.check.explanation import KINDS, Explanation
from samebits.check.promises import PROMISES, TESTS
from samebits.check.result import Case, Divergence, Layer, Noise, Outcome, Report, Speed, Test, Text
from samebits.check.runner import Progress, check

__all__ = [
    "KINDS",
    "PROMISES",
    "TESTS",
    "Case",
    "Divergence",
    "Explanation",
    "Layer",
    "Noise",
    "Outcome",
    "Progress",
    "Report",
    "Request",
    "Speed",
    "Test",
    "Text",
    "check",
    "explain",
    "subject_of",
]
