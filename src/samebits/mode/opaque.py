"""Composite operations that are overridden as a whole stay whole when they are traced.

torch splits a composite (``linear``, ``scaled_dot_product_attention``) above the level at which a
compiler records operations. An override at AutogradCPU or AutogradCUDA takes it whole; but what it
meets there may have no memory: a tracer's stand-in, or a tensor under a dispatch mode that wants to
see what runs.
For these the override calls ``samebits::<name>``, an operation with the composite's schema that
tracers record and replay as it is, so that compiled code has the bits of eager code. Its gradient
is ``samebits::<name>_vjp``, which runs the override again and differentiates it.

Under the transforms of ``torch.func`` a composite is split as torch does, into covered operations.
Where those would give other bits (RMSNorm), it is handed to the operation that is covered whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from samebits.mode.aten import attention
from samebits.mode.fallback import Stock
from samebits.mode.registry import DENSE

Function = Callable[..., Any]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_OPTIONS = frozenset({type(None), bool, int, float, str, tuple, list, torch.Size})
#: Overrides that call covered aten operations alone, so that tracers may always look into them.
COMPOSED = frozenset({"tensordot"})
#: Overrides that call aten operations alone once a gradient is wanted: tracers may look into them.
_DIFFERENTIABLE_PARTS = frozenset({"layer_norm", "linear", "rms_norm"})
_library: Any = torch.library.Library("samebits", "FRAGMENT")  # type: ignore[no-untyped-call]
_defined: dict[str, Function] = {}
_lock = threading.Lock()
_INCLUDED = torch._C._dispatch_tls_local_include_set()
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()


def _rms_norm(
    x: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    return torch._fused_rms_norm(x, tuple(shape), weight, eps)[0]


_SPLIT: dict[str, Function] = {"rms_norm": _rms_norm}
#: What runs under torch.func, where it is not the split itself.
_TRANSFORMED: dict[str, Function] = {"scaled_dot_product_attention": attention.whole}


def traceable(name: str, schema: Any, fn: Function, family: str = "") -> Function:
    """An override above autograd that can be traced.

    Args:
        name: aten schema name of a composite whose first argument is a tensor.
        schema: its schema; it takes tensors by position and returns one tensor.
        fn: the override: tensors in, a differentiable tensor out.
        family: of the contracts, if they have a function of their own: their operation has its own
            name then, for compiled code keeps the one that it was traced with.
    """
    split: Function = _SPLIT.get(name) or Stock(name, "CompositeImplicitAutograd")
    transformed = _TRANSFORMED.get(name, split)
    parts = name in _DIFFERENTIABLE_PARTS
    modes, transforms = (
        torch._C._len_torch_dispatch_stack,
        torch._C._are_functorch_transforms_active,
    )

    def override(*args: Any, **kwargs: Any) -> Any:
        if not modes() and not transforms():
            for x in args:
                if type(x) in _PLAIN:
                    if x.is_neg():  # torch carries a pending negation out below this key only
                        break
                elif type(x) not in _OPTIONS:
                    break
            else:
                return fn(*args, **kwargs)
            args = tuple(map(_resolved, args))
        if transforms():
            return transformed(*args, **kwargs)
        if modes() or any(map(_traced, args)):
            if parts and torch.is_grad_enabled() and any(map(_wants_gradient, args)):
                return fn(*args, **kwargs)
            return _whole(family + name, schema, fn, split)(*args, **kwargs)
        return fn(*args, **kwargs)

    return override


def _whole(name: str, schema: Any, fn: Function, split: Function) -> Function:
    # Defined when the first tracer comes: it would be most of the time that enabling takes.
    with _lock:
        if name not in _defined:
            _defined[name] = _define(name, schema, fn, split)
    return _defined[name]


def _resolved(x: Any) -> Any:
    return x.resolve_neg() if isinstance(x, torch.Tensor) and x.is_neg() else x


def _traced(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )


def _wants_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _define(name: str, schema: Any, fn: Function, split: Function) -> Function:
    op = name.replace(".", "_")
    signature = str(schema).partition("(")[2]
    inputs = signature.rpartition(") ->")[0]
    tensors = [i for i, a in enumerate(schema.arguments) if "Tensor" in str(a.type)]
    qualified = f"samebits::{op}"
    _library.define(f"{op}({signature}")
    _library.define(f"{op}_vjp(Tensor grad, bool[] needs, {inputs}) -> Tensor[]")

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs).contiguous()

    def run_fake(*args: Any, **kwargs: Any) -> Any:
        return torch.empty_like(split(*args, **kwargs), memory_format=torch.contiguous_format)

    def vjp(grad: torch.Tensor, needs: list[bool], *args: Any, **kwargs: Any) -> Any:
        inputs = list(args)
        with torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED), torch.enable_grad():
            wanted = []
            for index, need in zip(tensors, needs, strict=True):
                if need:
                    inputs[index] = inputs[index].detach().requires_grad_()
                    wanted.append(inputs[index])
            gradients = torch.autograd.grad(fn(*inputs, **kwargs), wanted, grad)
        return [g.contiguous() for g in gradients]

    def vjp_fake(grad: torch.Tensor, needs: list[bool], *args: Any, **kwargs: Any) -> Any:
        wanted = [args[i] for i, need in zip(tensors, needs, strict=True) if need]
        return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in wanted]

    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any = None, *, output: Any) -> None:
        ctx.save_for_backward(*(inputs[i] for i in tensors))
        ctx.inputs = [None if i in tensors else v for i, v in enumerate(inputs)]
        ctx.keywords = keyword_only_inputs or {}

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        args = list(ctx.inputs)
        for index, tensor in zip(tensors, ctx.saved_tensors, strict=True):
            args[index] = tensor
        needs = [bool(ctx.needs_input_grad[i]) for i in tensors]
        found = iter(vjp_op(grad, needs, *args, **ctx.keywords))
        out: list[torch.Tensor | None] = [None] * len(args)
        for index, need in zip(tensors, needs, strict=True):
            if need:
                out[index] = next(found)
        return tuple(out)

    for key in DENSE:
        _library.impl(op, run, key)
        _library.impl(f"{op}_vjp", vjp, key)
    torch.library.register_fake(qualified, run_fake, lib=_library)
    torch.library.register_fake(f"{qualified}_vjp", vjp_fake, lib=_library)
    vjp_op = getattr(torch.ops.samebits, f"{op}_vjp").default
    torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_library)
    return getattr(torch.ops.samebits, op).default  # type: ignore[no-any-return]
