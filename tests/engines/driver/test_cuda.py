"""The extension imports everywhere, and says what is missing when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import interpreter
from samebits.engines.driver import _cuda
from samebits.engines.driver.memory import empty
from samebits.errors import DeviceError

without_gpu = pytest.mark.skipif(not interpreter.INTERPRETED, reason="there is a GPU")
needs_gpu = pytest.mark.skipif(interpreter.INTERPRETED, reason="needs a GPU")
SLOTS: list[str | tuple[int, int, int, list[int]]] = ["word", (3, 2, 9, [64, 64]), "constant"]


def kernel(slots: list[str | tuple[int, int, int, list[int]]] | None = None) -> _cuda.Kernel:
    return _cuda.Kernel(
        b"no cubin", "k", 0, 128, 0, 1, False, False, 0, SLOTS if slots is None else slots
    )


@without_gpu
def test_without_a_driver_or_a_gpu_the_reason_is_given() -> None:
    assert _cuda.missing()
    with pytest.raises(DeviceError, match="CUDA driver"):
        kernel()
    with pytest.raises(DeviceError, match="CUDA driver"):
        _cuda.driver_version()


@without_gpu
def test_without_cublaslt_the_reason_is_given() -> None:
    assert "libcublasLt" in _cuda.lt_missing()
    with pytest.raises(DeviceError, match="install a build of torch with CUDA"):
        _cuda.lt_version()
    layout = _cuda.Layout(14, 64, 64, 64)
    with pytest.raises(DeviceError, match="libcublasLt"):
        _cuda.Product(0, 68, True, False, layout, layout, layout)


def test_unknown_kinds_of_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of parameter: half"):
        kernel(["half"])


@needs_gpu
def test_versions() -> None:
    assert _cuda.missing() == "" and _cuda.lt_missing() == ""
    assert _cuda.driver_version() >= 12000 and _cuda.lt_version() >= 120000


@needs_gpu
def test_a_damaged_kernel_is_refused() -> None:
    with pytest.raises(DeviceError, match="loading kernel k: CUDA_ERROR"):
        kernel()


def test_importing_samebits_loads_neither_triton_nor_cuda() -> None:
    code = (
        "import sys, samebits.engines.triton.launch, samebits.engines.vendor.cublaslt; "
        "sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs_gpu
def test_memory_is_torch_s_own() -> None:
    before = torch.cuda.memory_allocated()
    x = empty(3, 1024, torch.float32, 0)
    assert x.shape == (3, 1024) and x.is_contiguous() and x.dtype is torch.float32
    assert x.device == torch.device("cuda", 0)
    assert torch.cuda.memory_allocated() == before + 3 * 4096
    assert empty(0, 5, torch.bfloat16, 0).shape == (0, 5)


def test_memory_of_the_cpu() -> None:
    x = empty(2, 5, torch.bfloat16, -1)
    assert x.shape == (2, 5) and x.dtype is torch.bfloat16 and x.is_cpu
