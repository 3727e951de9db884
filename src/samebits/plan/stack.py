"""The device and the libraries that a plan was made on."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

import msgspec
import torch

from samebits.engines.driver import _cuda
from samebits.engines.triton import CLASSES


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """What measured times, and schedules that name a vendor's algorithm, hold for.

    Attributes:
        device_class: "cpu", "sm_90", ...
        device: the device's name.
        sms: its streaming multiprocessors; 0 for a CPU.
        driver: version of the GPU's driver, for the record; empty where there is none.
        torch, triton, cublaslt: versions; empty where there is none.
    """

    device_class: str
    device: str = ""
    sms: int = 0
    driver: str = ""
    torch: str = ""
    triton: str = ""
    cublaslt: str = ""

    def times_hold_on(self, other: Stack) -> bool:
        """Whether times measured here go with times measured there: all but the driver is equal."""
        return msgspec.structs.replace(self, driver=other.driver) == other

    def differences(self, other: Stack) -> list[str]:
        """What has another version on `other`, in words; the driver and the device may differ."""
        return [
            f"{name} {mine or 'none'} (here {theirs or 'none'})"
            for name in ("torch", "triton", "cublaslt")
            if (mine := getattr(self, name)) != (theirs := getattr(other, name))
        ]


@lru_cache(maxsize=64)
def here(device_class: str) -> Stack:
    """This process's stack: of the first GPU of the class, or of the libraries alone.

    Args:
        device_class: "cpu" or a class of GPUs. Without such a GPU `device` is empty and `sms` 0.
    """
    stack = Stack(device_class=device_class, torch=str(torch.__version__))
    if device_class == "cpu":
        return stack
    stack = msgspec.structs.replace(stack, triton=_triton(), cublaslt=cublaslt())
    index = gpu_of(device_class)
    if index is None:
        return stack
    properties = torch.cuda.get_device_properties(index)
    return msgspec.structs.replace(
        stack, device=properties.name, sms=properties.multi_processor_count, driver=_driver()
    )


def gpu_of(device_class: str) -> int | None:
    """The index of the first GPU of a device class, or None."""
    if not torch.cuda.is_available():
        return None
    wanted = device_class.removeprefix("sm_")
    for index in range(torch.cuda.device_count()):
        if "".join(map(str, torch.cuda.get_device_capability(index))) == wanted:
            return index
    return None


@lru_cache(maxsize=1)
def cublaslt() -> str:
    """The version of the cuBLASLt that torch brings along, e.g. "13.1.0"; empty without one."""
    if _cuda.lt_missing():
        return ""
    number = _cuda.lt_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


def _driver() -> str:
    """The driver's version, from the management library that comes with it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() != 0:
        return ""
    found = library.nvmlSystemGetDriverVersion(text, len(text)) == 0
    library.nvmlShutdown()
    return text.value.decode() if found else ""


def this_device_class() -> str:
    """The class of this machine's first GPU that has contracts, else "cpu"."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = CLASSES.get(torch.cuda.get_device_capability(index))
            if found is not None:
                return found
    return "cpu"
