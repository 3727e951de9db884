"""A KV cache that is allocated once, keeps all tokens, and can be compact.

In the compact forms a token's key and value are int8 or e4m3, with one scale for each (token,
head), a function of that token's numbers alone. Attention always reads what was stored, also right
after a token was computed: so prefill, chunks and decode see the same keys, in any batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from samebits.errors import ShapeError
from samebits.guard.cache import Sums
from samebits.integrations.transformers.kvplan import (
    SCALE,
    STORED,
    CachePlan,
    Form,
    LayerShape,
    plan_cache,
)


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """The cache among the keywords of a forward pass, or None: releases name it differently."""
    return arguments.get("cache", arguments.get("past_key_values"))


def compress(
    x: torch.Tensor, kind: torch.dtype, largest: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers [..., D] as `kind`, and one fp32 scale [..., 1] for each D of them.

    The scale is the largest magnitude over `largest`, or 1 where all are 0. Every step is one IEEE
    operation of fp32; int8 rounds to even.
    """
    wide = x.to(SCALE)
    top = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(top == 0, 1.0, top / largest)
    units = wide / scale
    return (units.round() if kind is torch.int8 else units).to(kind), scale


def expand(stored: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Writes ``stored * scale``, rounded once in fp32 and once to its dtype, to `out`."""
    return out.copy_(stored.to(SCALE) * scale)


class _Store:
    """Keys, or values, of one layer: [batch, heads, length, dim] in the plan's form."""

    def __init__(
        self, plan: CachePlan, heads: int, dim: int, workspace: torch.Tensor | None
    ) -> None:
        shape = (plan.batch, heads, plan.length)
        self.form = STORED[plan.form]
        kind = plan.dtype if self.form is None else self.form[0]
        self.data = torch.zeros(*shape, dim, dtype=kind, device=plan.device)
        self.scale: torch.Tensor | None = None
        self.workspace: torch.Tensor | None = None
        if self.form is not None:
            assert workspace is not None
            self.scale = torch.zeros(*shape, 1, dtype=SCALE, device=plan.device)
            self.workspace = workspace[: self.data.numel()].view_as(self.data)

    def tensors(self) -> list[torch.Tensor]:
        return [self.data] if self.scale is None else [self.data, self.scale]

    def write(self, x: torch.Tensor, begin: int) -> torch.Tensor:
        """Stores columns from `begin` on; returns all columns so far, as attention reads them."""
        rows, end = x.shape[0], begin + x.shape[2]
        if self.form is None:
            self.data[:rows, :, begin:end] = x
            return self.data[:rows, :, :end]
        assert self.scale is not None and self.workspace is not None
        stored, scale = compress(x, *self.form)
        self.data[:rows, :, begin:end] = stored
        self.scale[:rows, :, begin:end] = scale
        return expand(
            self.data[:rows, :, :end], self.scale[:rows, :, :end], self.workspace[:rows, :, :end]
        )


class Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a `KVCache`, with the interface of transformers' layers."""

    is_sliding = False
    is_croppable = True
    is_compileable = False

    def __init__(
        self, plan: CachePlan, shape: LayerShape, areas: tuple[torch.Tensor | None, ...]
    ) -> None:
        super().__init__()
        self.plan, self.shape, self.filled, self.rows = plan, shape, 0, 0
        self._stores = (
            _Store(plan, shape.heads, shape.key_dim, areas[0]),
            _Store(plan, shape.heads, shape.value_dim, areas[1]),
        )
        self.keys, self.values = (store.data for store in self._stores)
        self._sums = Sums(*(x for store in self._stores for x in store.tensors()))
        self.dtype, self.device = plan.dtype, plan.device
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Everything is there already."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends [B, H, T, D]; returns keys and values [B, H, all so far, D].

        Raises:
            ShapeError: they do not fit the plan, or the cache is full.
            GuardError: with ``guard="sample:..."``, what was stored before has changed.
        """
        plan, (rows, heads, new, dim) = self.plan, key_states.shape
        found = LayerShape(heads, dim, value_states.shape[3])
        if found != self.shape or key_states.dtype is not plan.dtype:
            raise ShapeError(
                f"KV cache: planned for {self.shape} in {plan.dtype}, got {found} in "
                f"{key_states.dtype}"
            )
        if rows > plan.batch or (self.filled and rows != self.rows):
            raise ShapeError(
                f"KV cache: {rows} sequences, but "
                + (f"{self.rows} are in it" if self.filled else f"room for {plan.batch}")
            )
        if self.filled + new > plan.length:
            raise ShapeError(
                f"KV cache: {self.filled} + {new} tokens, but room for {plan.length}: plan a "
                "longer one, or reset() it between requests"
            )
        key, value = (
            store.write(x, self.filled)
            for store, x in zip(self._stores, (key_states, value_states), strict=True)
        )
        self._sums.write(rows, self.filled, self.filled + new)
        self.rows, self.filled = rows, self.filled + new
        return key, value

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that the next call will return, and the column of the first."""
        return self.filled + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens so far."""
        return self.filled

    def get_max_length(self) -> int:
        """Tokens that fit."""
        return self.plan.length

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens, as verification of a draft does; the number may be negative."""
        self.filled = max(0, self.filled - abs(tokens_to_remove))

    def reset(self) -> None:
        """Forgets all tokens; memory stays."""
        self.filled = self.rows = 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Gives row i the contents of row ``beam_idx[i]``."""
        for store in self._stores:
            for x in store.tensors():
                kept = x[: self.rows, :, : self.filled]
                kept.copy_(kept.index_select(0, beam_idx.to(x.device)))
        self._sums.move(beam_idx.expand(self.rows))

    def offload(self) -> None:
        """Not moved: it was planned to fit where it is."""

    def prefetch(self) -> None:
        """See `offload`."""


class KVCache(Cache):  # type: ignore[misc]
    """A cache for ``generate(past_key_values=...)``, allocated as planned; `reset` it between
    requests. A smaller batch than planned is fine.

        cache = KVCache.for_model(model, batch=8, length=4096, form="int8")

    Raises:
        CapacityError: it does not fit into the memory that is free.
    """

    def __init__(self, plan: CachePlan) -> None:
        plan.check()
        self.plan = plan
        self._areas: tuple[torch.Tensor | None, ...] = (None, None)
        if any(plan.workspace):
            self._areas = tuple(
                torch.empty(plan.batch * plan.length * n, dtype=plan.dtype, device=plan.device)
                for n in plan.workspace
            )
        super().__init__(layers=[Layer(plan, shape, self._areas) for shape in plan.layers])

    @classmethod
    def for_model(cls, model: Any, *, batch: int, length: int, form: Form = "full") -> KVCache:
        """A cache as `plan_cache` plans it."""
        return cls(plan_cache(model, batch=batch, length=length, form=form))

    @property
    def allocated_bytes(self) -> int:
        """What all tensors take; the plan's number."""
        mine = [x for layer in self.layers for store in layer._stores for x in store.tensors()]
        mine += [x for x in self._areas if x is not None]
        return sum(x.numel() * x.element_size() for x in mine)
