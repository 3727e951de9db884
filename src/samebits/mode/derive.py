"""``.out`` and in-place overloads, derived from the schema of a functional override.

aten lists ``addmm``, ``addmm.out`` and ``addmm_`` as three operations with three kernels. An
override is written once, in functional form. Its other forms are found by comparing schemas: an
``out`` form has the same inputs and one extra ``out`` argument for each result, an in-place form
has the same inputs of which it writes the first. Where shape or dtype of the target differ from
the result, torch's own meta kernel decides: it raises torch's errors and gives torch's warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.mode.fallback import Stock

Function = Callable[..., Any]


class Schemas:
    """All schemas of aten, by base name and overload."""

    def __init__(self) -> None:
        self.by_base: dict[str, dict[str, Any]] = {}
        for schema in torch._C._jit_get_all_schemas():
            if schema.name.startswith("aten::"):
                overloads = self.by_base.setdefault(schema.name[6:], {})
                overloads[schema.overload_name] = schema

    def get(self, name: str) -> Any:
        """The schema of ``name`` (without ``aten::``), or None where this torch lacks it."""
        base, _, overload = name.partition(".")
        return self.by_base.get(base, {}).get(overload)

    def derived(self, name: str) -> Iterator[tuple[str, Any]]:
        """Names and schemas of the ``out`` and in-place forms of a functional schema."""
        schema = self.get(name)
        if schema is None or any(_written(a) for a in schema.arguments):
            return
        base = name.partition(".")[0]
        inputs = [_signature(a) for a in schema.arguments]
        for target in (base, base + "_"):
            for overload, other in self.by_base.get(target, {}).items():
                full = f"{target}.{overload}" if overload else target
                if full == name or not any(_written(a) for a in other.arguments):
                    continue
                if [_signature(a) for a in other.arguments if not a.is_out] == inputs:
                    yield full, other


def out_form(name: str, schema: Any, fn: Function) -> Function:
    """The ``out`` form of a functional override."""
    names = [a.name for a in schema.arguments if a.is_out]
    check = Meta(name)

    if len(names) == 1:
        (only,) = names

        def out_one(*args: Any, **kwargs: Any) -> Any:
            out = kwargs.pop(only)
            result = fn(*args, **_adopt_dtype(schema, kwargs, out))
            _write(out, result, check, args, {**kwargs, only: out})
            return out

        return out_one

    def out_many(*args: Any, **kwargs: Any) -> Any:
        outs = tuple(kwargs.pop(n) for n in names)
        results = fn(*args, **kwargs)
        full = {**kwargs, **dict(zip(names, outs, strict=True))}
        for out, result in zip(outs, results, strict=True):
            _write(out, result, check, args, full)
        return outs

    return out_many


def inplace_form(name: str, fn: Function) -> Function:
    """The in-place form of a functional override."""
    check = Meta(name)

    def inplace(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = fn(self, *args, **kwargs)
        if result.shape != self.shape or result.dtype != self.dtype:
            check((self, *args), kwargs)
        return self.copy_(result)

    return inplace


class Meta:
    """Runs an operation on meta tensors, for its checks and warnings only."""

    __slots__ = ("_name", "_op")

    def __init__(self, name: str) -> None:
        self._name = name
        self._op: Stock | None = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises what torch raises for these arguments."""
        if self._op is None:
            self._op = Stock(self._name, "Meta")
        self._op(*map(_to_meta, args), **{k: _to_meta(v) for k, v in kwargs.items()})


def _write(
    out: torch.Tensor,
    result: torch.Tensor,
    check: Meta,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if out.shape != result.shape or out.dtype != result.dtype or out.device != result.device:
        check(args, kwargs)
        if out.shape != result.shape:
            out.resize_(result.shape)
    out.copy_(result)


def _adopt_dtype(schema: Any, kwargs: dict[str, Any], out: torch.Tensor) -> dict[str, Any]:
    # A reduction without an explicit dtype computes in the dtype of its target.
    if kwargs.get("dtype") is None and any(a.name == "dtype" for a in schema.arguments):
        return {**kwargs, "dtype": out.dtype}
    return kwargs


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_meta, value))
    return value


def _written(argument: Any) -> bool:
    info = argument.alias_info
    return bool(info is not None and info.is_write)


def _signature(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)
