"""Stock kernels from inside an override, and refusals."""

from __future__ import annotations

import _thread
import re
import sys
import threading
import warnings
from typing import Any

import pytest
import torch

from samebits.errors import UncoveredError, UncoveredWarning
from samebits.mode import fallback
from samebits.mode.fallback import Policy, refuse, set_policy, stock


@pytest.fixture(autouse=True)
def restore_policy():
    before = fallback.policy
    set_policy(Policy())
    yield
    set_policy(before)


def test_stock_kernel_does_not_recurse_into_an_override() -> None:
    original = stock("sum.dim_IntList")
    hits = []

    def override(self, dim, keepdim=False, *, dtype=None):
        hits.append(self.dtype)
        return original(self, dim, keepdim, dtype=dtype)

    library = torch.library.Library("aten", "IMPL")
    library.impl("sum.dim_IntList", override, "CPU", allow_override=True)
    try:
        assert torch.arange(6).reshape(2, 3).sum(1).tolist() == [3, 12]
        x = torch.ones(2, 3, requires_grad=True)
        x.sum(1).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [[1.0] * 3] * 2
    finally:
        library._destroy()
    assert torch.int64 in hits and torch.float32 in hits


def test_refusal_names_operation_site_and_remedy() -> None:
    with pytest.raises(UncoveredError) as caught:
        refuse("cdist", "its reduction has no contract")
    assert caught.value.op == "aten::cdist"
    assert caught.value.site is not None
    assert re.search(r"test_fallback\.py:\d+$", caught.value.site)
    assert "enable(allow=" in str(caught.value)


def test_a_refusal_in_autograds_own_thread_names_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with CUDA tensors: the thread's stack holds nothing but samebits."""
    unraised, over = [], threading.Event()

    def keep(left: Any) -> None:
        unraised.append(left.exc_value)
        over.set()

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            _thread.start_new_thread(refuse, ("cdist", "its reduction has no contract"))
            assert over.wait(10)
            return 2 * gradient

    monkeypatch.setattr(sys, "unraisablehook", keep)
    Doubled.apply(torch.ones(1, requires_grad=True)).backward()
    line = sys._getframe().f_lineno - 1
    assert unraised[0].site == f"{__file__}:{line}"


def test_policies() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_policy(Policy("allow"))
        refuse("cdist", "reason")
        set_policy(Policy("refuse", frozenset({"aten::cdist"})))
        refuse("cdist.out", "reason")
    with pytest.raises(UncoveredError):
        refuse("cdist_other", "reason")
    set_policy(Policy("warn"))
    with pytest.warns(UncoveredWarning, match="aten::cdist"):
        refuse("cdist", "reason")


def test_dtypes_without_an_engine() -> None:
    total = stock("sum.dim_IntList")
    x = torch.ones(4, dtype=torch.int32)
    assert total.by_dtype(x.dtype, x, [0]).item() == 4
    y = x.double()
    with pytest.raises(UncoveredError, match="float64"):
        total.by_dtype(y.dtype, y, [0])
    set_policy(Policy("allow"))
    assert total.by_dtype(y.dtype, y, [0]).item() == 4
