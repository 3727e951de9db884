"""Stock operations and our own; what is no reduction is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import samebits
from samebits import ops
from samebits.contract import parse_tree
from samebits.errors import RevealError
from samebits.reveal import OPERATIONS, Request, RevealedTree, reveal


def numpy_pairwise(n: int) -> RevealedTree:
    """NumPy's sum: eight chains a block of up to 128, folded in neighbours; halves above that."""
    children: list[tuple[int, ...]] = []

    def join(*operands: int) -> int:
        children.append(operands)
        return n + len(children) - 1

    def total(start: int, count: int) -> int:
        if count < 8:
            acc = start
            for i in range(start + 1, start + count):
                acc = join(acc, i)
            return acc
        if count > 128:
            half = count // 2 - count // 2 % 8
            return join(total(start, half), total(start + half, count - half))
        lanes = [start + i for i in range(8)]
        for at in range(8, count - count % 8):
            lanes[at % 8] = join(lanes[at % 8], start + at)
        while len(lanes) > 1:
            lanes = [join(a, b) for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
        for i in range(start + count - count % 8, start + count):
            lanes[0] = join(lanes[0], i)
        return lanes[0]

    total(0, n)
    return RevealedTree.of(n, children)


@pytest.mark.parametrize("n", [7, 64, 128, 300, 1024])
def test_numpy_adds_as_its_source_says(n: int) -> None:
    found = reveal(lambda x: torch.tensor(np.sum(x.numpy())), k=n)
    assert found.tree == numpy_pairwise(n)
    assert found.explained


def test_a_python_loop_is_a_chain() -> None:
    found = reveal(lambda x: torch.tensor(np.add.accumulate(x.numpy())[-1]), k=100)
    assert found.tree.describe() == "a chain of 100 (contract chain)"


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("m", [1, 5])
def test_our_linear_is_its_contract(dtype: str, m: int) -> None:
    found = reveal(ops.linear, op="linear", m=m, n=48, k=512, dtype=dtype)
    assert found.tree == RevealedTree.from_contract(parse_tree("lanes(16)"), 512)
    assert found.explained
    assert found.rows in (None, tuple(range(m)))


def test_our_rows_are_their_contract() -> None:
    tree = samebits.contract_of("sum", n=1500, dtype="fp32").tree
    expected = RevealedTree.from_contract(tree, 1500)
    assert reveal(lambda x: ops.sum(x, -1), k=1500).tree == expected
    assert reveal(lambda x: ops.mean(x, -1), op="mean", k=1500, m=2).tree == expected


@pytest.mark.parametrize("op", ["softmax", "norm", "rms_norm"])
def test_sums_of_positive_terms_are_our_contract(op: str) -> None:
    ours: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax": lambda x: ops.softmax(x, -1),
        "norm": lambda x: ops.vector_norm(x, 2, -1),
        "rms_norm": lambda x: ops.rms_norm(x, x.shape[-1:]),
    }
    found = reveal(ours[op], op=op, m=64, k=96)
    tree = samebits.contract_of(op, n=96, dtype="fp32").tree
    assert found.tree == RevealedTree.from_contract(tree, 96)


def test_attention_adds_keys_in_leaves_and_scores_in_a_chain() -> None:
    contract = samebits.contract_of("attention", head_dim=32, dtype="fp32")
    values = reveal(ops.attention, op="pv", m=3, n=32, k=600, batch=2)
    assert values.tree == RevealedTree.from_contract(parse_tree(f"segment({contract.leaf})"), 600)
    for dtype in ("fp32", "bf16"):
        scores = reveal(ops.attention, op="qk", m=3, n=64, k=32, batch=2, dtype=dtype)
        assert scores.tree == RevealedTree.from_contract(contract.scores, 32)


def sizes_of(op: str, m: int = 4, n: int = 16) -> dict[str, int]:
    """Rows and columns, for operations that have them."""
    columns = op in ("mm", "linear", "bmm", "conv2d", "pv", "qk")
    return {} if op == "dot" else {"m": m} | ({"n": n} if columns else {})


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op not in ("all_reduce", "log_softmax")])
def test_stock_operations_have_trees(op: str) -> None:
    found = reveal(op, k=72, **sizes_of(op))
    assert found.tree.leaves == 72
    assert found.explained is not False
    assert RevealedTree.from_data(found.to_data()["tree"]) == found.tree


@pytest.mark.parametrize("k", [64, 100, 512, 1000])
def test_averages_in_fp16_have_room_for_units(k: int) -> None:
    found = reveal("mean", m=4, k=k, dtype="fp16")
    assert found.tree == reveal("mean", m=4, k=k).tree
    assert found.probes < 3 * k
    assert reveal("pv", m=4, n=16, k=k, dtype="fp16").probes < 3.3 * k


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_averages_of_random_data_are_compared(dtype: str) -> None:
    ours: dict[str, Callable[..., Tensor]] = {
        "mean": lambda x: ops.mean(x, -1),
        "pv": ops.attention,
    }
    for op, fn in ours.items():
        for k in (33, 100, 256):
            found = reveal(fn, op=op, k=k, dtype=dtype, **sizes_of(op))
            assert found.explained, (op, k, found.notes)


def test_averages_whose_order_depends_on_values_are_not_explained() -> None:
    def mean(x: Tensor) -> Tensor:
        rows = [np.add.accumulate(r if r[0] >= 0 else r[::-1])[-1] for r in x.float().numpy()]
        return torch.from_numpy(np.array(rows) / x.shape[1]).half()

    found = reveal(mean, op="mean", k=100, m=16, dtype="fp16")
    assert found.explained is None and "depends on the values" in found.notes[-1]


def test_columns_whose_trees_are_nearly_alike_are_told_apart() -> None:
    """As stock attention has them: some columns in another loop, which adds four at once."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        terms = (x[:1] * w).numpy()
        y = np.add.accumulate(terms, 1)[:, -1]
        four = (terms[:16, 28] + terms[:16, 29]) + (terms[:16, 30] + terms[:16, 31])
        y[:16] = np.add.accumulate(terms[:16, :28], 1)[:, -1] + four + terms[:16, 32]
        return torch.from_numpy(y)[None]

    found = reveal(product, op="linear", m=1, n=64, k=33)
    assert found.tree == RevealedTree.from_contract(parse_tree("chain"), 33)
    other = reveal(product, op="linear", m=1, n=64, k=33, column=3)
    assert other.tree != found.tree and other.explained


@pytest.mark.parametrize("k", [16, 24, 48, 96])
def test_short_sums_take_fewer_than_3_probes_a_leaf(k: int) -> None:
    for op in ("sum", "linear", "norm"):
        assert reveal(op, k=k, **sizes_of(op)).probes < 3 * k
    assert reveal(lambda x: ops.softmax(x, -1), op="softmax", m=4, k=k).probes < 3 * k


def last_row_apart(x: Tensor, w: Tensor) -> Tensor:
    """As kernels do that take blocks of rows, and what is left in another way."""
    y, half = ops.linear(x, w), w.shape[1] // 2
    y[-1:] = ops.linear(x[-1:, :half], w[:, :half]) + ops.linear(x[-1:, half:], w[:, half:])
    return y


def test_rows_of_one_call_may_differ() -> None:
    found = reveal(last_row_apart, op="linear", m=6, n=64, k=512)
    same = reveal(ops.linear, op="linear", m=6, n=64, k=512)
    assert found.rows == tuple(range(5)) and found.tree == same.tree
    assert same.rows == tuple(range(6))


def test_a_row_is_chosen() -> None:
    first, last = (reveal(last_row_apart, op="linear", m=5, n=64, k=512, row=row) for row in (0, 4))
    assert (first.rows, last.rows) == ((0, 1, 2, 3), (4,))
    assert parse_tree("lanes(16)") in first.tree.contracts
    assert parse_tree("split(2) of lanes(16)") in last.tree.contracts


@pytest.mark.parametrize(
    ("op", "sizes", "reason"),
    [
        ("sum", {"n": 8}, "sum has no such size: n = 8"),
        ("softmax", {"m": 2, "n": 8}, "softmax has no such size: n = 8"),
        ("dot", {"m": 2}, "dot has no such size: m = 2"),
        ("linear", {"m": 2, "n": 8, "batch": 2}, "linear has no such size: batch = 2"),
    ],
)
def test_sizes_that_an_operation_has_not_are_refused(
    op: str, sizes: dict[str, int], reason: str
) -> None:
    with pytest.raises(RevealError, match=reason):
        reveal(op, k=16, **sizes)
    with pytest.raises(RevealError, match="op= says how"):
        reveal(ops.linear, k=16, m=2, n=8)


class Changing:
    """A sum whose order differs from call to call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        rolled = x.roll(17 * self.calls)
        return torch.from_numpy(np.add.accumulate(rolled.numpy()))[-1]


def test_an_order_that_varies_is_recognised() -> None:
    with pytest.raises(RevealError, match="varies between runs"):
        reveal(Changing(), k=200)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x.max(), "an addend and 0 for its negative: it is not a sum"),
        (lambda x: x[:90].sum(), "not a sum of all its addends"),
        (lambda x: x.sum() + 1, "for zeros: it is not a sum"),
        (lambda x: x.sum() * torch.nan, "NaN"),
        (lambda x: (x.sum(), x.zero_())[0], "mutates its input"),
        (lambda x: x.sum() + torch.rand(()), "varies between runs"),
        (lambda x: x.int().sum(), "floating-point"),
        (lambda x: x, "not a reduction along the last axis"),
        (lambda x: x.sum(7), "failed: IndexError"),
        (lambda x: x.sum() * -1, "does not return its addend"),
    ],
)
def test_what_is_no_reduction_is_refused(fn: Callable[[Tensor], Tensor], reason: str) -> None:
    with pytest.raises(RevealError, match=reason):
        reveal(fn, k=100, m=None)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(RevealError, match="not known"):
        Request("convolve", 8)
    with pytest.raises(RevealError, match="k = 0"):
        reveal("sum", k=0)
    with pytest.raises(RevealError, match="dtype"):
        reveal("sum", k=8, dtype="int8")
    with pytest.raises(RevealError, match="multiple of 9"):
        reveal("conv2d", k=8)
    with pytest.raises(RevealError, match="no 3"):
        reveal("linear", m=2, n=8, k=8, row=3)
    for op in ("softmax", "pv", "qk"):
        with pytest.raises(RevealError, match="fp8 has no room"):
            reveal(op, k=8, dtype="e4m3", **sizes_of(op))
    with pytest.raises(RevealError, match=r"returns torch\.float8"):
        reveal(lambda x, w: (x.float() @ w.float()).to(x.dtype), op="mm", k=8, dtype="e5m2")
    with pytest.raises(RevealError, match="divided by 16384"):
        reveal("mean", k=16384, dtype="fp16")
    with pytest.raises(RevealError, match="not initialised"):
        reveal("all_reduce", k=2)
    if not torch.cuda.is_available():
        with pytest.raises(RevealError, match="no usable CUDA GPU"):
            reveal("sum", k=8, device="cuda")


def test_a_matrix_of_results_is_refused() -> None:
    with pytest.raises(RevealError, match="not a reduction along the last axis"):
        reveal(lambda x: x, k=8, m=4)


@pytest.mark.parametrize("op", ["cumsum", "norm"])
def test_one_row_may_have_any_stride(op: str) -> None:
    def last(x: Tensor) -> Tensor:
        terms = x if op == "cumsum" else x.square()
        return torch.from_numpy(np.add.accumulate(terms.numpy(), axis=-1))[..., -1]

    found = reveal(last, op=op, k=40, m=1)
    assert found.tree == RevealedTree.from_contract(parse_tree("chain"), 40)
    assert reveal("cumsum", k=40, m=1).tree == found.tree


def test_results_may_lie_in_the_same_memory_every_time() -> None:
    kept = torch.zeros(1, dtype=torch.float64)

    def chain(x: Tensor) -> Tensor:
        kept.zero_()
        for addend in x:
            kept.add_(addend)
        return kept

    assert reveal(chain, k=70, dtype="fp64").tree == RevealedTree.from_contract(
        parse_tree("chain"), 70
    )


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"k": 2.5}, "k = 2.5, where an integer"),
        ({"k": "8"}, "k = '8', where an integer"),
        ({"k": True}, "k = True, where an integer"),
        ({"k": None}, "k = None, where an integer"),
        ({"k": 1 << 23}, "sums of up to"),
        ({"m": 2.0}, "m = 2.0, where an integer"),
        ({"batch": 1.5}, "batch = 1.5, where an integer"),
        ({"row": -1}, "row = -1"),
        ({"row": 1.5}, "row = 1.5"),
        ({"row": 2}, "no 2"),
        ({"column": 1}, "no columns"),
        ({"seed": "x"}, "seed = 'x'"),
        ({"dtype": [1]}, "dtype"),
        ({"device": "meta"}, "have no numbers"),
        ({"device": 5.0}, "device 5.0 is not known"),
        ({"fn": None}, "None is no function"),
        ({"fn": torch.sum, "op": ["sum"]}, "is not known"),
        ({"fn": lambda x: x.sum(-1).to("meta")}, "meta tensor"),
    ],
)
def test_arguments_of_another_form_are_refused(how: dict[str, Any], reason: str) -> None:
    given = {"fn": "sum", "k": 8, "m": 2, **how}
    with pytest.raises(RevealError, match=reason):
        reveal(given.pop("fn"), **given)


def test_rows_of_positive_terms_may_differ_too() -> None:
    def norm(x: Tensor) -> Tensor:
        """The first two rows backwards."""
        squares = x.square()
        squares[:2] = squares[:2].flip(-1)
        total = squares[:, 0].clone()
        for column in squares.T[1:]:
            total += column
        return total

    for row, tree in ((0, "descending"), (5, "a chain of 40 (contract chain)")):
        found = reveal(norm, op="norm", k=40, m=6, row=row)
        assert tree in found.tree.describe()
        assert any("rows have the tree" in note for note in found.notes)
    with pytest.raises(RevealError, match="no 6"):
        reveal(norm, op="norm", k=40, m=6, row=6)


def test_the_tree_of_most_columns_is_shown() -> None:
    """As in a product whose columns are cut into tiles of which the first is another one."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        y = ops.linear(x, w)
        y[:, :2] = ops.linear(x, w.flip(-1))[:, :2]
        half = w.shape[1] // 2
        y[:, 2:] = ops.linear(x[:, :half], w[2:, :half]) + ops.linear(x[:, half:], w[2:, half:])
        return y

    found = reveal(product, op="linear", k=512, m=1, n=32)
    assert str(found.tree.contracts[0]) == "split(2) of lanes(16)" and found.calls < 60
    assert any("30 of 32 columns" in note and "column=0" in note for note in found.notes)
    other = reveal(product, op="linear", k=512, m=1, n=32, column=0)
    assert other.tree != found.tree and any("2 of 32 columns" in note for note in other.notes)
