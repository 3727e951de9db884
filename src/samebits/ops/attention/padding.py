"""Padding on the left, taken away before leaves are counted.

Where leaves have absolute positions, keys that nobody sees in front of a sequence would move the
edges of its leaves and so its bits. They are dropped: each sequence starts at its first real key,
as it does alone. Nothing waits for the GPU, and shapes stay what they were.
"""

from __future__ import annotations

import torch


def without_padding(
    k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values and mask of every sequence moved left by the number of its leading unseen keys.

    A key that only its own query sees is padding as well: models let a padded query see itself, so
    that its row is not empty. The places that become free at the end are masked.

    Args:
        k: [B, G, S, D].
        v: [B, G, S, Dv].
        mask: [B or 1, H or 1, T, S], bool (True: visible) or additive.
    """
    batch, _, keys, _ = k.shape
    queries = mask.shape[-2]
    if not keys or not queries:
        return k, v, mask
    columns = torch.arange(keys, device=k.device)
    seen = mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min
    own = columns == columns[keys - queries :, None] if queries <= keys else None
    seen = (seen if own is None else seen & ~own).any(1).any(1)  # [B or 1, S]
    start = torch.where(seen.any(1), seen.to(torch.int32).argmax(1), keys - 1)
    source = (columns + start[:, None]).expand(batch, keys)
    place = source.clamp(max=keys - 1)[:, None, :, None]
    k = k.gather(2, place.expand(*k.shape[:3], k.size(3)))
    v = v.gather(2, place.expand(*v.shape[:3], v.size(3)))
    mask = mask.expand(batch, *mask.shape[1:])
    moved = mask.gather(3, place.transpose(2, 3).expand(mask.shape))
    hidden = False if mask.dtype is torch.bool else float("-inf")
    return k, v, torch.where((source < keys)[:, None, None], moved, hidden)
