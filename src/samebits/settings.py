"""Environment variables, read in one place. docs/environment.md lists them for users."""

from __future__ import annotations

import os

from samebits.errors import SettingError

ISAS = ("avx512", "avx2", "neon", "scalar")


def enabled_at_start() -> bool:
    """``SAMEBITS``: 1/on/true turns the switch on when samebits is imported."""
    value = os.environ.get("SAMEBITS", "0").strip().lower()
    if value in ("", "0", "off", "false"):
        return False
    if value in ("1", "on", "true"):
        return True
    raise SettingError(f"SAMEBITS={value!r} is not understood: use 1 or 0")


def guard_at_start() -> str:
    """``SAMEBITS_GUARD``: what `samebits.enable` turns on where it is not told ("off" if unset)."""
    return os.environ.get("SAMEBITS_GUARD") or "off"


def guard_dumps() -> str | None:
    """``SAMEBITS_GUARD_DUMPS``: a directory for the operands of calls that the guard caught."""
    return os.environ.get("SAMEBITS_GUARD_DUMPS") or None


def forced_isa() -> str | None:
    """``SAMEBITS_CPU_ISA``: the instruction set to use (for tests; bits do not depend on it)."""
    value = os.environ.get("SAMEBITS_CPU_ISA")
    if not value:
        return None
    if value not in ISAS:
        raise SettingError(
            f"SAMEBITS_CPU_ISA={value!r} is not understood: use one of {', '.join(ISAS)}"
        )
    return value


def peer_memory() -> bool:
    """``SAMEBITS_PEER_MEMORY``: 0 keeps ranks from writing to each other's GPU memory directly."""
    value = os.environ.get("SAMEBITS_PEER_MEMORY", "1").strip()
    if value not in ("0", "1"):
        raise SettingError(f"SAMEBITS_PEER_MEMORY={value!r} is not understood: use 1 or 0")
    return value == "1"


def blocking_wait() -> bool:
    """torch's ``TORCH_NCCL_BLOCKING_WAIT``: whether the host waits for messages of NCCL."""
    name = "NCCL_BLOCKING_WAIT"
    value = os.environ.get(f"TORCH_{name}", os.environ.get(name, "0"))
    return value.strip().lower() in ("1", "t", "true", "y", "yes")


def receipts_path() -> str | None:
    """``SAMEBITS_RECEIPTS``: the file of receipts, where the switch is on from the start."""
    return os.environ.get("SAMEBITS_RECEIPTS") or None


def metrics_port() -> int | None:
    """``SAMEBITS_METRICS``: the first port at which such a process offers its metrics."""
    value = os.environ.get("SAMEBITS_METRICS")
    if not value:
        return None
    if not value.isdecimal() or not 0 < int(value) < 65536:
        raise SettingError(f"SAMEBITS_METRICS={value!r} is not understood: give a port, e.g. 9464")
    return int(value)


def log_target() -> str | None:
    """``SAMEBITS_LOG``: ``json`` writes log lines as JSON to stderr, anything else is a file."""
    return os.environ.get("SAMEBITS_LOG") or None
