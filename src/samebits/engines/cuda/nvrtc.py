"""NVRTC: CUDA C++ to machine code, at run time, without a CUDA toolkit.

The library is the one that torch's CUDA build ships. What was compiled is kept in the user's cache
directory under a hash of the sources, the options and the compiler's version, so a process pays
the second or two only once on a machine.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from samebits.engines import ahead
from samebits.errors import DeviceError

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
#: What every kernel is compiled with: an fma is written where the contract has one, nowhere else.
_OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


#: Instructions of sm_90a; every source may include it.
_COMMON = Path(__file__).with_name("hopper.cuh")


def compile_source(
    path: Path,
    architecture: str,
    constants: Mapping[str, int],
    headers: tuple[Path, ...] = (),
    generated: Mapping[str, str] | None = None,
) -> bytes:
    """The cubin of a source file.

    Args:
        path: a .cu file; it may include hopper.cuh and the `headers` by their file names.
        generated: texts of further headers by name.
        architecture: e.g. "sm_90a".
        constants: preprocessor constants.

    Raises:
        DeviceError: NVRTC is missing, or the source does not compile: the compiler's log is said.
    """
    texts = {p.name: p.read_text() for p in (path, _COMMON, *headers)} | dict(generated or {})
    options = [
        f"--gpu-architecture={architecture}", *_OPTIONS,
        *(f"-D{name}={value}" for name, value in sorted(constants.items())),
    ]  # fmt: skip
    kept = _cache() / (_digest(version(), options, texts) + ".cubin")
    if kept.is_file():
        return kept.read_bytes()
    cubin = ahead.compiled(kept.name, partial(_compile, texts, path.name, options))
    _keep(kept, cubin)
    return cubin


@functools.cache
def version() -> tuple[int, int]:
    """The version of NVRTC, e.g. (13, 0)."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samebits" / "cuda"


def _digest(compiler: tuple[int, int], options: list[str], texts: Mapping[str, str]) -> str:
    return hashlib.sha256(repr((compiler, options, sorted(texts.items()))).encode()).hexdigest()


def _keep(path: Path, cubin: bytes) -> None:
    """Writes the file whole or not at all; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(cubin)
        os.replace(file.name, path)
    except OSError:
        pass


@functools.cache
def _library() -> ctypes.CDLL:
    for name in _NAMES:
        for place in _in_packages(name):
            # NVRTC opens its companion by name alone: have it in the process already.
            for companion in sorted(place.parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(companion))
            return ctypes.CDLL(str(place))
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(
        f"NVRTC ({' or '.join(_NAMES)}) is not found: install a build of torch with CUDA, which "
        "brings it, or put it on the library path"
    )


def _in_packages(name: str) -> list[Path]:
    """Where NVIDIA's Python packages keep a library."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    return [found for root in roots for found in sorted(root.glob(f"*/lib/{name}"))]


def _check(status: int, what: str) -> None:
    if status != 0:
        text = _library().nvrtcGetErrorString
        text.restype = ctypes.c_char_p
        raise DeviceError(f"{what}: {text(status).decode()}")


def _compile(texts: Mapping[str, str], main: str, options: list[str]) -> bytes:
    library, program = _library(), ctypes.c_void_p()
    headers = [name for name in texts if name != main]
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program),
            texts[main].encode(),
            main.encode(),
            len(headers),
            _strings([texts[name] for name in headers]),
            _strings(headers),
        ),
        f"compiling {main}",
    )
    try:
        status = library.nvrtcCompileProgram(program, len(options), _strings(options))
        if status != 0:
            log = _bytes(program, library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog)
            raise DeviceError(f"{main} does not compile with {options}:\n{log.decode()}")
        return _bytes(program, library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: list[str]) -> Any:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _bytes(program: ctypes.c_void_p, size_of: Any, fill: Any) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)), "NVRTC's output")
    buffer = ctypes.create_string_buffer(size.value)
    _check(fill(program, buffer), "NVRTC's output")
    return buffer.raw
