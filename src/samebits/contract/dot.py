"""Dot products with a tree and an arithmetic: what matrix products and attention are made of.

`dot` walks the tree here. The leaves are computed by NumPy (`numerics`, `block`), or, when the
sizes are large and an engine has registered one, by a fast twin with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic, BlockFma
from samebits.contract.block import block_chain
from samebits.contract.numerics import F32, Array
from samebits.contract.tree import CHAIN, Leaf, Tree, reduce
from samebits.errors import ContractError

#: x [M, K], w [N, K], leaf, arithmetic, and acc=[M, N] that a chain starts from -> fp32 [M, N]
LeafDot = Callable[..., F32]

#: Products from which a registered engine is worth its call.
FAST_FROM = 1 << 14


def leaf_dot(x: F32, w: F32, leaf: Leaf, arithmetic: Arithmetic, acc: F32 | None = None) -> F32:
    """One leaf in NumPy: x [M, K], w [N, K] -> fp32 [M, N]; `acc` is for a tensor core's chain.

    Raises:
        ContractError: lanes with a tensor core's arithmetic (no machine computes that).
    """
    width = getattr(leaf, "width", 1)
    if isinstance(arithmetic, BlockFma):
        if width != 1:
            raise ContractError(f"{leaf} has no meaning for {arithmetic.name}: use chain")
        return block_chain(x, w, arithmetic, acc)
    return nx.strided_dot(x, w, width)


#: Engines by name. "numpy" is the definition; the others promise its bits, faster.
engines: dict[str, LeafDot] = {"numpy": leaf_dot}


def register_engine(name: str, dot: LeafDot) -> None:
    """Lets `evaluate` use `dot` for leaves. Called by an engine when it is imported."""
    engines[name] = dot


def dot(x: F32, w: F32, tree: Tree, arithmetic: Arithmetic, engine: str | None = None) -> F32:
    """``x @ w.T`` with exactly the bits that `tree` and `arithmetic` say.

    Args:
        x: [M, K] fp32 values of the arithmetic's input type.
        w: [N, K].
        tree: the reduction tree along K.
        arithmetic: what a step of a chain does.
        engine: "numpy", or an engine that has registered itself ("cpu"); None takes a fast one when
            there is one and the sizes deserve it.

    Returns:
        [M, N] fp32 accumulators (NaN: the canonical one of `numerics`). K = 0 gives +0.

    Raises:
        ContractError: an unknown engine, or a tree that the arithmetic has no meaning for.
    """
    run = _engine(engine, len(x) * len(w) * x.shape[1])

    def leaf(kind: Leaf, start: int, stop: int) -> F32:
        return run(x[:, start:stop], w[:, start:stop], kind, arithmetic)

    return reduce(tree, 0, x.shape[1], leaf, nx.add32)


def chain(x: F32, w: F32, arithmetic: BlockFma, acc: F32, engine: str | None = None) -> F32:
    """A tensor core's chain that goes on from `acc` [M, N]: x [M, K], w [N, K] -> fp32 [M, N].

    Raises:
        ContractError: an unknown engine.
    """
    return _engine(engine, len(x) * len(w) * x.shape[1])(x, w, CHAIN, arithmetic, acc=acc)


def _engine(name: str | None, products: int) -> LeafDot:
    if name is None:
        large = products >= FAST_FROM
        name = next((other for other in engines if other != "numpy" and large), "numpy")
    if name not in engines:
        raise ContractError(f"engine {name!r} is not registered: use one of {list(engines)}")
    return engines[name]


def require_gradual_underflow() -> None:
    """Refuses to evaluate in a thread whose processor flushes subnormals to zero.

    Raises:
        ContractError: flush-to-zero or denormals-are-zero is on (torch.set_flush_denormal does it).
    """
    smallest = np.array([1], np.uint32).view(np.float32)
    kept: Array = smallest.astype(np.float64) * 2.0**149
    if kept[0] != 1 or (smallest * np.float32(1)).view(np.uint32)[0] != 1:
        raise ContractError(
            "this thread flushes subnormals to zero, so NumPy cannot evaluate a contract here: "
            "call torch.set_flush_denormal(False) first"
        )
