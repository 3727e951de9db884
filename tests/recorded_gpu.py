"""Kernels that calls on a GPU would need, recorded without one.

Tensors on the CPU say that they are on a GPU, and launchers note what they are asked for instead of
compiling it. Needs a process of its own, without Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from samebits.engines.driver import _cuda, memory, recipes

DEVICE = torch.device("cuda", 0)
_BACKEND = make_backend(GPUTarget("cuda", 90, 32))
#: A kernel's name and everything that it is compiled for.
Key = tuple[str, tuple[str, ...]]


class Tensor(torch.Tensor):
    """One that says it is on the GPU."""

    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def get_device(self) -> int:
        return 0


class Launcher:
    """In the place of the driver's: one kernel with its options."""

    wanted: ClassVar[set[Key]] = set()
    _binders: ClassVar[dict[Any, Any]] = {}

    def __init__(self, name: str, compile: Any, *_: Any) -> None:
        self.name, self.compile = name, compile

    def __call__(self, grid: Any, *args: Any) -> None:
        if min(grid) > 0:
            self.wanted.add((self.name, tuple(self._classes(args))))

    def _classes(self, args: tuple[Any, ...]) -> Iterator[str]:
        made = getattr(self.compile, "args", None)
        if made is None:  # CUDA C++: one kernel serves all arguments
            closed = [cell.cell_contents for cell in self.compile.__closure__]
            yield repr([x for x in closed if isinstance(x, (int, str, tuple))])
            return
        kernel, options = made
        if kernel not in self._binders:
            bind = create_function_from_signature(kernel.signature, kernel.params, _BACKEND)
            self._binders[kernel] = bind
        with torch._C.DisableTorchFunctionSubclass():
            found = self._binders[kernel](*args, **options)[1]
        names = [p.name for p in kernel.params]
        yield from (f"{name}: {of}" for name, of in zip(names, found, strict=True))
        yield from sorted(f"{name}={options[name]}" for name in set(options) - set(names))


class _OnTheGpu(TorchFunctionMode):  # type: ignore[no-untyped-call]
    """What is made on the GPU, or of tensors there, says that it is there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        flat = [y for x in given for y in (x if isinstance(x, (list, tuple)) else (x,))]
        there = any(isinstance(x, Tensor) or _is_the_gpu(x) for x in flat)
        with torch._C.DisableTorchFunctionSubclass():
            named = {k: _here(v) for k, v in (kwargs or {}).items()}
            result = func(*map(_here, args), **named)
        return _there(result) if there else result


def _is_the_gpu(x: Any) -> bool:
    return isinstance(x, torch.device) and x == DEVICE


def _here(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _there(x: Any) -> Any:
    if type(x) is torch.Tensor:
        return x.as_subclass(Tensor)
    return type(x)(map(_there, x)) if type(x) in (list, tuple) else x


@contextmanager
def recording() -> Iterator[set[Key]]:
    """What launchers are asked for in the block."""
    before, Launcher.wanted = Launcher.wanted, set()
    try:
        with _OnTheGpu(), torch.inference_mode():
            yield Launcher.wanted
    finally:
        Launcher.wanted = before


def install() -> None:
    """Has this process record; call it before `samebits.ops` is imported."""
    chip = SimpleNamespace(multi_processor_count=132)
    _cuda.Launcher = Launcher  # type: ignore[assignment, misc]
    memory._empty = None
    recipes.recorded = lambda work: (work, lambda: None)  # type: ignore[assignment]
    for name, value in {
        "get_device_capability": (9, 0), "get_device_properties": chip,
        "is_current_stream_capturing": False, "current_stream": SimpleNamespace(),
    }.items():  # fmt: skip
        setattr(torch.cuda, name, lambda *_, value=value: value)
    torch.cuda.current_stream().synchronize = lambda: None
    torch._C._cuda_getCurrentRawStream = lambda _: 0  # type: ignore[attr-defined]
