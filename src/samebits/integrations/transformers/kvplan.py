"""Sizes and memory of a KV cache, known before the first request."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from samebits.errors import CapacityError, SettingError, ShapeError

Form = Literal["full", "int8", "fp8"]
#: How keys and values are stored, and the largest number of that type. None: as they come.
STORED: dict[str, tuple[torch.dtype, float] | None] = {
    "full": None,
    "int8": (torch.int8, 127.0),
    "fp8": (torch.float8_e4m3fn, 448.0),
}
SCALE = torch.float32


@dataclass(frozen=True)
class LayerShape:
    """What a layer keeps of a token: `heads` keys of `key_dim` and values of `value_dim`."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def numbers(self) -> int:
        """Keys and values together."""
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True)
class CachePlan:
    """A cache of keys and values [batch, heads, length, dim] for each layer.

    Attributes:
        layers: shapes, one for each layer.
        form: "full" keeps `dtype`; "int8" and "fp8" (e4m3) have one fp32 scale for each token, head
            and of key and value.
        dtype: what attention reads.
    """

    layers: tuple[LayerShape, ...]
    batch: int
    length: int
    form: Form
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        if self.form not in STORED:
            raise SettingError(f"KV cache: form={self.form!r}: use one of {', '.join(STORED)}")
        if min(self.batch, self.length, len(self.layers)) < 1:
            raise ShapeError(
                f"KV cache: {len(self.layers)} layers, batch={self.batch} and length={self.length} "
                "must be at least 1"
            )

    @property
    def token_bytes(self) -> int:
        """What one token of one sequence takes in all layers."""
        stored = STORED[self.form]
        numbers = sum(layer.numbers for layer in self.layers)
        if stored is None:
            return numbers * self.dtype.itemsize
        scales = 2 * sum(layer.heads for layer in self.layers)
        return numbers * stored[0].itemsize + scales * SCALE.itemsize

    @property
    def workspace(self) -> tuple[int, int]:
        """Numbers of a token's keys and of its values in the largest layers, where a layer has to
        be expanded for attention; one area is shared by all.
        """
        if STORED[self.form] is None:
            return 0, 0
        return (
            max(layer.heads * layer.key_dim for layer in self.layers),
            max(layer.heads * layer.value_dim for layer in self.layers),
        )

    @property
    def row_bytes(self) -> int:
        """All that is allocated for one token of one sequence."""
        return self.token_bytes + sum(self.workspace) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """All that is allocated."""
        return self.batch * self.length * self.row_bytes

    def check(self, free: int | None = None) -> None:
        """Raises unless the cache fits into `free` bytes; None: what the device has free now.

        Raises:
            CapacityError: with the sizes that would fit.
        """
        free = free_memory(self.device) if free is None else free
        if self.bytes <= free:
            return
        name = str(self.dtype).removeprefix("torch.")
        row = self.row_bytes
        fits = {"length": free // (self.batch * row), "batch": free // (self.length * row)}
        options = [f"{what}={most}" for what, most in fits.items() if most]
        for form in ("int8", "fp8"):
            smaller = replace(self, form=form)
            if self.form == "full" and smaller.bytes <= free:
                options.append(f'form="{form}" ({_size(smaller.bytes)})')
        raise CapacityError(
            f"a KV cache of {_size(self.bytes)} ({self.batch} sequences of {self.length} tokens, "
            f"{len(self.layers)} layers, {self.row_bytes} bytes a token, {name}, {self.form}) does "
            f"not fit into the {_size(free)} that are free on {self.device}. What would: "
            f"{', '.join(options) or 'a smaller model'}"
        )


def _size(count: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 2**power:
            return f"{count / 2**power:.1f} {unit}"
    return f"{count} bytes"


def free_memory(device: torch.device) -> int:
    """Bytes that an allocation on `device` can have."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + reserved)
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def plan_cache(
    model: Any, *, batch: int, length: int, form: Form = "full", dtype: torch.dtype | None = None
) -> CachePlan:
    """The cache that a model needs for `batch` sequences of up to `length` tokens each.

    What a layer keeps is seen by running the model on one token. Layers that attend to a window
    keep all tokens too: leaves then stand where they always stand.

    Args:
        model: a causal language model of transformers.
        dtype: what attention reads; that of the model if None.

    Raises:
        SettingError, ShapeError: see `CachePlan`; the model keeps something else than keys and
            values.
    """
    return CachePlan(_layers(model), batch, length, form, dtype or model.dtype, model.device)


@torch.no_grad()
def _layers(model: Any) -> tuple[LayerShape, ...]:
    if model.config.is_encoder_decoder:
        raise SettingError("KV cache: an encoder's keys have a length of their own")
    cache = DynamicCache(config=model.config)
    others = {type(layer).__name__ for layer in cache.layers if not isinstance(layer, DynamicLayer)}
    others |= {type(x).__name__ for x in cache.layers if hasattr(x, "update_conv_state")}
    if others:
        raise SettingError(f"KV cache: {', '.join(sorted(others))} keeps another state")
    names = inspect.signature(model.forward).parameters
    past = {"cache" if "cache" in names else "past_key_values": cache}
    model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=True, **past)
    kept = [(layer.keys, layer.values) for layer in cache.layers]
    return tuple(LayerShape(k.shape[1], k.shape[3], v.shape[3]) for k, v in kept)
