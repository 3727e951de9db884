"""What is stored in a paged cache is what was given, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch

from samebits import bits
from samebits.errors import DTypeError, ShapeError
from samebits.ops import store_paged

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("rows", [5, 700])
@pytest.mark.parametrize("page", [16, 48])
@pytest.mark.parametrize(("d", "dv"), [(128, 128), (24, 40)])
def test_rows_go_to_their_slots(rows: int, page: int, d: int, dv: int) -> None:
    g = torch.Generator().manual_seed(rows)
    qkv = torch.randn(rows + 2, 3 * (d + dv), generator=g).bfloat16().to(DEVICE)
    k, v = (x.unflatten(1, (3, -1)) for x in qkv.split((3 * d, 3 * dv), 1))
    pages = 2 * -(-rows // page)
    cache = torch.full((pages, 3, page, d + dv), float("nan")).bfloat16().to(DEVICE)
    k_cache, v_cache = cache.transpose(1, 2).split((d, dv), -1)
    slots = torch.randperm(pages * page, generator=g)[:rows].to(DEVICE)
    slots[3] = -1  # padding
    want = cache.cpu().transpose(1, 2).flatten(0, 1).clone()
    kept = (slots >= 0).cpu()
    want[slots.cpu()[kept]] = torch.cat((k, v), -1)[:rows].cpu()[kept]
    store_paged(k, v, k_cache, v_cache, slots)
    assert bits.equal(cache.cpu().transpose(1, 2).flatten(0, 1).contiguous(), want)


def test_what_does_not_fit_is_refused() -> None:
    k, cache = torch.zeros(4, 2, 16), torch.zeros(3, 16, 2, 16)
    slots = torch.arange(4)
    with pytest.raises(ShapeError, match="store_paged"):
        store_paged(k, k, cache, cache, torch.arange(5))
    with pytest.raises(ShapeError, match="store_paged"):
        store_paged(k, k, cache[..., :8], cache, slots)
    with pytest.raises(DTypeError, match="one dtype"):
        store_paged(k, k.double(), cache, cache, slots)
    with pytest.raises(DTypeError, match="int32"):
        store_paged(k, k, cache, cache, slots.float())
