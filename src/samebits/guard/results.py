"""Results of operations as bytes: compared, described, replaced in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from samebits import bits
from samebits.guard.events import Operand


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result: it is one, or a tuple of some and None."""
    parts = result if isinstance(result, tuple) else (result,)
    return [x for x in parts if isinstance(x, torch.Tensor)]


def same(a: Any, b: Any) -> bool:
    """Whether two results have the same bytes."""
    pairs = list(zip(tensors(a), tensors(b), strict=True))
    return all(torch.equal(bits.view(x), bits.view(y)) for x, y in pairs)


def difference(a: Any, b: Any) -> str:
    """How the bytes of two results differ, for people; empty if they do not."""
    found = []
    for x, y in zip(tensors(a), tensors(b), strict=True):
        x, y = bits.view(x), bits.view(y)
        where = (x != y).nonzero()
        if len(where):
            at = tuple(where[0].tolist())
            mask = (1 << 8 * x.element_size()) - 1
            got, want = (f"0x{int(v[at]) & mask:0{2 * v.element_size()}x}" for v in (x, y))
            found.append(
                f"{len(where)} of {x.numel()} elements, the first at {list(at)}: {got}, not {want}"
            )
    return "; ".join(found)


def copied(result: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a result, kept from what comes."""
    return tuple(x.clone() for x in tensors(result))


def replace(result: Any, by: Any) -> None:
    """Overwrites the memory of `result`, so that every view of it has the bytes of `by`."""
    with torch.no_grad():
        for x, y in zip(tensors(result), tensors(by), strict=True):
            x.copy_(y)


def checksum(x: torch.Tensor) -> int:
    """The sum of the integer view of `x` modulo 2**64: exact, and the same in any order."""
    return int(bits.view(x).sum(dtype=torch.int64)) & (1 << 64) - 1


def operands(arguments: Iterable[tuple[str, Any]]) -> tuple[tuple[Operand, ...], dict[str, Any]]:
    """The tensors among a call's arguments, described and by name; also those inside of objects."""
    found: dict[str, torch.Tensor] = {}
    for name, value in arguments:
        if isinstance(value, torch.Tensor):
            found[name] = value
        else:
            inner = getattr(value, "__dict__", {})
            found |= {f"{name}.{k}": v for k, v in inner.items() if isinstance(v, torch.Tensor)}
    described = tuple(
        Operand(
            name,
            tuple(x.shape),
            tuple(x.stride()),
            str(x.dtype).removeprefix("torch."),
            checksum(x),
        )
        for name, x in found.items()
    )
    return described, found
