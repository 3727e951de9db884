"""Dataclasses out of the dictionaries and lists that JSON gives."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def build(cls: type[T], data: Any) -> T:
    """The dataclass whose ``dataclasses.asdict`` went through JSON as `data`.

    Raises:
        ValueError: fields are missing, or others are there.
    """
    hints = typing.get_type_hints(cls)
    if not isinstance(data, dict) or not data.keys() <= hints.keys():
        raise ValueError(f"something else than a {cls.__name__}")
    values = {key: _value(hints[key], value) for key, value in data.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None


def _value(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value)
    if typing.get_origin(hint) is tuple:
        kinds = typing.get_args(hint)
        each = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        return tuple(map(_value, each, value))
    return value
