"""Operations computed under their contracts, in the middle of a run of stock torch.

To exchange one operation alone proves cause, where to see that two things change together does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from samebits.check.cause.capture import Operation
from samebits.check.cause.factors import same
from samebits.check.cause.marks import Marks, Request
from samebits.check.tape import Key
from samebits.errors import SamebitsError
from samebits.mode import deterministic, install
from samebits.mode.coverage import classify
from samebits.mode.table import Kind

Twins = Mapping[str, Callable[..., Any]]
"""Twins of operations that are not torch's: ``{"library::name": function}``."""

#: Kernels of attention on a GPU. Their contract is that of the composite above them.
_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": 5,
    "aten::_scaled_dot_product_efficient_attention": 5,
    "aten::_scaled_dot_product_cudnn_attention": 6,
}


class NoTwinError(SamebitsError):
    """No contract covers an operation, so it cannot be exchanged; the message says why."""


def twin(func: Any, twins: Twins, samples: Sequence[Operation]) -> Callable[..., Any]:
    """What computes an operation under its contract: arguments and results are the operation's.

    The override is called by itself where that gives the samples the bits that it gives with the
    switch on; turning the switch for each call would take 30 ms.

    Args:
        func: the operation.
        twins: of operations that are not torch's.
        samples: calls of the operation.

    Raises:
        NoTwinError: there is none.
        UncoveredError: its contract does not cover the samples' operands.
    """
    name = func._schema.name
    if name in twins:
        return twins[name]
    if name in _ATTENTION:
        return lambda *args, **kwargs: _attention(func, *args, **kwargs)
    if name.startswith("samebits::"):
        raise NoTwinError(f"{name} is computed under its contract already")
    overload = func._schema.overload_name
    full = name.removeprefix("aten::") + (f".{overload}" if overload else "")
    key = "CUDA" if any(t.is_cuda for t in samples[0].operands) else "CPU"
    group = classify(full, install.covered(key), key)
    if not name.startswith("aten::") or group.kind is not Kind.COVERED:
        why = group.why if name.startswith("aten::") else "it is not one of torch's operations"
        raise NoTwinError(f"{name} has no contract: {why}")

    def switched(*args: Any, **kwargs: Any) -> Any:
        with deterministic():
            return func(*args, **kwargs)

    override = install.overrides().get((full, key))
    if override is not None and all(
        same(sample.run(func=override), sample.run(func=switched)) for sample in samples
    ):
        return override
    return switched


def _attention(func: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    """A fused kernel's results with the attention itself from the contract."""
    output = func(q, k, v, *args, **kwargs)
    given = dict(zip([a.name for a in func._schema.arguments[3:]], args, strict=False)) | kwargs
    with deterministic():
        found = functional.scaled_dot_product_attention(
            q, k, v, given.get("attn_bias"), is_causal=bool(given.get("is_causal")),
            scale=given.get("scale"), enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
    return (found, *output[1:])


class Swap(Marks):
    """Marks modules while some operations are computed by their twins.

    Args:
        module, request, like: as in `Marks`.
        chosen: gives the twin of an operation, by key and operation, or None to leave it.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        request: Request,
        chosen: Callable[[Key, Any], Callable[..., Any] | None],
        *,
        like: Marks | None = None,
    ) -> None:
        super().__init__(module, request, like=like, operations=True)
        self.chosen = chosen
        self.replaced = 0

    def entered(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Marks a module's arguments."""
        self._mark(key, {**dict(enumerate(args)), **kwargs})

    def operate(self, key: Key, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation, or its twin."""
        twin = self.chosen(key, func)
        if twin is None:
            return func(*args, **kwargs)
        self.replaced += 1
        with self.busy():
            return twin(*args, **kwargs)
