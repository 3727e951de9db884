"""Attention masks as rules: which keys a query sees, said in a few numbers instead of [T, S] bits.

transformers asks a mask function for a tensor and hands it through the model to the attention
function. Ours returns a `Mask`, which has the shape of that tensor but is not written out: the
attention function reads its `Rule`. Any other code that touches it gets the bits it stands for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import masking_utils as stock

Function = Callable[..., Any]
Segments = list[list[tuple[int, int]]]


@dataclass(frozen=True)
class Pattern:
    """What a mask function of transformers says, padding aside.

    Attributes:
        causal: a query sees no later key.
        window: distances from here on are not seen, as in `samebits.ops.attention`; or None.
        packed: [B, T] number of the sequence that a token belongs to; or None.
    """

    causal: bool
    window: int | None = None
    packed: torch.Tensor | None = None


@dataclass
class Rule:
    """Which keys each query of one forward pass sees.

    Columns are numbered as in the batch, padding included; positions count from a sequence's first
    real column.

    Attributes:
        pattern: None if the function is not one of transformers' own: only `write` knows then.
        shape: (B, T, S).
        q_offset: column of the first query; on a GPU a static cache has it in a tensor.
        kv_offset: column of the first key that the cache still holds.
        real: [B, S] bool, False at padding; None if padding needs no attention.
        starts: [B] int64, the first real column; None if all are 0.
        holes: whether padding stands between real tokens.
        write: the dense mask, bool [B, 1, T, S].
    """

    pattern: Pattern | None
    shape: tuple[int, int, int]
    q_offset: int | torch.Tensor
    kv_offset: int
    real: torch.Tensor | None
    starts: torch.Tensor | None
    holes: bool
    write: Callable[[], torch.Tensor]
    _dense: torch.Tensor | None = field(default=None, repr=False)
    _segments: Segments | None = field(default=None, repr=False)

    def dense(self) -> torch.Tensor:
        """The mask, bool [B, 1, T, S]; written once for all layers."""
        if self._dense is None:
            self._dense = self.write()
        return self._dense

    def segments(self) -> Segments:
        """First and last column (exclusive) of the sequences packed into each row."""
        if self._segments is None:
            assert self.pattern is not None and self.pattern.packed is not None
            self._segments = [list(_runs(row)) for row in self.pattern.packed.tolist()]
        return self._segments


def _runs(row: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for i in range(1, len(row) + 1):
        if i == len(row) or row[i] != row[start]:
            yield start, i
            start = i


class Mask(torch.Tensor):
    """A bool mask [B, 1, T, S] that is written out when somebody computes with it."""

    rule: Rule

    @staticmethod
    def __new__(cls, rule: Rule, device: torch.device) -> Mask:
        batch, queries, keys = rule.shape
        make: Any = torch.Tensor._make_wrapper_subclass
        mask: Mask = make(cls, (batch, 1, queries, keys), dtype=torch.bool, device=device)
        mask.rule = rule
        return mask

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def written(x: Any) -> Any:
            return x.rule.dense() if isinstance(x, Mask) else x

        return func(*tree_map(written, args), **tree_map(written, kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Function = stock.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: Any,
) -> torch.Tensor:
    """The mask function that is registered with transformers; arguments are those of its own.

    Args:
        attention_mask: [B, columns] bool, False at padding; None: all are real.

    Returns:
        A `Mask`; while a graph is traced, the dense tensor.
    """
    if isinstance(q_offset, torch.Tensor):  # a static cache counts on in this very tensor
        q_offset = int(q_offset) if q_offset.is_cpu else q_offset.clone()

    def write() -> torch.Tensor:
        dense: torch.Tensor = stock.sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, use_vmap=use_vmap,
            device=device,
        )  # fmt: skip
        return dense

    if torch.compiler.is_compiling():
        return write()
    found = pattern(mask_function)
    real, starts, holes = None, None, False
    if attention_mask is not None:
        real, starts, holes = _padding(
            attention_mask, kv_offset, kv_length, found is not None and found.causal
        )
    rule = Rule(
        found, (batch_size, q_length, kv_length), q_offset, kv_offset, real, starts, holes, write
    )
    return Mask(rule, torch.device(device))


def pattern(function: Function) -> Pattern | None:
    """The pattern of a mask function that transformers has built from its own parts, else None."""
    causal, window, packed = False, None, None
    for part in _parts(function):
        name = getattr(part, "__qualname__", "")
        if part is stock.causal_mask_function:
            causal = True
        elif part is stock.bidirectional_mask_function:
            pass
        elif name == "sliding_window_overlay.<locals>.inner_mask":
            window = _closed_over(part)["sliding_window"]
        elif name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
            window = _closed_over(part)["sliding_window"] + 1
        elif name == "packed_sequence_mask_function.<locals>.inner_mask":
            packed = _closed_over(part)["packed_sequence_mask"]
        else:
            return None
    return Pattern(causal, window, packed)


def _parts(function: Function) -> Iterator[Function]:
    if getattr(function, "__qualname__", "") == "and_masks.<locals>.and_mask":
        for part in _closed_over(function)["mask_functions"]:
            yield from _parts(part)
    else:
        yield function


def _closed_over(function: Function) -> dict[str, Any]:
    return dict(inspect.getclosurevars(function).nonlocals)


def _padding(
    seen: torch.Tensor, kv_offset: int, kv_length: int, causal: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
    """What of the padding matters: real [B, S], starts [B] and holes of a `Rule`.

    Padding behind a sequence does not matter where attention is causal.
    """
    seen = seen[:, : kv_offset + kv_length].to(torch.bool)
    short = kv_offset + kv_length - seen.shape[1]
    if bool(seen.all()) and (causal or not short):
        return None, None, False
    first = seen.to(torch.int8).argmax(1)
    begins = (seen[:, 1:] & ~seen[:, :-1]).sum(1) + seen[:, 0]
    late, holes = torch.stack([(first > 0).any(), (begins > 1).any()]).tolist()
    if causal and not late and not holes:
        return None, None, False
    real = torch.nn.functional.pad(seen, (0, short))[:, kv_offset:]
    return real, first if late else None, holes
