"""Attention: prefill, chunked prefill, decode and draft verification have ONE contract."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from samebits.contract import attention_steps as steps
from samebits.contract import functions, mufu
from samebits.contract import numerics as nx
from samebits.contract.arithmetic import Arithmetic, BlockFma
from samebits.contract.base import Contract
from samebits.contract.devices import hopper_mma
from samebits.contract.dot import dot, require_gradual_underflow
from samebits.contract.intervals import attention as intervals
from samebits.contract.intervals.interval import Interval, Order
from samebits.contract.numerics import F32
from samebits.contract.operands import OUTPUTS, Call, Operand, dtype_name, store, values
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
    leaf       `leaf` keys (see `positions`): m = ceil(max x), a power of two's exponent; then
               p = 2^(x - m), rounded once to `probabilities`;
               o[d] = chain of p v[d] and l = chain of p (against a column of ones), from +0
    fold       leaves in ascending order; the side with the smaller maximum is multiplied by an
               exact power of two (0 below 2^-126), so it does not matter when, or how often, a
               maximum is raised
    sink       one more key after all others: x = sink * fp32(log2 e), its p (by "poly") is not
               rounded and it has no value: l is folded with it, o is multiplied by the power of two
    result     o / l, times the values' scale if there is one, rounded once to `output`; a row that
               sees no key gives +0

    A key that is not seen takes no part: its K and V may hold anything. A leaf without a seen key
    is no leaf. There are two forms, by `maximum`:

    - "ceil": the maximum of a whole leaf, NaN passed over. x is rounded. The fold's first leaf is
      taken as it is, and the scaled side is scaled inside the fma that adds it to the other.
    - "ceil(64)": what a tensor core's kernel does. The maximum m' = max(m, ceil(max x)) is raised
      after each 64 positions of a leaf, NaN if one is NaN, and o and l are then multiplied by
      2^(m - m'). x = s * a is not rounded by itself: x - m is fma(s, a, -m), with an additive mask
      fma(s, a, fma(mask, fp32(log2 e), -m)), so that a mask of 0 changes nothing (with softcap x is
      rounded, and again with a mask). The fold is o = fma(o, 2^(M - M'), o' * 2^(m' - M')), l
      alike; a leaf whose maximum is -Inf is skipped, and a row whose maximum is -Inf gives +0.

    Attributes:
        arithmetic: what a step of the chains does.
        input: storage type of q.
        output: storage type of the result.
        kv: storage type of k and v: `input`, or e4m3, which is widened to `input` exactly.
        scores: tree along the head dimension.
        leaf: keys in a leaf.
        positions: "seen" counts the keys that the row sees (so padding and a window's position do
            not matter); "absolute" cuts at multiples of `leaf` of the sequence.
        maximum: the power-of-two maximum, see above.
        exp2: "poly" is `contract.functions.exp2_flush`, "poly(4)" and "poly(3)" are `exp2_short`;
            "hw" is the chip's own instruction, `contract.mufu`.
        probabilities: storage type that p is rounded to before it meets v.
        fold: order of the leaves.

    Raises:
        ContractError: parts that do not fit together.
    """

    kind: ClassVar[str] = "attention"

    arithmetic: Arithmetic
    input: str
    output: str
    kv: str = ""
    scores: Tree = CHAIN
    leaf: int = 512
    positions: str = "seen"
    maximum: str = "ceil"
    exp2: str = "poly"
    probabilities: str = ""
    fold: str = "ascending"

    def __post_init__(self) -> None:
        for name in ("kv", "probabilities"):
            object.__setattr__(self, name, getattr(self, name) or self.input)
        stepped = self.maximum == "ceil(64)"
        choices = {
            "input": OUTPUTS,
            "output": OUTPUTS,
            "kv": (self.input, "e4m3") if stepped else (self.input,),
            "probabilities": (self.input,) if stepped else (self.input, "fp32"),
            "maximum": ("ceil", "ceil(64)"),
            "positions": ("absolute",) if stepped else ("seen",),
            "exp2": ("poly(4)", "poly(3)", "hw") if stepped else ("poly",),
            "fold": ("ascending",),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ContractError(f"{name} {getattr(self, name)!r}: use one of {allowed}")
        if isinstance(self.arithmetic, BlockFma) != stepped:
            raise ContractError(f"{self.arithmetic} does not fit a maximum of {self.maximum}")
        if isinstance(self.arithmetic, BlockFma) and self.arithmetic.input != self.input:
            raise ContractError(f"{self.arithmetic} does not multiply {self.input}")
        if self.leaf < 1 or (stepped and self.leaf % steps.STEP):
            raise ContractError(
                f"a leaf of {self.leaf} keys: use at least 1, whole steps of {steps.STEP} with "
                "ceil(64)"
            )

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
        k_scale: float | None = None,
        v_scale: float | None = None,
        out_dtype: Any = "fp32",
        engine: str | None = None,
    ) -> Operand:
        """The exact bits of one head (or of several with their own keys), computed on a CPU.

        Args:
            q: [..., T, D], stored as `input`.
            k: [..., S, D]; v: [..., S, Dv], stored as `kv`; the same leading axes as `q`.
            seen: bool, broadcasts to [..., T, S]: which keys a row sees; all if None.
            causal: row t sees keys up to S - T + t only.
            scale: factor of the scores; 1 / sqrt(D) if None.
            bias: fp32, broadcasts to [..., T, S]: the additive mask.
            softcap: the scores' cap, or None.
            sink: logit of the extra key, or None.
            k_scale: fp32 factor of k, multiplied (rounded once) into what s is multiplied by.
            v_scale: fp32 factor of v, multiplied into the result (rounded once).
            out_dtype: "fp32" gives the value before the last rounding.
            engine: see `dot.dot`.

        Returns:
            [..., T, Dv]; a tensor if `q` is one, else an array.

        Raises:
            ShapeError, DTypeError, ContractError: operands that the contract does not take.
        """
        y, _ = self._evaluate(
            q, k, v, seen=seen, causal=causal, scale=scale, bias=bias, softcap=softcap, sink=sink,
            k_scale=k_scale, v_scale=v_scale, out_dtype=out_dtype, engine=engine,
        )  # fmt: skip
        return store(y, dtype_name(out_dtype), self.arithmetic.nan, q)

    def logsumexp(self, q: Operand, k: Operand, v: Operand, **options: Any) -> Operand:
        """The logsumexp of the scores, [..., T] fp32: fma(m, fp32(ln 2), log l), log of
        `contract.functions`; -Inf for a row that sees nothing. Arguments as `evaluate`.
        """
        lse = self._evaluate(q, k, v, **options)[1]
        return store(lse, "fp32", self.arithmetic.nan, q)

    def interval(
        self, q: Operand, k: Operand, v: Operand, *, order: Order = "contract", **options: Any
    ) -> Interval:
        """Between which numbers each result lies: certified, see docs/intervals.md.

        Args:
            q, k, v: as in `evaluate`.
            order: "contract": this contract's tree. "any": sums in every order, the softmax in
                pieces of 16 keys or more, with this arithmetic and this rounding of p.
            options: the other arguments of `evaluate`.

        Raises:
            ShapeError, DTypeError, ContractError: as `evaluate`; or an unknown order.
        """
        require_gradual_underflow()
        return intervals.interval(self, q, k, v, order=order, **options)

    def _evaluate(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        *,
        out_dtype: Any = "fp32",
        engine: str | None = None,
        **options: Any,
    ) -> tuple[F32, F32]:
        """Results before the last rounding [..., T, Dv], and their logsumexps [..., T]."""
        require_gradual_underflow()
        out = dtype_name(out_dtype)
        if out not in ("fp32", self.output):
            raise ContractError(f"this contract rounds to {self.output}, not to {out}")
        call = self.operands(q, k, v, **options)
        softcap, sink = call.softcap, call.sink
        factor = call.scale * math.log2(math.e) if softcap is None else call.scale / softcap
        a = np.array(factor, np.float32)
        if call.k_scale is not None:
            a = nx.mul32(a, np.float32(call.k_scale))
        lead, rows = call.q.shape[:-2], call.q.shape[-2]
        y = np.zeros((*lead, rows, call.v.shape[-1]), np.float32)
        lse = np.zeros((*lead, rows), np.float32)
        for i in np.ndindex(lead):
            s = dot(call.q[i], call.k[i], self.scores, self.arithmetic, engine)
            extra = None if call.bias is None else call.bias[i]
            if self.maximum == "ceil":
                x = exponents(s, a, softcap, extra)
                for t in range(rows):
                    y[i][t], lse[i][t] = self._row(x[t], call.v[i], call.seen[i][t], sink, engine)
            else:
                if softcap is None:
                    pair = steps.Exponents(s, a, extra)
                else:
                    pair = steps.Exponents(exponents(s, a, softcap, extra), None)
                y[i], lse[i] = self._rows(pair, call.v[i], call.seen[i], sink, engine)
        return (y if call.v_scale is None else nx.mul32(y, np.float32(call.v_scale))), lse

    def operands(
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
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> Call:
        """The values of the operands of `evaluate`, which fit together."""
        if self.maximum == "ceil" and not k_scale is v_scale is None:
            raise ContractError(f"k and v of {self.kv} have no scales in this contract")
        qs = values(q, self.input, "q")
        ks, vs = values(k, self.kv, "k"), values(v, self.kv, "v")
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
        return Call(qs, ks, vs, visible, mask, scale, softcap, sink, k_scale, v_scale)

    def _exp2(self, d: F32) -> F32:
        """2^d for d <= 0, in the form "ceil(64)"."""
        if self.exp2 == "hw":
            return mufu.ex2(d)
        return functions.exp2_short(d, int(self.exp2[5:-1]))

    def _rows(
        self, x: steps.Exponents, v: F32, seen: Seen, sink: float | None, engine: str | None
    ) -> tuple[F32, F32]:
        """All rows of a head in the form "ceil(64)"."""
        assert isinstance(self.arithmetic, BlockFma)
        m, l, o = steps.attend(  # noqa: E741
            x, v, seen, self.arithmetic, leaf=self.leaf, exp2=self._exp2,
            probabilities=self.probabilities, engine=engine,
        )  # fmt: skip
        if sink is not None:
            m, l, o = steps.fold_sink(m, l, o, sink)  # noqa: E741
        return steps.result(m, l, o)

    def _row(
        self, x: F32, v: F32, seen: Seen, sink: float | None, engine: str | None
    ) -> tuple[F32, F32]:
        """One row in the form "ceil": its exponents x [S], v [S, Dv], and the keys that it sees."""
        terms = np.concatenate([v, np.ones((len(v), 1), np.float32)], axis=1)  # o and l together
        m, acc = np.float32(-np.inf), np.zeros(terms.shape[1], np.float32)
        leaves = self._leaves(seen)
        for i, keys in enumerate(leaves):
            top = np.fmax.reduce(x[keys], initial=np.float32(-np.inf))
            leaf_m = np.ceil(top)
            p = nx.round_to(weights(x[keys], leaf_m), self.probabilities)
            leaf = dot(
                p[None], np.ascontiguousarray(terms[keys].T), CHAIN, self.arithmetic, engine
            )[0]
            m, acc = (leaf_m, leaf) if i == 0 else fold_leaves(m, acc, leaf_m, leaf)
        if sink is not None and sink != -math.inf:
            x_sink = nx.mul32(np.float32(sink), LOG2E)
            m_sink = np.ceil(x_sink)
            o = nx.mul32(acc[:-1], power(nx.sub32(m, m_sink)) if m <= m_sink else np.float32(1))
            m, l = fold_leaves(m, acc[-1], m_sink, weights(x_sink, m_sink))  # noqa: E741
            acc = np.append(o, l)
        lse = nx.fma32(m, steps.LN2, functions.log(acc[-1]))
        if not leaves and acc[-1] == 0:
            return np.zeros(v.shape[1], np.float32), lse
        return nx.div32(acc[:-1], acc[-1]), lse

    def _leaves(self, seen: Seen) -> list[npt.NDArray[np.int64]]:
        """The positions of each leaf's seen keys."""
        at = np.flatnonzero(seen)
        return [at[start : start + self.leaf] for start in range(0, len(at), self.leaf)]


def hopper_attention(
    input: str, *, kv: str = "", leaf: int = 512, exp2: str = "hw"
) -> AttentionContract:
    """The contract of sm_90: `hopper_mma`, absolute leaves, the maximum raised every 64 keys.

    Raises:
        ContractError: as `AttentionContract`.
    """
    return AttentionContract(
        hopper_mma(input), input, input, kv, leaf=leaf, positions="absolute", maximum="ceil(64)",
        exp2=exp2,
    )  # fmt: skip


def exponents(s: F32, a: F32, softcap: float | None, bias: F32 | None) -> F32:
    """x, the binary exponents of the softmax's terms, from the scores and their factor."""
    x = nx.mul32(s, a)
    if softcap is not None:
        capped = functions.softcap_tanh(x)
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
