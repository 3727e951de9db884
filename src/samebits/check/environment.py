"""What a report says about the machine and the software."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from samebits.engines import cpu


def environment() -> dict[str, str]:
    """Versions, processor, instruction set of the engine, threads."""
    return {
        "samebits": _version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "engine": f"cpu, {cpu.isa()}",
        "threads": str(torch.get_num_threads()),
    }


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _version() -> str:
    import samebits

    return samebits.__version__
