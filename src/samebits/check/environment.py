"""What a report says about the machine and the software."""

from __future__ import annotations

import platform
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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
        "vector units": torch.backends.cpu.get_cpu_capability(),
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
        **_libraries(),
    }


#: Libraries that torch was built with, as its configuration names them.
_BUILT_WITH = {"MKL": r"Math Kernel Library Version (\S+)", "oneDNN": r"MKL-DNN v(\S+)"}
_IMPORTED = ("triton", "transformers", "vllm", "numpy")
#: Entries of an environment that are versions of something that computes.
VERSIONS = ("samebits", "torch", "CUDA", "cuDNN", *_BUILT_WITH, *_IMPORTED)


def _libraries() -> dict[str, str]:
    """Versions of what computes besides torch itself: bits may change with any of them."""
    config = torch.__config__.show()
    found = {name: re.search(pattern, config) for name, pattern in _BUILT_WITH.items()}
    versions = {name: match[1].removesuffix("-Product") for name, match in found.items() if match}
    for name in _IMPORTED:
        if name in sys.modules:
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
    return versions


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
        "cuDNN": _cudnn(),
    }


def _cudnn() -> str:
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.version())


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
