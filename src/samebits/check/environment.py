"""What a report says about the machine and the software."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from samebits.engines import cpu
from samebits.engines.triton import device_class
from samebits.errors import DeviceError, DTypeError


def environment(device: torch.device | None = None) -> dict[str, str]:
    """Versions, processor or GPU, the engine, threads; `device` is where it computes."""
    if device is not None and device.type == "cuda":
        return _software() | _gpu(device)
    return _software() | {
        "processor": processor(),
        "engine": f"cpu, {cpu.isa()}",
        "threads": str(torch.get_num_threads()),
    }


def gpu_environment() -> dict[str, str]:
    """What a benchmark of the current GPU says about the machine.

    Raises:
        DeviceError: there is no GPU that torch can use.
    """
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise DeviceError(
            "torch sees no NVIDIA GPU here: install a CUDA build of torch, or run `samebits bench "
            "cpu`"
        )
    device: int = torch.cuda.current_device()
    return environment(torch.device("cuda", device))


def _software() -> dict[str, str]:
    return {
        "samebits": _version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _gpu(device: torch.device) -> dict[str, str]:
    properties = torch.cuda.get_device_properties(device)
    try:
        engine = f"triton {version('triton')}, {device_class(device.index or 0)}"
    except (DTypeError, PackageNotFoundError) as error:
        engine = f"none: {error}"
    return {
        "device": f"{properties.name}, {properties.multi_processor_count} multiprocessors",
        "engine": engine,
        "CUDA": str(torch.version.cuda),
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
