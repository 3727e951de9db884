"""What is not covered is refused with a clear error; edge shapes have documented results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_cases import qkv

from samebits.errors import DTypeError, ShapeError, UncoveredError
from samebits.ops.attention import attention, attention_paged, attention_varlen
from samebits.ops.attention import paged as paged_cache

Q, K, V = qkv(0, 1, 4, 2, 3, 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": Q.double()}, "float64"),
        ({"k": K.half()}, "q is float32 but k is float16"),
        ({"v": V.to(torch.complex64)}, "complex64"),
        ({"q": Q.to(torch.int64)}, "int64"),
        ({"q": Q.to_sparse()}, "sparse"),
        ({"q": Q.to("meta")}, "meta"),
        ({"k": K.to("meta")}, "meta"),
        ({"v": torch.quantize_per_tensor(V, 0.1, 0, torch.qint8)}, "qint8"),
        ({"q": [1.0]}, "list"),
        ({"q": torch.nested.nested_tensor([Q[0]])}, "nested"),
        ({"mask": torch.zeros(3, 5, dtype=torch.int32)}, "int32"),
        ({"mask": torch.zeros(3, 5).to_sparse()}, "sparse"),
        ({"mask": torch.zeros(3, 5, device="meta")}, "meta"),
        ({"sinks": torch.zeros(4, dtype=torch.int64)}, "sinks"),
        ({"q_start": torch.zeros(1)}, "q_start"),
    ],
)
def test_kinds_of_tensors(change: dict[str, Any], words: str) -> None:
    call: dict[str, Any] = {"q": Q, "k": K, "v": V} | change
    with pytest.raises(DTypeError, match=words):
        attention(call.pop("q"), call.pop("k"), call.pop("v"), **call)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": Q[..., :7]}, "head dim"),
        ({"v": V[:, :, :4]}, "5 keys but v has 4"),
        ({"v": V[:, :1]}, "2 heads but v has 1"),
        ({"q": Q[:, :3]}, "multiple"),
        ({"enable_gqa": False}, "enable_gqa"),
        ({"k": K.expand(3, -1, -1, -1), "q": Q.expand(2, -1, -1, -1)}, "broadcast"),
        ({"q": Q[0, 0, 0]}, "at least"),
        ({"mask": torch.ones(3, 4, dtype=torch.bool)}, "does not broadcast"),
        ({"mask": torch.ones(1, 1, 1, 3, 5, dtype=torch.bool)}, "does not broadcast"),
        ({"causal": True}, "q_start=2"),
        ({"window": 2}, "q_start=2"),
        ({"window": 0}, "window"),
        ({"softcap": 0.0}, "softcap"),
        ({"scale": float("nan")}, "scale"),
        ({"sinks": torch.zeros(3)}, "sinks"),
        ({"q_start": torch.zeros(2, dtype=torch.int64)}, "q_start"),
    ],
)
def test_shapes(change: dict[str, Any], words: str) -> None:
    call: dict[str, Any] = {"q": Q, "k": K, "v": V} | change
    with pytest.raises(ShapeError, match=words):
        attention(call.pop("q"), call.pop("k"), call.pop("v"), **call)


def test_empty() -> None:
    for shape in [(0, 4, 3, 5), (1, 4, 0, 5), (1, 4, 3, 0)]:
        batch, heads, q_len, kv_len = shape
        q, k, v = qkv(0, batch, heads, 2, q_len, kv_len)
        out = attention(q, k, v)
        assert torch.equal(out, torch.zeros(batch, heads, q_len, 16))
    q, k, v = Q[..., :0], K[..., :0], V
    assert torch.allclose(attention(q, k, v)[0, 0, 0], V[0, 0].mean(0))  # D = 0: all scores are 0
    assert attention(Q, K, V[..., :0]).shape == (1, 4, 3, 0)


def test_nan_in_a_mask_reaches_its_row_only() -> None:
    mask = torch.zeros(3, 5)
    mask[1, 2] = float("nan")
    out = attention(Q, K, V, mask=mask)
    assert out[:, :, 1].isnan().all()
    assert not out[:, :, [0, 2]].isnan().any()


def test_dimensions() -> None:
    """2-D to 5-D, as torch takes them."""
    want = attention(Q, K, V)
    assert torch.equal(attention(Q[0], K[0], V[0]), want[0])
    assert torch.equal(attention(Q[0, 0], K[0, 0], V[0, 0]), want[0, 0])
    five = attention(Q.expand(2, 3, 4, 3, 16), K.expand(2, 1, 2, 5, 16), V)
    assert five.shape == (2, 3, 4, 3, 16)
    assert all(torch.equal(five[i, j], want[0]) for i in range(2) for j in range(3))
    mask = torch.rand(2, 3, 1, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.6
    masked = attention(Q.expand(2, 3, 4, 3, 16), K, V, mask=mask)
    assert torch.equal(masked[1, 2], attention(Q, K, V, mask=mask[1, 2])[0])


@pytest.mark.parametrize(
    ("cu_q", "cu_k"),
    [([0, 2], [0, 5]), ([0, 4, 3], [0, 2, 5]), ([1, 3], [0, 5]), ([0, 3], [0, 2, 5]), ([], [0, 5])],
)
def test_offsets(cu_q: list[int], cu_k: list[int]) -> None:
    q, k, v = (x[0].transpose(0, 1) for x in (Q, K, V))
    with pytest.raises(ShapeError):
        attention_varlen(q, k, v, torch.tensor(cu_q, dtype=torch.int64), torch.tensor(cu_k))


def test_pages() -> None:
    q, cache, cu = Q[0].transpose(0, 1), torch.zeros(4, 2, 2, 16), torch.tensor([0, 3])
    table, lens = torch.tensor([[0, 3, 1]]), torch.tensor([5])
    assert attention_paged(q, cache, cache, table, lens, cu).shape == (3, 4, 16)
    for bad in ({"table": table + 1}, {"table": -table}, {"lens": lens + 2}, {"lens": -lens}):
        call = {"table": table, "lens": lens} | bad
        with pytest.raises(ShapeError):
            attention_paged(q, cache, cache, call["table"], call["lens"], cu)
    with pytest.raises(DTypeError, match="block_table"):
        attention_paged(q, cache, cache, table.float(), lens, cu)


def test_packed_gradients_are_refused() -> None:
    q, k, v = (x[0].transpose(0, 1) for x in (Q, K, V))
    with pytest.raises(UncoveredError, match="no backward"):
        attention_varlen(
            q.detach().requires_grad_(), k, v, torch.tensor([0, 3]), torch.tensor([0, 5])
        )


def test_out_is_not_what_is_still_read() -> None:
    """Nor a part of it. Memory between an operand's rows may be."""
    fused = torch.randn(3, 5, 4, 16, generator=torch.Generator().manual_seed(0))
    q, k, v, out, spare = fused.unbind(1)  # [3, 4, 16] each, of rows of 320
    cu, table = torch.tensor([0, 3]), torch.tensor([[0]])
    pages, wants = (k.unsqueeze(0), v.unsqueeze(0)), attention_varlen(q, k, v, cu, cu, causal=True)

    def paged(out: torch.Tensor) -> Any:
        return attention_paged(q, *pages, table, torch.tensor([3]), cu, out=out)

    def varlen(out: torch.Tensor) -> Any:
        return attention_varlen(q, k, v, cu, cu, causal=True, out=out)

    def of_a_step(out: torch.Tensor) -> torch.Tensor:
        step = paged_cache.step(
            "attention_paged", table, torch.tensor([3]), cu, rows=3, pages=1, page=3
        )
        paged_cache.attend(
            q, *pages, step, scale=0.25, causal=True, window=None, softcap=None, sinks=None, out=out
        )
        return out

    for call in (varlen, paged, of_a_step):
        for name, x in (("q", q), ("k", k), ("v", v)):
            shifted = fused.as_strided(x.shape, x.stride(), x.storage_offset() + 8)
            for taken in (x, shifted):
                with pytest.raises(ShapeError, match=f"out shares memory with {name}"):
                    call(taken)
        assert torch.equal(call(out), wants) and torch.equal(call(spare), wants)


def test_out_may_lie_between_the_heads_that_are_read() -> None:
    """Its numbers and theirs take turns at every head, not at every row."""
    heads = torch.randn(3, 4, 4, 16, generator=torch.Generator().manual_seed(0))
    q, k, v, out = heads.unbind(2)
    cu = torch.tensor([0, 3])
    wants = attention_varlen(q, k, v, cu, cu)
    assert torch.equal(attention_varlen(q, k, v, cu, cu, out=out), wants)
    with pytest.raises(ShapeError, match="out shares memory with v"):
        attention_varlen(q, k, v, cu, cu, out=heads.flatten(2)[..., 40:56])
