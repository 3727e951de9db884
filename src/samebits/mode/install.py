"""Writing the overrides and refusals into torch's dispatcher, and taking them out again."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

import samebits.mode.aten  # noqa: F401  (fills the registry)
from samebits.engines import family
from samebits.engines.cpu._cpu import Counted
from samebits.errors import SwitchError
from samebits.mode import coverage
from samebits.mode import exact as exact_mode
from samebits.mode import portable as portable_mode
from samebits.mode.derive import Schemas, inplace_form, out_form
from samebits.mode.fallback import CUDA_BUILD, EXACT_DTYPES, Stock, refuse
from samebits.mode.opaque import COMPOSED, traceable
from samebits.mode.registry import DENSE, DENSE_AUTOGRAD, OVERRIDES
from samebits.mode.table import Group, Kind

#: Kernels for other layouts. Their tensors may have been made before the switch was turned on.
_LAYOUT_KEYS = {
    "CPU": ("SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU"),
    "CUDA": ("SparseCUDA", "SparseCsrCUDA", "QuantizedCUDA", "NestedTensorCUDA"),
}
#: What may still be done with such tensors: move them, look at them, make them dense.
_LAYOUT_EXACT = """
    _coalesced_ _dimI _dimV _indices _nnz _to_dense _values ccol_indices col_indices crow_indices
    dequantize indices int_repr q_per_channel_axis q_per_channel_scales q_per_channel_zero_points
    q_scale q_zero_point qscheme row_indices to_dense values
"""
#: Namespaces whose kernels choose by batch size or scale by batch content.
_NAMESPACES = (
    "quantized",
    "_quantized",
    "mkldnn",
    "mkl",
    "onednn",
    "prepacked",
    "mkldnn_prepacked",
)


class Refusal:
    """Stands in the place of a kernel that no contract covers, for all dtypes or for some."""

    __slots__ = ("__name__", "_group", "_narrow", "_op", "_stock")

    def __init__(self, op: str, key: str, group: Group) -> None:
        self.__name__ = f"refused {op}"
        self._op, self._group = op, group
        self._narrow = frozenset(getattr(torch, d) for d in group.refused_dtypes)
        self._stock = Stock(op, key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._allowed(args, kwargs):
            refuse(self._op, self._group.why, remedy=self._group.remedy)
        return self._stock(*args, **kwargs)

    def _allowed(self, args: Any, kwargs: Any) -> bool:
        if self._narrow:
            return all(getattr(a, "dtype", None) not in self._narrow for a in args)
        if not self._group.integers:
            return False
        dtypes = {a.dtype for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)}
        wanted = kwargs.get("dtype")
        return bool(dtypes) and (dtypes | ({wanted} if wanted else set())) <= EXACT_DTYPES


Kernels = dict[tuple[str, str], Callable[..., Any]]


@cache
def gpu() -> bool:
    """Whether this process can have CUDA tensors.

    Asking starts nothing: `torch.cuda.is_available` would start the driver, after which a process
    that is forked (vLLM's workers) has no CUDA; the count comes from NVML.
    """
    return CUDA_BUILD and torch.cuda.device_count() > 0


def devices() -> tuple[str, ...]:
    """The dispatch keys of dense tensors in this process."""
    return ("CPU", "CUDA") if gpu() else ("CPU",)


@cache
def overrides() -> dict[tuple[str, str], Counted]:
    """Every override by (schema, key), with its derived forms."""
    schemas = Schemas()
    kernels = {}
    for o in OVERRIDES.values():
        schema = schemas.get(o.name)
        if schema is None or (o.key.endswith("CUDA") and not gpu()):
            continue
        whole = o.key in DENSE_AUTOGRAD and o.name not in COMPOSED
        fn = traceable(o.name, schema, o.fn) if whole else o.fn
        kernels[(o.name, o.key)] = Counted(o.name, fn)
    for (name, key), counted in list(kernels.items()):
        if key not in DENSE:
            continue
        for form, schema in schemas.derived(name):
            # A form without a kernel of its own is composed of forms that have one.
            if (form, key) in kernels or not coverage.has_kernel(form, key):
                continue
            if any(a.is_out for a in schema.arguments):
                fn = out_form(form, schema, counted.fn, key)
            else:
                fn = inplace_form(form, counted.fn, key)
            kernels[(form, key)] = Counted(form, fn)
    return kernels


@cache
def covered(key: str = "CPU") -> frozenset[str]:
    """Names of all schemas that have an override for tensors of this dispatch key."""
    cuda = key == "CUDA"
    return frozenset(name for name, k in overrides() if k.endswith("CUDA") is cuda)


@cache
def refusals() -> dict[tuple[str, str], Refusal]:
    """Every refusal by (qualified schema, key)."""
    out: dict[tuple[str, str], Refusal] = {}
    for key in devices():
        for name in coverage.schemas(key):
            group = coverage.classify(name, covered(key), key)
            if (group.kind is Kind.REFUSED or group.refused_dtypes) and _installable(name, key):
                out[(f"aten::{name}", key)] = Refusal(f"aten::{name}", key, group)
        out.update(_other_layouts(key))
    return out


def _installable(name: str, key: str) -> bool:
    base = name.partition(".")[0]
    composite = coverage.has_kernel(name, "CompositeImplicitAutograd")
    return not composite or base in coverage.REFUSED_COMPOSITES or coverage.has_kernel(name, key)


def _other_layouts(device: str) -> dict[tuple[str, str], Refusal]:
    out = {}
    layout_exact = frozenset(_LAYOUT_EXACT.split())
    for key in _LAYOUT_KEYS[device]:
        why = f"no contract covers {key.removesuffix(device).lower()} tensors"
        group = Group(Kind.REFUSED, why, "", "Use a dense tensor")
        for qualified in coverage.registered(key):
            namespace, _, name = qualified.partition("::")
            exact = name.partition(".")[0] in layout_exact or coverage.moves_data(name)
            if namespace == "aten" and not exact:
                out[(qualified, key)] = Refusal(qualified, key, group)
    group = Group(Kind.REFUSED, "its kernels or scales may depend on the whole batch", "")
    for key in (device, *(k for k in _LAYOUT_KEYS[device] if k[:3] in ("Qua", "Mkl"))):
        for qualified in coverage.registered(key):
            namespace, _, name = qualified.partition("::")
            if namespace in _NAMESPACES and "pack" not in name:
                out[(qualified, key)] = Refusal(qualified, key, group)
    return out


@dataclass
class Installation:
    """Libraries that hold the registrations; destroying them restores torch's kernels."""

    foreign: list[str] = field(default_factory=list)
    _in_flight: deque[list[Any]] = field(default_factory=lambda: deque(maxlen=8))
    _libraries: dict[str, Any] = field(default_factory=dict)
    _names: list[tuple[str, str]] = field(default_factory=list)

    def install(self) -> None:
        """Registers all overrides and refusals of the family of contracts that is in force."""
        self.foreign = foreign_overrides()
        with warnings.catch_warnings():
            # torch warns once a process that a kernel is replaced: that is what a switch does.
            warnings.simplefilter("ignore")
            self._register()

    def _register(self) -> None:
        kernels: Kernels = {(f"aten::{name}", key): c for (name, key), c in overrides().items()}
        kernels.update(refusals())
        if family.portable():
            kernels.update(portable_mode.layer(overrides(), devices()))
        if family.in_force() == "exact":
            kernels.update(exact_mode.layer(overrides(), devices()))
        self._names = list(kernels)
        for (qualified, key), kernel in kernels.items():
            self._impl(qualified, kernel, key)

    def remove(self) -> None:
        """Takes them out again. Stacked registrations of others stay.

        A thread may be about to call one and wait for the interpreter, which this thread holds. The
        dispatcher would destroy what it is about to call, so the last few sets are kept alive.
        """
        if self._libraries:
            parse, get = torch._C._dispatch_key_parse, torch.library.get_kernel
            self._in_flight.append([get(name, parse(key)) for name, key in self._names])
        while self._libraries:
            self._libraries.popitem()[1]._destroy()

    def _impl(self, qualified: str, fn: Callable[..., Any], key: str) -> None:
        namespace, _, name = qualified.partition("::")
        library = self._libraries.get(namespace)
        if library is None:
            library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
            self._libraries[namespace] = library
        library.impl(name, fn, key, allow_override=True)


def foreign_overrides() -> list[str]:
    """Python overrides of aten that others have installed, e.g. by ``torch._native``."""
    keys = ["CompositeImplicitAutograd", "CompositeExplicitAutograd"]
    keys += [prefix + key for key in devices() for prefix in ("", "Autograd")]
    ends = tuple(f"/{key}" for key in keys)
    return sorted(k for k in torch.library._impls if k.startswith("aten/") and k.endswith(ends))


def verify() -> None:
    """Asks the dispatcher whether each override is what it will run.

    Raises:
        SwitchError: one is not; it was replaced, or this torch ignores the registration.
    """
    get = torch.library.get_kernel
    lost = [
        f"aten::{name} at {key}"
        for name, key in overrides()
        if __file__ not in repr(get(f"aten::{name}", key))
    ]
    if lost:
        raise SwitchError(f"these overrides are not in force: {', '.join(lost)}")
