"""The parts of `explain` by themselves: hashes, copies, sweeps, precision, settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits import bits
from samebits.check.cause.capture import copied
from samebits.check.cause.factors import classes
from samebits.check.cause.marks import hashes
from samebits.check.cause.precision import _bounded
from samebits.check.cause.products import Product, _tf32
from samebits.check.cause.settings import settings_now
from samebits.check.tape import Window

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)


@given(st.integers(0, 2**31 - 1), st.integers(0, 6), st.integers(0, 4), st.integers(0, 31))
def test_any_single_bit_changes_the_hash_of_its_token_alone(
    seed: int, token: int, element: int, bit: int
) -> None:
    words = torch.randint(-(2**31), 2**31, (5, 7), generator=torch.Generator().manual_seed(seed))
    x = words.to(torch.int32)
    y = x.clone()
    y[element, token] ^= -(2**31) if bit == 31 else 1 << bit
    a, b = (hashes(t.view(torch.float32), 1) for t in (x, y))
    assert (a != b).nonzero().flatten().tolist() == [token]
    assert hashes(x.view(torch.float32), -1) != hashes(y.view(torch.float32), -1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_hashed(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4).to(dtype)
    assert torch.equal(hashes(x, 0), hashes(x.clone(), 0)) and len(hashes(x, 0)) == 3
    assert len(hashes(x[:0], 0)) == 0


def test_permuted_elements_have_another_hash() -> None:
    x = torch.randn(1, 64)
    assert hashes(x, -1) != hashes(x.flip(1), -1)


@pytest.mark.parametrize(
    "t",
    [
        torch.arange(24.0).reshape(4, 6),
        torch.arange(24.0).reshape(4, 6).mT,
        torch.arange(25.0)[1:].reshape(4, 6),
        torch.arange(48.0).reshape(4, 12)[:, ::2],
        torch.arange(6.0).expand(4, 6),
        torch.tensor(3.0),
        torch.empty(0, 3),
    ],
)
def test_copies_lie_in_memory_like_their_originals(t: torch.Tensor) -> None:
    copy = copied(t)
    assert bits.equal(copy, t) and copy.stride() == t.stride()
    assert copy.untyped_storage().data_ptr() != t.untyped_storage().data_ptr() or not t.numel()
    assert copy.data_ptr() % 64 == t.data_ptr() % 64 or not t.numel()


def test_a_window_finds_the_request() -> None:
    t = torch.arange(3 * 4 * 5 * 2).reshape(3, 4, 5, 2)
    spans = Window(3, 5, ((0, 5), (2, 5), (0, 5)))
    heads = spans.select(t, 1, None)
    assert heads is not None and heads[1] == 1 and torch.equal(heads[0], t[1][:, 2:])
    flat = spans.select(t.reshape(3 * 4, 5, 2), 1, None)
    assert flat is not None and torch.equal(flat[0], t[1][:, 2:])
    rows = spans.select(torch.arange(30).reshape(15, 2), 1, None)
    assert rows is not None and rows[0].tolist() == [[14, 15], [16, 17], [18, 19]]
    assert spans.select(torch.ones(1, 5, 2), 1, None) is None


def test_sweeps_are_told_as_ranges() -> None:
    found = [(1, "first"), (2, "other"), (3, "other"), (4, "second"), (9, "first")]
    assert classes(found) == (
        "1: first run's bits; 2-3: other bits; 4: second run's bits; 9: first run's bits"
    )


def product(y: torch.Tensor, dtype: torch.dtype, device: str = "cpu") -> Product:
    return Product(X.double(), W.double(), None, y.double(), dtype, y.dtype, device)


X = torch.randn(8, 512, generator=torch.Generator().manual_seed(0))
W = torch.randn(32, 512, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("device", ["cpu", "sm_90", "elsewhere"])
def test_every_order_of_additions_stays_within_the_bound(device: str) -> None:
    terms = X[:, None] * W
    orders = {
        "ascending": terms.cumsum(-1)[..., -1],
        "descending": terms.flip(-1).cumsum(-1)[..., -1],
        "library": X @ W.mT,
        "split": sum(a @ b.mT for a, b in zip(X.chunk(8, 1), W.chunk(8, 1), strict=True)),
    }
    for name, y in orders.items():
        assert 0 < product(torch.as_tensor(y), torch.float32, device).of_bound() <= 1, name


def test_a_lost_term_is_beyond_the_bound() -> None:
    y = X @ W.mT - X[:, :16] @ W[:, :16].mT
    assert product(y, torch.float32).of_bound() > 1
    y = X @ W.mT
    y[3, 4] = float("nan")
    assert product(y, torch.float32).of_bound() == float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["index_put", "index_add", "scatter_add"])
def test_scattered_sums_stay_within_the_bound_of_their_own_terms(
    name: str, dtype: torch.dtype
) -> None:
    """16 sums of some 60 terms each, rounded to their type one by one."""
    func = getattr(torch.ops.aten, name).default
    index, terms = torch.arange(1000) * 7 % 16, X.flatten()[:1000].to(dtype)

    def call(i: torch.Tensor, x: torch.Tensor) -> SimpleNamespace:
        y = torch.zeros(16, dtype=dtype)
        args = (y, [i], x, True) if name == "index_put" else (y, 0, i, x)
        return SimpleNamespace(
            func=func, args=args, kwargs={}, operands=[y, i, x], output=[func(*args)]
        )

    exact, bound = _bounded(call(index, terms))
    for i, x in ((index, terms), (index.flip(0), terms.flip(0))):
        assert ((call(i, x).output[0] - exact).abs() <= bound).all()
    if dtype is torch.float32:
        assert ((call(index[16:], terms[16:]).output[0] - exact).abs() > bound).all()


@pytest.mark.parametrize("seed", range(5))
def test_fewer_bits_are_told_by_their_distance(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(n, 256, generator=generator) for n in (4, 24))
    rounded = {
        "tf32": _tf32(x) @ _tf32(w).mT,
        "bf16": x.bfloat16().double() @ w.bfloat16().double().mT,
    }
    halves = zip(x.chunk(2, 1), w.chunk(2, 1), strict=True)
    rounded["16-bit partial sums (2 parts)"] = sum(
        (a @ b.mT).bfloat16().double() for a, b in halves
    )
    for name, y in rounded.items():
        got = Product(
            x.double(), w.double(), None, torch.as_tensor(y).float().double(), torch.float32,
            torch.float32, "cpu",
        )  # fmt: skip
        assert got.narrower() == name
    plain = Product(
        x.double(), w.double(), None, (x @ w.mT).double(), torch.float32, torch.float32, "cpu"
    )
    assert plain.narrower() is None


def test_settings_are_put_in_force_and_back() -> None:
    before = settings_now()
    threads = torch.get_num_threads()
    changed = type(before)({**before.values, "threads": threads + 1, "samebits": True})
    assert before.differing(changed) == ["samebits", "threads"]
    with changed.in_force():
        assert torch.get_num_threads() == threads + 1 and settings_now().values["samebits"]
    assert not settings_now().differing(before)
    with changed.in_force(["threads"]):
        assert not settings_now().values["samebits"]


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_precision_flags_of_both_generations_stay_consistent(precision: str) -> None:
    plain = settings_now()
    try:
        torch.set_float32_matmul_precision(precision)
        mine = settings_now()
        with plain.in_force():
            assert not settings_now().differing(plain)
        assert torch.get_float32_matmul_precision() == precision
        assert not settings_now().differing(mine)
    finally:
        torch.set_float32_matmul_precision("highest")
