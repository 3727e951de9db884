"""Every operation as a function: one folder an op, usable without the switch."""

from __future__ import annotations
