"""Distances between results are counted in bits and in floats between, over all elements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits.check.compare import difference


def test_equal_values_with_other_bits_differ() -> None:
    found = difference((torch.tensor([0.0, 1.0]),), (torch.tensor([-0.0, 1.0]),))
    assert (found.elements, found.differing, found.max_ulp, found.ulps) == (2, 1, 1, (1,))


def test_nan_payloads_and_infinities_are_counted_apart() -> None:
    a = torch.tensor([0x7FC00000, 0x7F800000, 0x3F800000], dtype=torch.int32).view(torch.float32)
    b = torch.tensor([0x7FC00001, 0x3F800000, 0x3F800000], dtype=torch.int32).view(torch.float32)
    found = difference((a,), (b,))
    assert (found.differing, found.nonfinite, found.ulps) == (2, 2, ())
    assert not difference((a,), (a.clone(),)).differing


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 70))
def test_the_distance_is_the_number_of_steps_of_nextafter(start: float, steps: int) -> None:
    stepped = np.float32(start)
    with np.errstate(over="ignore"):
        for _ in range(steps):
            stepped = np.nextafter(stepped, np.float32(np.inf))
    if not np.isfinite(stepped):
        return
    # From -0 nextafter goes straight to the smallest positive number: it skips +0.
    crossed = np.signbit(np.float32(start)) and not np.signbit(stepped)
    a, b = torch.tensor([start]), torch.tensor([float(stepped)])
    assert difference((a,), (b,)).max_ulp == steps + int(crossed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_counts_its_own_floats(dtype: torch.dtype) -> None:
    one = torch.ones(5, dtype=dtype)
    eps = torch.finfo(dtype).eps
    other = one.clone()
    other[1:] += torch.tensor([1, 2, 3, 5], dtype=dtype) * eps
    found = difference((one,), (other,))
    assert (found.differing, found.max_ulp, found.ulps) == (4, 5, (1, 1, 1, 1))
    far = difference((one * torch.finfo(dtype).max,), (-one * torch.finfo(dtype).max,))
    assert far.differing == 5 and far.max_ulp > 2**14


def test_integers_and_complex_numbers_are_compared_too() -> None:
    assert difference((torch.tensor([1, 2]),), (torch.tensor([1, 3]),)).differing == 1
    z = torch.tensor([1 + 2j, 3 + 4j])
    found = difference((z,), (z.conj().resolve_conj(),))
    assert (found.elements, found.differing) == (4, 2)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        difference((torch.ones(2),), (torch.ones(3),))
    with pytest.raises(ValueError, match="cannot be compared"):
        difference((torch.ones(2),), (torch.ones(2, dtype=torch.float16),))
    with pytest.raises(ValueError, match="nothing to compare"):
        difference((torch.ones(2),), ())
