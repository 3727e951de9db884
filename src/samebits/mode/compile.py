"""``torch.compile`` while the switch is on.

Inductor turns reductions, softmax and even elementwise functions into loops of its own, with other
trees and other roundings than the operations have when they run one by one. While the switch is
on, its graphs are captured, functionalised and differentiated as always, but every operation is
then called through the dispatcher, where it meets the kernel that eager code meets: compiled code
has eager's bits, and each kernel sees the true batch size.

Code compiled before is not reused: Dynamo guards every compiled function on the state of
``torch.use_deterministic_algorithms``, which the switch turns on. Where the caller had turned it on
himself the guard cannot tell the two states apart, and the switch drops the compiled functions. It
drops them, too, when other contracts come into force: a graph has the operations of its contracts.

Whether the switch is on or off, Dynamo does not look into this project's operations: it would let
go of a tensor once its address was taken, before a kernel has read it. They run as they are,
between two graphs.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import torch

from samebits.engines import family
from samebits.mode.fallback import refuse

#: Registered backends that run each operation through the dispatcher.
DISPATCHING = frozenset({"eager", "aot_eager", "inductor", "pre_dispatch_eager"})

_COMPILE_FX = "torch._inductor.compile_fx"
_TRACE_RULES = "torch._dynamo.trace_rules"
#: What Dynamo does not look into.
_OPAQUE = ("samebits.engines", "samebits.guard", "samebits.ops")
_WRAPPER: Any = torch._TorchCompileInductorWrapper
_OTHER: Any = torch._TorchCompileWrapper

SetAttribute = Callable[[Any, str, Any], None]


def _compile(model: Any, inputs: Any, **_: Any) -> Any:
    """Stands for ``compile_fx``: inputs and results as there, without Inductor's own kernels."""
    from torch._dynamo.backends.debugging import aot_eager

    return _uncached(aot_eager, model, inputs)


def _uncached(compiler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # A graph cached with the switch off may hold parts of operations that are covered as a whole.
    import torch._functorch.config as config

    with config.patch(enable_autograd_cache=False):
        return compiler(*args, **kwargs)


def _inductor_call(self: Any, model: Any, inputs: Any, *, config_patches: Any = None) -> Any:
    return _compile(model, inputs)


def _other_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, model: Any, inputs: Any) -> Any:
        from torch._dynamo import list_backends

        name = self.compiler_name
        if name in list_backends(exclude_tags=("debug",)) and name not in DISPATCHING:
            refuse(
                f"torch.compile(backend={name!r})",
                "this compiler makes kernels of its own, which no contract covers",
                remedy=f"Use one of {', '.join(sorted(DISPATCHING))}",
            )
        return _uncached(original, self, model, inputs)

    return call


class _OnImport(MetaPathFinder):
    """Patches a module when it is imported."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name, self._patch = name, patch

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._patch(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def redirect(set_attribute: SetAttribute, guarded: bool) -> Callable[[], None]:
    """Sends Inductor's work to the dispatcher until the attributes are set back.

    Args:
        set_attribute: sets an attribute and remembers how to undo it.
        guarded: Dynamo's guard tells the two states of the switch apart.

    Returns:
        what else to undo.
    """
    set_attribute(_WRAPPER, "__call__", _inductor_call)
    set_attribute(_OTHER, "__call__", _other_call(_OTHER.__call__))

    def patch(module: ModuleType) -> None:
        set_attribute(module, "compile_fx", _compile)

    hook = _OnImport(_COMPILE_FX, patch)
    if _COMPILE_FX in sys.modules:
        patch(sys.modules[_COMPILE_FX])
    else:
        sys.meta_path.insert(0, hook)
    if not guarded:
        forget()

    def undo() -> None:
        if hook in sys.meta_path:
            sys.meta_path.remove(hook)
        if not guarded:
            forget()

    return undo


def forget() -> None:
    """Drops all functions that Dynamo has compiled, if it was ever loaded."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def _stay_out(rules: ModuleType) -> None:
    for name in _OPAQUE:
        rules.add(name)


family.on_change.append(forget)
if _TRACE_RULES in sys.modules:
    _stay_out(sys.modules[_TRACE_RULES])
else:
    sys.meta_path.insert(0, _OnImport(_TRACE_RULES, _stay_out))
