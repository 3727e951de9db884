"""Which device computed something: its identity, and its state at the time."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch

#: Constants of the management library's interface.
_CLOCK_SM, _SENSOR_GPU, _TEXT = 1, 0, 96


class Device(msgspec.Struct, frozen=True):
    """A processor or a GPU. What the machine does not tell is empty or None.

    Attributes:
        kind: device class: "cpu", "sm_90".
        name: as the vendor names it.
        serial: a GPU's UUID and serial number; of a processor, the machine's name.
        clock_mhz: of the streaming multiprocessors, or of the core that asked.
        temperature: degrees Celsius.
    """

    kind: str
    name: str
    serial: str = ""
    clock_mhz: int | None = None
    temperature: int | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.serial}".strip()


def identify(device: torch.device) -> Device:
    """The device with its clock and temperature now. Takes a millisecond: for events and receipts,
    not for calls."""
    return _gpu(device.index or 0) if device.type == "cuda" else _processor()


def _processor() -> Device:
    clock, temperature = None, None
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        clock = round(float(next(x for x in lines if x.startswith("cpu MHz")).partition(":")[2]))
    with suppress(OSError, ValueError, StopIteration):
        zone = next(Path("/sys/class/thermal").glob("thermal_zone*/temp"))
        temperature = round(int(zone.read_text()) / 1000)
    return Device("cpu", _processor_name(), platform.node(), clock, temperature)


@lru_cache(maxsize=1)
def _processor_name() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x for x in lines if x.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(index: int) -> Device:
    properties: Any = torch.cuda.get_device_properties(index)
    uuid = f"GPU-{properties.uuid}"
    serial, clock, temperature = _managed(uuid)
    kind = f"sm_{properties.major}{properties.minor}"
    return Device(kind, properties.name, f"{uuid} {serial}".strip(), clock, temperature)


@lru_cache(maxsize=1)
def _library(process: int) -> Any:
    """The driver's management library, or None. A forked child starts it anew."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _managed(uuid: str) -> tuple[str, int | None, int | None]:
    """Serial number, clock and temperature of a GPU, as far as its driver tells."""
    library, handle = _library(os.getpid()), ctypes.c_void_p()
    if library is None:
        return "", None, None
    if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
        return "", None, None
    text, clock, heat = ctypes.create_string_buffer(_TEXT), ctypes.c_uint(), ctypes.c_uint()
    told = library.nvmlDeviceGetSerial(handle, text, _TEXT) == 0
    serial = text.value.decode() if told else ""
    told = library.nvmlDeviceGetClockInfo(handle, _CLOCK_SM, ctypes.byref(clock)) == 0
    speed = clock.value if told else None
    told = library.nvmlDeviceGetTemperature(handle, _SENSOR_GPU, ctypes.byref(heat)) == 0
    return serial, speed, heat.value if told else None
