"""Functions that want to deceive: the exact tree, or a refusal that says why; no other tree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_revealed_tree import random_tree
from torch import Tensor

from samebits.contract import parse_tree
from samebits.errors import RevealError
from samebits.reveal import RevealedTree, reveal


def chain(x: Tensor) -> Tensor:
    """Sums of rows, one addend after another."""
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=-1)[..., -1].copy())


def by(key: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Sums of rows in the order of a key."""
    return lambda x: chain(torch.gather(x, -1, torch.argsort(key(x), dim=-1, stable=True)))


def added(tree: RevealedTree, x: np.ndarray, narrowed: frozenset[int] = frozenset()) -> Tensor:
    """Sums along a tree; fused operations truncate at 25 bits; some round to bf16."""
    values = [column.astype(np.float32) for column in x.T]
    for t, operands in enumerate(tree.children):
        terms = np.stack([values[c] for c in operands]).astype(np.float64)
        if len(operands) == 2:
            total = (terms[0] + terms[1]).astype(np.float32)
        else:
            step = np.ldexp(1.0, np.frexp(np.abs(terms).max(0))[1] - 26)
            exact = np.trunc(terms / step).sum(0) * step
            last = np.ldexp(1.0, np.frexp(np.abs(exact))[1] - 24)
            total = (np.trunc(exact / last) * last).astype(np.float32)
        if t in narrowed:
            total = torch.from_numpy(total).bfloat16().float().numpy()
        values.append(total)
    return torch.from_numpy(values[-1])


KEYS: dict[str, Callable[[Tensor], Tensor]] = {
    "magnitude": torch.abs, "value": lambda x: x, "negative": lambda x: -x,
    "sign": lambda x: (x < 0).float(), "large": lambda x: (x.abs() > 1e9).float(),
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("k", [5, 200])
def test_an_order_of_values_is_refused(key: str, k: int) -> None:
    with pytest.raises(RevealError, match="depends on the values"):
        reveal(by(KEYS[key]), k=k, m=16)


@pytest.mark.parametrize("key", ["magnitude", "value", "negative"])
def test_an_order_of_values_is_refused_in_narrow_results(key: str) -> None:
    with pytest.raises(RevealError, match="depends on the values"):
        reveal(lambda x: by(KEYS[key])(x.float()).bfloat16(), k=100, m=16, dtype="bf16")


def test_a_tree_that_only_probes_have_is_refused() -> None:
    def two(x: Tensor) -> Tensor:
        return chain(x) if x.abs().max() > 1e9 else x.sum(-1)

    with pytest.raises(RevealError, match="depends on the values"):
        reveal(two, k=100, m=16)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp64"])
def test_such_a_tree_is_refused_in_any_precision(dtype: str) -> None:
    def two(x: Tensor) -> Tensor:
        """One after another where there are masks, and by halves where there are none."""
        if x.abs().max() >= 2**14:
            total = x[0]
            for addend in x[1:]:
                total = total + addend
            return total
        while len(x) > 1:
            x = x[::2] + x[1::2]
        return x[0]

    with pytest.raises(RevealError, match=rf"{dtype} additions .* depends on the values"):
        reveal(two, k=16, dtype=dtype)
    with pytest.raises(RevealError, match="depends on the values"):
        reveal(lambda x: two(x) / 16, k=16)
    with pytest.raises(RevealError, match=r"fp64 additions .* depends on the values"):
        reveal(lambda x: two(x.double()).float(), k=16)


def test_autocast_is_no_order_of_values() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = reveal("linear", m=4, n=32, k=64)
    assert found.explained is False


def test_a_default_device_and_a_single_column_are_no_obstacle() -> None:
    with torch.device("meta"):
        assert reveal("conv2d", m=4, k=18).explained
        assert reveal("softmax", m=4, k=18).tree.leaves == 18


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (lambda e: chain(e[:, :-3]), "not a sum of all its terms"),
        (lambda e: chain(e[:, 1:]), "not a sum of all its terms"),
        (lambda e: chain(torch.cat([e, e[:, :1]], 1)), "each once"),
        (lambda e: by(lambda x: x)(e), "depends on the values"),
        (lambda e: by(lambda x: -x)(e), "depends on the values"),
        (lambda e: e.double().sum(-1).float(), "wider than its result"),
    ],
)
def test_positive_terms_that_are_no_plain_sum_are_refused(
    of: Callable[[Tensor], Tensor], reason: str
) -> None:
    for op, whole in (
        ("softmax", lambda x: x.exp() / of(x.exp())[:, None]),
        ("norm", lambda x: of(x.square())),
    ):
        with pytest.raises(RevealError, match=reason):
            reveal(whole, op=op, k=70, m=16)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("fn", "op", "reason"),
    [
        (lambda x: x.abs().sum(-1), "sum", 'looked at with op="norm"'),
        (lambda x: torch.softmax(x.double(), -1).float(), "softmax", "more than its precision"),
        (lambda x: chain(x.square()).sqrt().bfloat16(), "norm", "Pass a function that returns"),
        (lambda x: chain(x * torch.tensor([1.0, 0.0, 2.0]).repeat(20)), "sum", "addends more than"),
    ],
)
def test_refusals_name_what_is_wrong(fn: Callable[[Tensor], Tensor], op: str, reason: str) -> None:
    with pytest.raises(RevealError, match=reason):
        reveal(fn, op=op, k=60, m=8)


def test_narrow_partial_results_are_no_obstacle() -> None:
    def narrow(x: Tensor) -> Tensor:
        total = torch.zeros(len(x), dtype=torch.bfloat16)
        for column in x.T:
            total = total + column.bfloat16()
        return total.float()

    found = reveal(narrow, k=300, m=32)
    assert found.tree == RevealedTree.from_contract(parse_tree("chain"), 300)
    assert any(f.name == "significant bits" and "bf16" in f.value for f in found.arithmetic)


def test_results_may_be_expanded() -> None:
    assert reveal(lambda x: chain(x[None]).expand(1), k=20).tree.leaves == 20


@pytest.mark.parametrize("seed", range(12))
def test_random_trees_of_random_arithmetic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(5, 50))
    tree = random_tree(seed, k)
    narrowed = frozenset(rng.choice(len(tree.children), 2).tolist())
    kinds: list[tuple[dict[str, str], Callable[[Tensor], Tensor]]] = [
        ({}, lambda x: added(tree, x.numpy())),
        ({}, lambda x: added(tree, x.numpy(), narrowed)),
        ({"dtype": "bf16"}, lambda x: added(tree, x.float().numpy()).bfloat16()),
        ({"op": "mean", "dtype": "fp16"}, lambda x: (added(tree, x.float().numpy()) / k).half()),
    ]
    for how, fn in kinds:
        assert reveal(fn, k=k, m=64, seed=seed, **how).tree == tree
    try:
        found = reveal(lambda x: added(tree, x.square().numpy()), op="norm", k=k, m=64)
    except RevealError as error:  # small terms are too small for operations that truncate
        assert "round" in str(error)
    else:
        assert found.tree == tree
