"""``.out`` and in-place overloads, derived from the schema of a functional override.

aten lists ``addmm``, ``addmm.out`` and ``addmm_`` as three operations with three kernels. An
override is written once, in functional form. Its other forms are found by comparing schemas: an
``out`` form has the same inputs and one extra ``out`` argument for each result, an in-place form
has the same inputs of which it writes the first. Where shape or dtype of the target differ from
the result, torch's own kernel runs first: it raises torch's errors, gives torch's warnings and
resizes; what it wrote is then overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.mode.fallback import Stock

Function = Callable[..., Any]


class Schemas:
    """The schemas of aten, looked up by base name."""

    def __init__(self) -> None:
        self._overloads: dict[str, dict[str, Any]] = {}

    def overloads(self, base: str) -> dict[str, Any]:
        """Schemas of ``base`` by overload name; empty where this torch lacks it."""
        if base not in self._overloads:
            found = torch._C._jit_get_schemas_for_operator(f"aten::{base}")
            self._overloads[base] = {schema.overload_name: schema for schema in found}
        return self._overloads[base]

    def get(self, name: str) -> Any:
        """The schema of ``name`` (without ``aten::``), or None where this torch lacks it."""
        base, _, overload = name.partition(".")
        return self.overloads(base).get(overload)

    def derived(self, name: str) -> Iterator[tuple[str, Any]]:
        """Names and schemas of the ``out`` and in-place forms of a functional schema."""
        schema = self.get(name)
        if schema is None or any(_written(a) for a in schema.arguments):
            return
        base = name.partition(".")[0]
        inputs = [_signature(a) for a in schema.arguments]
        for target in (base, base + "_"):
            for overload, other in self.overloads(target).items():
                full = f"{target}.{overload}" if overload else target
                if full == name or not any(_written(a) for a in other.arguments):
                    continue
                if [_signature(a) for a in other.arguments if not a.is_out] == inputs:
                    yield full, other


def out_form(name: str, schema: Any, fn: Function, key: str = "CPU") -> Function:
    """The ``out`` form of a functional override, for one dispatch key."""
    names = [a.name for a in schema.arguments if a.is_out]
    original = Stock(name, key)

    if len(names) == 1:
        (only,) = names

        def out_one(*args: Any, **kwargs: Any) -> Any:
            out = kwargs.pop(only)
            result = fn(*args, **_adopt_dtype(schema, kwargs, out))
            if not _fits(out, result):
                original(*args, **kwargs, **{only: out})
            return out.copy_(result)

        return out_one

    def out_many(*args: Any, **kwargs: Any) -> Any:
        outs = tuple(kwargs.pop(n) for n in names)
        results = fn(*args, **kwargs)
        if not all(map(_fits, outs, results)):
            original(*args, **kwargs, **dict(zip(names, outs, strict=True)))
        for out, result in zip(outs, results, strict=True):
            out.copy_(result)
        return outs

    return out_many


def inplace_form(name: str, fn: Function, key: str = "CPU") -> Function:
    """The in-place form of a functional override, for one dispatch key."""
    original = Stock(name, key)

    def inplace(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = fn(self, *args, **kwargs)
        if not _fits(self, result):
            original(self, *args, **kwargs)
        return self.copy_(result)

    return inplace


def _fits(target: torch.Tensor, result: torch.Tensor) -> bool:
    return target.shape == result.shape and target.dtype == result.dtype


def _adopt_dtype(schema: Any, kwargs: dict[str, Any], out: torch.Tensor) -> dict[str, Any]:
    # A reduction without an explicit dtype computes in the dtype of its target.
    if kwargs.get("dtype") is None and any(a.name == "dtype" for a in schema.arguments):
        return {**kwargs, "dtype": out.dtype}
    return kwargs


def _written(argument: Any) -> bool:
    info = argument.alias_info
    return bool(info is not None and info.is_write)


def _signature(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)
