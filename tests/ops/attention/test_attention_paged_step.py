"""A step of a paged cache on a CPU: stored rows, and what is refused before a kernel reads."""

from __future__ import annotations

import pytest
import torch

from samebits import bits, ops
from samebits.errors import ShapeError
from samebits.ops.attention import paged

PAGES, PAGE, HEADS, D = 7, 4, 2, 16
LENS = [5, 9, 1]
TABLE = torch.tensor([[3, 0, -1], [6, 1, 2], [5, -1, -1]])


def caches(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [pages, page, heads, D] of a tensor whose pages are [heads, 2, page, D]."""
    whole = torch.full((PAGES, HEADS, 2, PAGE, D), float("nan"), dtype=dtype)
    planes = whole.permute(2, 0, 3, 1, 4)
    return planes[0], planes[1]


def slots() -> torch.Tensor:
    return torch.tensor(
        [int(TABLE[i, t // PAGE]) * PAGE + t % PAGE for i, n in enumerate(LENS) for t in range(n)]
    )


def test_stored_rows_are_what_attention_reads() -> None:
    g = torch.Generator().manual_seed(1)
    total = sum(LENS)
    qkv = torch.randn(total, 4 + 2 + 2, D, generator=g).to(torch.bfloat16)
    q, k, v = qkv.split([4, 2, 2], 1)
    cu = torch.tensor([0, *torch.tensor(LENS).cumsum(0).tolist()])
    k_cache, v_cache = caches()
    ops.store_paged(k, v, k_cache, v_cache, slots())
    step = paged.step("step", TABLE, torch.tensor(LENS), cu, rows=total, pages=PAGES, page=PAGE)
    frame = torch.full((total, 6, D), float("nan"), dtype=torch.bfloat16)
    out = frame[:, 1:5]
    paged.attend(
        q, k_cache, v_cache, step, scale=D**-0.5, causal=True, window=None, softcap=None,
        sinks=None, out=out,
    )  # fmt: skip
    want = ops.attention_varlen(q, k, v, cu, cu, causal=True)
    assert isinstance(want, torch.Tensor) and bits.equal(out.contiguous(), want)
    assert bool(frame[:, [0, 5]].isnan().all())
    again = ops.attention_paged(q, k_cache, v_cache, TABLE, torch.tensor(LENS), cu)
    assert isinstance(again, torch.Tensor) and bits.equal(again, want)


def test_a_row_without_a_slot_is_skipped_and_one_outside_is_refused() -> None:
    k_cache, v_cache = caches()
    x = torch.ones(2, HEADS, D, dtype=torch.bfloat16)
    ops.store_paged(x, x, k_cache, v_cache, torch.tensor([-1, 9]))
    assert int((~k_cache.isnan()).sum()) == int((~v_cache.isnan()).sum()) == HEADS * D
    with pytest.raises(ShapeError, match="outside"):
        ops.store_paged(x, x, k_cache, v_cache, torch.tensor([PAGES * PAGE, 0]))


def test_caches_of_another_size_than_the_step_are_refused() -> None:
    k_cache, v_cache = caches()
    step = paged.step(
        "step", TABLE, torch.tensor(LENS), torch.tensor([0, 1, 2, 3]), rows=3, pages=PAGES + 1,
        page=PAGE,
    )  # fmt: skip
    q = torch.ones(3, 4, D, dtype=torch.bfloat16)
    with pytest.raises(ShapeError, match="do not fit a step"):
        paged.attend(
            q, k_cache, v_cache, step, scale=1.0, causal=True, window=None, softcap=None,
            sinks=None, out=torch.empty_like(q),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": 4}, "cu_q"),
        ({"pages": 6}, "outside 0..5"),
        ({"page": 1}, "seq_lens must lie"),
        ({"q_start": torch.tensor([0])}, "q_start"),
    ],
)
def test_a_step_that_reads_elsewhere_is_refused(change: dict[str, object], text: str) -> None:
    arguments = {"rows": 3, "pages": PAGES, "page": PAGE} | change
    with pytest.raises(ShapeError, match=text):
        paged.step("step", TABLE, torch.tensor(LENS), torch.tensor([0, 1, 2, 3]), **arguments)  # type: ignore[arg-type]
