"""Look-ups by arguments: exact values, tensors by their layout, other objects by identity."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from samebits.engines.driver import _cuda


def test_equal_values_of_other_kinds_are_apart() -> None:
    memo = _cuda.Memo(100)
    values = [1, True, 1.0, "1", 0, False, 0.0, -0.0, None, 2**70, -(2**70), "", "n"]
    for value in values:
        memo.put(repr(value), value)
        memo.put("in " + repr(value), {"A": value, "B": (value,)})
    assert len(memo) == 2 * len(values)
    for value in values:
        assert memo.get(value) == repr(value)
        assert memo.get({"A": value, "B": (value,)}) == "in " + repr(value)
    assert memo.get({"B": (1,), "A": 1}) is None
    assert memo.get({"A": 1}) is None
    assert memo.get(1, 1) is None


def test_tensors_count_by_layout() -> None:
    memo = _cuda.Memo(100)
    base = torch.zeros(8, 72, dtype=torch.bfloat16)
    memo.put("x", base)
    assert memo.get(torch.ones(8, 72, dtype=torch.bfloat16)) == "x"
    others = [
        base[:7], base[:, 8:], base[:, 1:65], base.t(), base[None], base.half(), base.float(),
        base.view(torch.int16), base.to(torch.float8_e4m3fn), base[::2], torch.zeros(()),
        torch.zeros(0, 72, dtype=torch.bfloat16),
    ]  # fmt: skip
    for other in others:
        assert memo.get(other) is None
    unaligned = torch.zeros(8 * 72 + 8, dtype=torch.bfloat16)[1 : 8 * 72 + 1].view(8, 72)
    assert unaligned.stride() == base.stride() and memo.get(unaligned) is None
    for i, other in enumerate([*others, unaligned]):
        memo.put(i, other)
    assert [memo.get(other) for other in [*others, unaligned]] == list(range(len(others) + 1))


def test_tensors_are_not_kept_alive_and_objects_are() -> None:
    class Thing:
        pass

    memo = _cuda.Memo(100)
    tensor, thing = torch.zeros(3), Thing()
    seen, held = weakref.ref(tensor), weakref.ref(thing)
    memo.put("value", tensor, thing)
    assert memo.get(torch.zeros(3), thing) == "value"
    assert memo.get(torch.zeros(3), Thing()) is None
    del tensor, thing
    gc.collect()
    assert seen() is None and held() is not None
    memo.clear()
    assert held() is None and len(memo) == 0


def test_compile_time_parameters_are_compared_by_value_and_type() -> None:
    class Layout:
        def __init__(self, n: int) -> None:
            self.n = n

        def __hash__(self) -> int:
            return self.n

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Layout) and other.n == self.n

    memo = _cuda.Memo(100)
    memo.put("one", {"L": Layout(1), "T": torch.float32})
    assert memo.get({"L": Layout(1), "T": torch.float32}) == "one"
    assert memo.get({"L": Layout(2), "T": torch.float32}) is None
    assert memo.get({"L": Layout(1), "T": torch.float16}) is None
    with pytest.raises(TypeError, match="unhashable"):
        memo.get({"L": [1]})


def test_it_forgets_rather_than_grows() -> None:
    memo = _cuda.Memo(3)
    for i in range(10):
        memo.put(i, i)
        assert memo.get(i) == i and len(memo) <= 3
