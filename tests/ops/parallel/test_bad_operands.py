"""What operations over ranks refuse before anything is computed or sent; here with one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from samebits import ops
from samebits.errors import ContractError, DTypeError, SamebitsError, SettingError, ShapeError

X, W, B, IDS = torch.ones(3, 1024), torch.ones(8, 1024), torch.ones(8), torch.tensor([0, 1, 2])
EXPERTS = torch.ones(2, 8, 8), torch.ones(2, 8, 4)
ROW, COLUMN, EXACT = ops.row_parallel_linear, ops.column_parallel_linear, ops.exact
#: A call, its error, and words of it.
Refused = tuple[Callable[[], Any], type[SamebitsError], str]


def not_tensors() -> list[Refused]:
    words, embedding = ops.vocab_parallel_logprobs, ops.vocab_parallel_embedding
    moe: Callable[..., Any] = ops.expert_parallel_moe
    x, ids, weights = X[:3, :8], IDS[:, None].expand(3, 2), torch.ones(3, 2)
    calls: list[Callable[[], Any]] = [
        lambda: ROW([1.0], W),  # type: ignore[arg-type]
        lambda: ROW(X, [[1.0]]),  # type: ignore[arg-type]
        lambda: ROW(X, W, [1.0]),  # type: ignore[arg-type]
        lambda: COLUMN([1.0], W),  # type: ignore[arg-type]
        lambda: embedding([0], W),  # type: ignore[arg-type]
        lambda: embedding(IDS, [[1.0]]),  # type: ignore[arg-type]
        lambda: words(X, W, [0, 1, 2]),  # type: ignore[arg-type]
        lambda: moe(x.tolist(), *EXPERTS, ids, weights),
        lambda: moe(x, *EXPERTS, ids.tolist(), weights),
        lambda: moe(x, *EXPERTS, ids, weights.tolist()),
        lambda: EXACT.all_reduce([1.0]),  # type: ignore[arg-type]
        lambda: EXACT.row_parallel_linear(X, W, [1.0]),  # type: ignore[arg-type]
    ]
    return [(call, DTypeError, "takes tensors, not list") for call in calls]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        *not_tensors(),
        (lambda: ROW(X.to_sparse(), W), DTypeError, "takes dense tensors"),
        (
            lambda: ROW(X[0, 0], W),
            ShapeError,
            r"x \(\) needs this rank's columns of weight \(8, 1024\)",
        ),
        # As many numbers as rows of the right length would have.
        (lambda: ROW(X.view(6, 512), W), ShapeError, "needs this rank's columns"),
        (lambda: ROW(X.view(1, 3072), W), ShapeError, "needs this rank's columns"),
        (lambda: ROW(X, W[None]), ShapeError, "needs this rank's columns"),
        (lambda: ROW(X, W, B.to("meta")), DTypeError, "bias is on meta, x on cpu"),
        (lambda: ROW(X, W, parts=2.0), ContractError, r"balanced\(2.0\)"),
        (lambda: ROW(X, W, parts="8"), ContractError, r"balanced\(8\)"),
        (lambda: COLUMN(X, W, features=0), ShapeError, "features=0 is no number of 1 to 8"),
        (lambda: COLUMN(X, W, features=9), ShapeError, "features=9 is no number of 1 to 8"),
        (lambda: COLUMN(X, W, features=2.5), ShapeError, "features=2.5 is no number of 1 to 8"),  # type: ignore[arg-type]
        (lambda: COLUMN(X, W, features="8"), ShapeError, "features=8 is no number of 1 to 8"),  # type: ignore[arg-type]
        (lambda: EXACT.row_parallel_linear(X, W.half()), DTypeError, "must be torch.float32, not"),
        (lambda: ops.parallel.agree(timeout=0), SettingError, "timeout=0 is no number of seconds"),
        (lambda: ops.parallel.agree(timeout=float("nan")), SettingError, "timeout=nan"),
        (lambda: ops.parallel.agree(timeout="1"), SettingError, "timeout='1'"),
        (lambda: ops.parallel.agree(), SamebitsError, "there is no group"),
        (lambda: ops.parallel.transport(), SamebitsError, "this process is alone"),
    ],
)
def test_refused(call: Callable[[], Any], error: type[SamebitsError], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_integers_of_numpy_are_integers() -> None:
    """As shapes and configurations have them."""
    eight: Any = np.int64(8)
    assert torch.equal(ROW(X, W, parts=eight), ROW(X, W, parts=8))
    assert torch.equal(COLUMN(X, W, features=eight), COLUMN(X, W, features=8))
