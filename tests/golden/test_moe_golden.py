"""What an H200 computed, computed again on a CPU."""

from __future__ import annotations

import pytest

from golden.moe_cases import CASES, load
from samebits import bits


@pytest.mark.parametrize("name", CASES)
def test_the_chips_bytes(name: str) -> None:
    inputs, results = load(name)
    found = CASES[name].cpu(**inputs)
    assert set(found) == set(results)
    for n, want in results.items():
        assert bits.equal(found[n], want), n
