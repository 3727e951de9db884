"""Sizes and memory of a KV cache, known before the first request."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

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
class CachePlan:
    """A cache of `layers` layers, each [batch, heads, length, dim].

    Attributes:
        heads: KV heads.
        key_dim, value_dim: of a head.
        form: "full" keeps `dtype`; "int8" and "fp8" (e4m3) have one fp32 scale for each token, head
            and of key and value.
        dtype: what attention reads.
    """

    layers: int
    batch: int
    length: int
    heads: int
    key_dim: int
    value_dim: int
    form: Form
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        if self.form not in STORED:
            raise SettingError(f"KV cache: form={self.form!r}: use one of {', '.join(STORED)}")
        if min(self.layers, self.batch, self.length, self.heads, self.key_dim, self.value_dim) < 1:
            raise ShapeError(f"KV cache: every size must be at least 1: {self}")

    @property
    def token_bytes(self) -> int:
        """What one token of one sequence takes in all layers."""
        stored = STORED[self.form]
        if stored is None:
            head = (self.key_dim + self.value_dim) * self.dtype.itemsize
        else:
            head = (self.key_dim + self.value_dim) * stored[0].itemsize + 2 * SCALE.itemsize
        return self.layers * self.heads * head

    @property
    def workspace_bytes(self) -> int:
        """Keys and values of one layer as attention reads them; shared by all layers."""
        if STORED[self.form] is None:
            return 0
        row = self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize
        return self.batch * self.length * row

    @property
    def bytes(self) -> int:
        """All that is allocated."""
        return self.batch * self.length * self.token_bytes + self.workspace_bytes

    def check(self, free: int | None = None) -> None:
        """Raises unless the cache fits into `free` bytes; None: what the device has free now.

        Raises:
            CapacityError: with the sizes that would fit.
        """
        free = free_memory(self.device) if free is None else free
        if self.bytes <= free:
            return
        name = str(self.dtype).removeprefix("torch.")
        row = self.token_bytes + self.workspace_bytes // (self.batch * self.length)
        options = [f"length={free // (self.batch * row)}", f"batch={free // (self.length * row)}"]
        for form in ("int8", "fp8"):
            smaller = replace(self, form=form)
            if self.form == "full" and smaller.bytes <= free:
                options.append(f'form="{form}" ({_size(smaller.bytes)})')
        raise CapacityError(
            f"a KV cache of {_size(self.bytes)} ({self.batch} sequences of {self.length} tokens, "
            f"{self.layers} layers, {self.heads} heads of {self.key_dim} + {self.value_dim}, "
            f"{name}, {self.form}) does not fit into the {_size(free)} that are free on "
            f"{self.device}. What would: {', '.join(options)}"
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

    Args:
        model: a causal language model of transformers. Layers that attend to a window keep all
            tokens too: leaves then stand where they always stand.
        dtype: what attention reads; that of the model if None.

    Raises:
        SettingError, ShapeError: see `CachePlan`; the model keeps something else than keys and
            values.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ())
    if other := sorted(kinds - {"full_attention", "sliding_attention", "chunked_attention"}):
        raise SettingError(f"KV cache: layers of kind {', '.join(other)} keep another state")
    query_heads = config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or query_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // query_heads
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    return CachePlan(
        config.num_hidden_layers - shared, batch, length, heads,
        getattr(config, "qk_head_dim", None) or dim, getattr(config, "v_head_dim", None) or dim,
        form, dtype or model.dtype, model.device,
    )  # fmt: skip
