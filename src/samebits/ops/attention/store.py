"""New keys and values into a paged cache: a copy, which rounds nothing."""

from __future__ import annotations

import torch

from samebits.engines.cpu import attention as cpu_engine
from samebits.errors import DTypeError, ShapeError
from samebits.ops.attention import checks

_OP = "store_paged"


def store_paged(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Writes rows of K and V to their slots of the cache that `attention_paged` reads.

    Args:
        k: [T, Hkv, D]; v: [T, Hkv, Dv]; rows behind the last of `slots` are left out.
        k_cache: [pages, page_size, Hkv, D]; v_cache: [pages, page_size, Hkv, Dv], of k's dtype.
        slots: [at most T] int32 or int64, page * page_size + place in the page; a negative one is
            for padding and stores nothing.

    Raises:
        ShapeError, DTypeError: tensors do not fit, or on a CPU a slot is outside of the cache. On a
            GPU the values of `slots` are the caller's responsibility: they are not read back.
    """
    tensors = (k, v, k_cache, v_cache)
    if len({x.dtype for x in tensors}) > 1 or len({x.device for x in (*tensors, slots)}) > 1:
        raise DTypeError(f"{_OP}: k, v and their caches need one dtype and one device")
    if slots.dtype not in (torch.int32, torch.int64):
        raise DTypeError(f"{_OP}: slots are int32 or int64, not {slots.dtype}")
    fits = (
        (k.dim(), v.dim(), k_cache.dim(), v_cache.dim(), slots.dim()) == (3, 3, 4, 4, 1)
        and k.shape[:2] == v.shape[:2]
        and k_cache.shape[:2] == v_cache.shape[:2]
        and k.shape[1:] == k_cache.shape[2:]
        and v.shape[1:] == v_cache.shape[2:]
        and len(slots) <= len(k)
    )
    if not fits:
        raise ShapeError(
            f"{_OP}: k {tuple(k.shape)} and v {tuple(v.shape)} of {tuple(slots.shape)} slots do "
            f"not fit caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )
    checks.writable(_OP, "k_cache", k_cache)
    checks.writable(_OP, "v_cache", v_cache)
    if not slots.numel() or not k.numel() + v.numel():
        return
    k, v = k[: len(slots)].resolve_neg(), v[: len(slots)].resolve_neg()
    if k.is_cuda and all(x.stride(-1) == 1 for x in tensors):
        from samebits.engines.triton.attention.store import store

        store(k, v, k_cache, v_cache, slots.contiguous())
        return
    if k.is_cpu and k_cache.stride(-1) == v_cache.stride(-1) == 1:
        at = slots.to(torch.int64).contiguous()
        if not (cpu_engine.store(k, k_cache, at) and cpu_engine.store(v, v_cache, at)):
            raise ShapeError(
                f"{_OP}: a slot is outside of {k_cache.size(0)} pages of {k_cache.size(1)}"
            )
        return
    rows = (slots >= 0).nonzero().squeeze(1)
    page, place = slots[rows] // k_cache.size(1), slots[rows] % k_cache.size(1)
    k_cache[page, place], v_cache[page, place] = k[rows], v[rows]
