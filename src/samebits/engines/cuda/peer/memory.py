"""Memory of a GPU that other processes' GPUs read and write (CUDA's interprocess memory).

No multicast object is ever made: a store goes to one GPU.
"""

from __future__ import annotations

import ctypes
import functools
import socket
from pathlib import Path
from typing import Any

from samebits.errors import DeviceError

_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class SharedMemory:
    """Zeroed memory on the current device. It lives as long as the process.

    Attributes:
        address: where it is here.
        handle: what another process on this machine opens it by.

    Raises:
        DeviceError: the driver refuses it.
    """

    def __init__(self, size: int) -> None:
        driver, address, handle = _driver(), ctypes.c_uint64(), _Handle()
        _check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), "cuMemAlloc")
        _check(driver.cuMemsetD8_v2(address, ctypes.c_ubyte(0), ctypes.c_size_t(size)), "cuMemset")
        _check(driver.cuCtxSynchronize(), "cuCtxSynchronize")
        _check(driver.cuIpcGetMemHandle(ctypes.byref(handle), address), "cuIpcGetMemHandle")
        self.address = address.value
        self.handle = bytes(handle)


def open_handle(handle: bytes) -> int:
    """Where another process's memory is here, readable and writable by the current device.

    Raises:
        DeviceError: the driver refuses it: the GPUs have no way to each other's memory, say.
    """
    address = ctypes.c_uint64()
    status = _driver().cuIpcOpenMemHandle_v2(
        ctypes.byref(address), _Handle.from_buffer_copy(handle), ctypes.c_uint(_LAZY_PEER_ACCESS)
    )
    _check(status, "cuIpcOpenMemHandle")
    return address.value


def copy(to: int, start: int, size: int, stream: int) -> None:
    """Copies `size` bytes from an address to another, in the order of a stream (a CUDA handle).

    Between GPUs it is the copy engines that do it, beside all kernels. It can be captured.

    Raises:
        DeviceError: the driver refuses it.
    """
    status = _driver().cuMemcpyDtoDAsync_v2(
        ctypes.c_uint64(to), ctypes.c_uint64(start), ctypes.c_size_t(size), ctypes.c_void_p(stream)
    )
    _check(status, "cuMemcpyDtoDAsync")


def machine() -> str:
    """What is the same for all processes that can share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the NVIDIA driver's library is not found: {error}") from error


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        why = text.value.decode() if text.value else f"error {status}"
        raise DeviceError(f"{what}: {why}")
