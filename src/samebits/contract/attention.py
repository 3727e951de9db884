"""Attention: prefill, chunked prefill, decode and draft verification have ONE contract."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from samebits.contract import functions
from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic, BlockFma
from samebits.contract.base import Contract
from samebits.contract.dot import dot, require_gradual_underflow
from samebits.contract.numerics import F32
from samebits.contract.operands import OUTPUTS, Operand, dtype_name, store, values
from samebits.contract.tree import CHAIN, Segment, Tree
from samebits.errors import ContractError, ShapeError

LOG2E = np.array(math.log2(math.e), np.float32)
Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AttentionContract(Contract):
    """One query row's softmax(q k^T) v, from nothing but the keys that it sees.

    In fp32, every step rounded once:

    scores     s = sum_d q[d] k[d] along the tree `scores`
    exponent   x = s * a, with a = fp32(scale * log2 e);
               with softcap x = t(s * fp32(scale / cap)) * fp32(cap * log2 e), where
               t(z) = 1 - 2 / (2^min(126, z * fp32(2 log2 e)) + 1) is tanh;
               with an additive mask then x = fma(bias, fp32(log2 e), x)
    leaf       `leaf` keys (see `positions`): m = ceil(max x), a power of two's exponent, NaN passed
               over; p = 2^(x - m), exactly 0 where x - m < -126, rounded once to `probabilities`;
               o[d] = chain of p v[d] and l = chain of p (against a column of ones), from +0
    fold       leaves in ascending order, the first as it is: the side with the smaller maximum is
               multiplied by an exact power of two (0 below 2^-126) in the fma that adds it to the
               other; so it does not matter when, or how often, a maximum is raised
    sink       one more key after all others: x = sink * fp32(log2 e), its p is not rounded and it
               has no value: l is folded with it, o is multiplied by the power of two
    result     o / l, rounded once to `output`; a row that sees no key gives +0

    A key that is not seen takes no part: its K and V may hold anything. A leaf without a seen key
    is no leaf.

    Attributes:
        arithmetic: what a step of the chains does.
        input: storage type of q, k and v.
        output: storage type of the result.
        scores: tree along the head dimension.
        leaf: keys in a leaf.
        positions: "seen" counts the keys that the row sees (so padding and a window's position do
            not matter); "absolute" cuts at multiples of `leaf` of the sequence.
        maximum: "ceil", the power-of-two maximum.
        exp2: "poly" is the polynomial of `contract.functions`, the same on every machine; "hw(64)"
            is the chip's own, with the maximum raised every 64 keys: it cannot be evaluated here.
        probabilities: storage type that p is rounded to before it meets v.
        fold: order of the leaves.

    Raises:
        ContractError: parts that do not fit together.
    """

    kind: ClassVar[str] = "attention"

    arithmetic: Arithmetic
    input: str
    output: str
    scores: Tree = CHAIN
    leaf: int = 512
    positions: str = "seen"
    maximum: str = "ceil"
    exp2: str = "poly"
    probabilities: str = ""
    fold: str = "ascending"

    def __post_init__(self) -> None:
        object.__setattr__(self, "probabilities", self.probabilities or self.input)
        choices = {
            "input": OUTPUTS,
            "output": OUTPUTS,
            "probabilities": (self.input,),
            "positions": ("seen", "absolute"),
            "maximum": ("ceil",),
            "exp2": ("poly", "hw(64)"),
            "fold": ("ascending",),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ContractError(f"{name} {getattr(self, name)!r}: use one of {allowed}")
        if isinstance(self.arithmetic, BlockFma) and self.arithmetic.input != self.input:
            raise ContractError(f"{self.arithmetic} does not multiply {self.input}")
        if self.leaf < 1:
            raise ContractError(f"a leaf of {self.leaf} keys: use at least 1")

    @property
    def tree(self) -> Tree:
        """The tree along the keys."""
        return Segment(self.leaf)

    def drawn_tree(self) -> tuple[Tree, str, int, int]:
        return self.tree, "key", 4 * self.leaf, self.arithmetic.block

    def evaluate(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        *,
        seen: npt.ArrayLike | None = None,
        causal: bool = False,
        scale: float | None = None,
        bias: npt.ArrayLike | None = None,
        softcap: float | None = None,
        sink: float | None = None,
        out_dtype: Any = "fp32",
        engine: str | None = None,
    ) -> Operand:
        """The exact bits of one head (or of several with their own keys), computed on a CPU.

        Args:
            q: [..., T, D], stored as `input`.
            k: [..., S, D]; v: [..., S, Dv]; the same leading axes as `q`.
            seen: bool, broadcasts to [..., T, S]: which keys a row sees; all if None.
            causal: row t sees keys up to S - T + t only.
            scale: factor of the scores; 1 / sqrt(D) if None.
            bias: fp32, broadcasts to [..., T, S]: the additive mask.
            softcap: the scores' cap, or None.
            sink: logit of the extra key, or None.
            out_dtype: "fp32" gives the value before the last rounding.
            engine: see `dot.dot`.

        Returns:
            [..., T, Dv]; a tensor if `q` is one, else an array.

        Raises:
            ShapeError, DTypeError, ContractError: operands that the contract does not take.
        """
        require_gradual_underflow()
        if self.exp2 != "poly":
            raise ContractError(f"exp2 {self.exp2}: only the chip itself can evaluate it")
        out = dtype_name(out_dtype)
        if out not in ("fp32", self.output):
            raise ContractError(f"this contract rounds to {self.output}, not to {out}")
        qs, ks, vs = (values(t, self.input, name) for t, name in ((q, "q"), (k, "k"), (v, "v")))
        lead, (rows, d), keys = qs.shape[:-2], qs.shape[-2:], ks.shape[-2]
        if ks.shape != (*lead, keys, d) or vs.shape[:-1] != (*lead, keys):
            raise ShapeError(f"q {qs.shape}, k {ks.shape}, v {vs.shape} do not fit together")
        visible = np.broadcast_to(True if seen is None else np.asarray(seen), (*lead, rows, keys))
        if causal:
            visible = visible & np.tri(rows, keys, keys - rows, dtype=bool)
        scale = 1 / math.sqrt(d) if scale is None else scale
        mask = (
            None if bias is None else np.broadcast_to(np.asarray(bias, np.float32), visible.shape)
        )
        y = np.zeros((*lead, rows, vs.shape[-1]), np.float32)
        for i in np.ndindex(lead):
            s = dot(qs[i], ks[i], self.scores, self.arithmetic, engine)
            x = exponents(s, scale, softcap, None if mask is None else mask[i])
            for t in range(rows):
                y[i][t] = self._row(x[t], vs[i], visible[i][t], sink, engine)
        return store(y, out, self.arithmetic.nan, q)

    def _row(self, x: F32, v: F32, seen: Seen, sink: float | None, engine: str | None) -> F32:
        """One row, from its exponents x [S], v [S, Dv] and the keys that it sees."""
        terms = np.concatenate([v, np.ones((len(v), 1), np.float32)], axis=1)  # o and l together
        m, acc = np.float32(-np.inf), np.zeros(terms.shape[1], np.float32)
        leaves = self._leaves(seen)
        for i, keys in enumerate(leaves):
            top = np.fmax.reduce(x[keys], initial=np.float32(-np.inf))
            leaf_m = np.ceil(top)
            p = nx.round_to(weights(x[keys], leaf_m), self.probabilities)
            leaf = self._chain(p, terms[keys], keys, engine)
            m, acc = (leaf_m, leaf) if i == 0 else fold_leaves(m, acc, leaf_m, leaf)
        if sink is not None and sink != -math.inf:
            x_sink = nx.mul32(np.float32(sink), LOG2E)
            m_sink = np.ceil(x_sink)
            o = nx.mul32(acc[:-1], power(nx.sub32(m, m_sink)) if m <= m_sink else np.float32(1))
            m, l = fold_leaves(m, acc[-1], m_sink, weights(x_sink, m_sink))  # noqa: E741
            acc = np.append(o, l)
        if not leaves and acc[-1] == 0:
            return np.zeros(v.shape[1], np.float32)
        return nx.div32(acc[:-1], acc[-1])

    def _leaves(self, seen: Seen) -> list[npt.NDArray[np.int64]]:
        """The positions of the seen keys of each leaf that has any."""
        at = np.flatnonzero(seen)
        number = np.arange(len(at)) if self.positions == "seen" else at
        return [at[number // self.leaf == i] for i in np.unique(number // self.leaf)]

    def _chain(self, p: F32, terms: F32, keys: npt.NDArray[np.int64], engine: str | None) -> F32:
        """Chains of p * terms over the keys of a leaf: p [n], terms [n, C] -> [C].

        A tensor core takes its blocks at fixed places of the leaf, with zeros for keys not seen.
        """
        if isinstance(self.arithmetic, BlockFma) and self.positions == "absolute":
            all_p = np.zeros(self.leaf, np.float32)
            all_terms = np.zeros((self.leaf, terms.shape[1]), np.float32)
            all_p[keys % self.leaf], all_terms[keys % self.leaf] = p, terms
            p, terms = all_p, all_terms
        row: F32 = dot(p[None], np.ascontiguousarray(terms.T), CHAIN, self.arithmetic, engine)[0]
        return row


def exponents(s: F32, scale: float, softcap: float | None, bias: F32 | None) -> F32:
    """x, the binary exponents of the softmax's terms, from the scores."""
    if softcap is None:
        x = nx.mul32(s, np.float32(scale * math.log2(math.e)))
    else:
        capped = functions.softcap_tanh(nx.mul32(s, np.float32(scale / softcap)))
        x = nx.mul32(capped, np.float32(softcap * math.log2(math.e)))
    return x if bias is None else nx.fma32(bias, LOG2E, x)


def weights(x: F32, m: F32) -> F32:
    """p = 2^(x - m) before its rounding; exactly 0 where x - m < -126."""
    return functions.exp2_flush(nx.sub32(x, m))


def fold_leaves(m: F32, a: F32, m1: F32, a1: F32) -> tuple[F32, F32]:
    """Folds the next leaf (maximum m1, chains a1) into the running (m, a)."""
    if m <= m1:
        return m1, nx.fma32(a, power(nx.sub32(m, m1)), a1)
    return m, nx.fma32(a1, power(nx.sub32(m1, m)), a)


def power(n: F32) -> F32:
    """2^n for an integer n <= 0: exact, and 0 below -126 or for NaN."""
    return np.array(2.0 ** int(n) if n >= -126 else 0.0, np.float32)
