"""Weights of known models, and what a tensor-parallel rank holds of them.

A weight [n, k] is cut along n (column-parallel: qkv, gate_up, lm_head), along k (row-parallel: o,
down) or not at all. Its contract is decided by the whole weight; its schedule by the part at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from samebits.contract.tree import LEAF_EDGE
from samebits.errors import PlanError


@dataclass(frozen=True)
class Weight:
    """A weight of a model.

    Attributes:
        name: what it is called in the model.
        n, k: sizes of the whole weight.
        cut: the axis that tensor-parallel ranks share, or None.
        unit: rows of n that stay together (a head), so that `n` counts whole units a rank.
        shared: rows of n of which every rank holds at least one unit: the K and V heads.
        experts: how many there are of it, for mixtures; 0 for a plain weight.
    """

    name: str
    n: int
    k: int
    cut: Literal["n", "k"] | None = None
    unit: int = 1
    shared: int = 0
    experts: int = 0

    def at(self, tp: int) -> tuple[int, int]:
        """(n, k) of one of `tp` ranks.

        Raises:
            PlanError: the weight cannot be cut into `tp` parts.
        """
        if self.cut is None or tp == 1:
            return self.n, self.k
        if self.cut == "k":
            return self.n, _part(self.name, self.k, tp)
        own = _part(self.name, (self.n - self.shared) // self.unit, tp) * self.unit
        return own + max(self.shared // tp, 2 * self.unit if self.shared else 0), self.k


def shared_leaves(k: int) -> int:
    """Leaves over K of a row-parallel product whose ranks share one tree, whatever their number.

    As many as the largest tensor-parallel size, 8; 4 or 2 where K cannot be cut so often at
    multiples of `LEAF_EDGE`; 0 where it cannot be cut at all.
    """
    return next((parts for parts in (8, 4, 2) if k % (parts * LEAF_EDGE) == 0), 0)


def _part(name: str, size: int, tp: int) -> int:
    if tp < 1 or size % tp:
        raise PlanError(f"{name}: {size} cannot be cut into {tp} equal parts")
    return size // tp


@dataclass(frozen=True)
class Model:
    """What a plan has to know about a model.

    Attributes:
        weights: of one layer, and the output head.
        head_dim, value_dim: of attention.
        group: query heads that share one KV head.
    """

    weights: tuple[Weight, ...]
    head_dim: int
    value_dim: int
    group: int

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.weights[0].k

    @property
    def vocab(self) -> int:
        """Rows of the output head."""
        return self.weights[-1].n


def decoder(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    head_dim: int = 128,
    experts: int = 0,
) -> Model:
    """A decoder with merged qkv and gate_up projections; dense, or a mixture of `experts`."""
    q, kv = heads * head_dim, 2 * kv_heads * head_dim
    mixture = "expert " if experts else ""
    weights = (
        Weight("qkv", q + kv, hidden, "n", unit=head_dim, shared=kv),
        Weight("o", hidden, q, "k"),
        *((Weight("router", experts, hidden),) if experts else ()),
        Weight(f"{mixture}gate_up", 2 * intermediate, hidden, "n", unit=2, experts=experts),
        Weight(f"{mixture}down", hidden, intermediate, "k", experts=experts),
        Weight("lm_head", vocab, hidden, "n"),
    )
    return Model(weights, head_dim, head_dim, heads // kv_heads)


MODELS: dict[str, Model] = {
    "llama-3-8b": decoder(hidden=4096, heads=32, kv_heads=8, intermediate=14336, vocab=128256),
    "qwen3-8b": decoder(hidden=4096, heads=32, kv_heads=8, intermediate=12288, vocab=151936),
    "qwen3-32b": decoder(hidden=5120, heads=64, kv_heads=8, intermediate=25600, vocab=151936),
    "llama-3-70b": decoder(hidden=8192, heads=64, kv_heads=8, intermediate=28672, vocab=128256),
    "qwen3-0.6b": decoder(hidden=1024, heads=16, kv_heads=8, intermediate=3072, vocab=151936),
    "mixtral-8x7b": decoder(
        hidden=4096, heads=32, kv_heads=8, intermediate=14336, vocab=32000, experts=8
    ),
    # Multi-head latent attention: the projections down to the latents are replicated.
    "deepseek-v3": Model(
        (
            Weight("q_a", 1536, 7168),
            Weight("kv_a", 576, 7168),
            Weight("qkv_a", 2112, 7168),
            Weight("q_b", 24576, 1536, "n", unit=192),
            Weight("kv_b", 32768, 512, "n", unit=256),
            Weight("o", 7168, 16384, "k"),
            Weight("router", 256, 7168),
            Weight("shared gate_up", 4096, 7168, "n", unit=2),
            Weight("shared down", 7168, 2048, "k"),
            Weight("dense gate_up", 36864, 7168, "n", unit=2),
            Weight("dense down", 7168, 18432, "k"),
            Weight("expert gate_up", 4096, 7168, "n", unit=2, experts=256),
            Weight("expert down", 7168, 2048, "k", experts=256),
            Weight("lm_head", 129280, 7168, "n"),
        ),
        head_dim=192,
        value_dim=128,
        group=1,
    ),
}
TP_SIZES = (1, 2, 4, 8)


def model_of(name: str) -> Model:
    """A known model.

    Raises:
        PlanError: the model is not known.
    """
    if name not in MODELS:
        raise PlanError(f"model {name!r} is not known: use one of {', '.join(MODELS)}")
    return MODELS[name]


def cuts(weights: Iterable[Weight], sizes: Iterable[int]) -> Iterator[tuple[Weight, int, int]]:
    """(weight, n, k) of every part that a rank can hold, the whole weights first."""
    weights = tuple(weights)
    for tp in sorted(set(sizes)):
        for weight in weights:
            if tp == 1 or weight.cut is not None:
                yield (weight, *weight.at(tp))
