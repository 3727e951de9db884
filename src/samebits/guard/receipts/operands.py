"""Operands and results of sampled operations, kept while a request is served, for an audit.

One position of a request is chosen evenly among all that are computed (reservoir sampling: the
number need not be known ahead). For it the operands' row and the result's row of every
`torch.nn.Linear` are kept, and of every attention one head, with the keys and values that it saw.
A gate between products needs nothing of its own: its operands are two products' results, and its
result is the operand of a third.
Words are kept as they were: an audit compares bits.
"""

from __future__ import annotations

import inspect
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import torch

from samebits.contract.operands import dtype_name


class Product(msgspec.Struct, frozen=True, kw_only=True, tag="linear", tag_field="op"):
    """One row of a product with a weight: y = x w^T (+ bias), rounded.

    Attributes:
        place: the module; its parameters are ``place.weight`` and perhaps ``place.bias``.
        position: of the token.
        dtype: of x, the weight and y.
        x: [k] words; y: [n] words, little-endian.
        bias: whether the module has one.
    """

    place: str
    position: int
    dtype: str
    k: int
    n: int
    x: bytes
    y: bytes
    bias: bool


class Attended(msgspec.Struct, frozen=True, kw_only=True, tag="attention", tag_field="op"):
    """One head of one query's attention.

    Attributes:
        place: the attention module.
        position: of the query.
        dtype: of all operands and the result.
        head: of the query.
        q: [d] words; k: [keys, d]; v: [keys, dv]; y: [dv].
        seen: [keys] bytes 0 or 1; None: all are seen. Key 0 is the sequence's position 0.
        scale, softcap, sink: as `AttentionContract.evaluate` takes them.
    """

    place: str
    position: int
    dtype: str
    head: int
    d: int
    dv: int
    keys: int
    q: bytes
    k: bytes
    v: bytes
    y: bytes
    seen: bytes | None
    scale: float | None
    softcap: float | None
    sink: float | None


class Gated(msgspec.Struct, frozen=True, kw_only=True, tag="gate", tag_field="op"):
    """A gate whose operands and result are those of products that are kept: round(f(gate)) * up.

    Attributes:
        place: the module.
        position: of the token.
        dtype: of all three.
        n: numbers in a row.
        function: f, one of `FUNCTIONS`.
        gate, up: places of the products whose results are its operands.
        down: place of the product whose operand is its result.
    """

    place: str
    position: int
    dtype: str
    n: int
    function: str
    gate: str
    up: str
    down: str


#: Functions of gates, by the class that computes them in transformers and torch.
FUNCTIONS = {"SiLUActivation": "silu", "SiLU": "silu", "GELUTanh": "gelu_tanh"}
#: What a module of three products computes if it is a gate; many of transformers' models have it.
_GATE = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"


def gate_of(module: torch.nn.Module) -> str | None:
    """The function of a gate, if `module` is one whose formula is known; else None."""
    parts = (getattr(module, f"{name}_proj", None) for name in ("gate", "up", "down"))
    if not all(type(part) is torch.nn.Linear for part in parts):
        return None
    if _GATE not in _source(type(module).forward):
        return None
    return FUNCTIONS.get(type(getattr(module, "act_fn", None)).__name__)


@lru_cache(maxsize=64)
def _source(function: Callable[..., Any]) -> str:
    """Its text; empty where there is none."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


class Rotated(msgspec.Struct, frozen=True, kw_only=True, tag="rotary", tag_field="op"):
    """Rotary embedding of one head's query: round(round(x cos) + round(rotate(x) sin)), where
    rotate gives (-x2, x1) for the halves of x.

    Its operand is a product's result and its result is the query of the attention that follows.

    Attributes:
        place: the attention module.
        position: of the token.
        dtype: of all of them.
        head: of the query.
        n: numbers of a head.
        query: place of the product that gave all heads' queries.
        cos, sin: [n] words.
    """

    place: str
    position: int
    dtype: str
    head: int
    n: int
    query: str
    cos: bytes
    sin: bytes


#: What an attention module whose queries are rotated so contains, and what its function does.
_ROTARY = (
    "query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)\n",
    "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n",
)
_ROTATION = "q_embed = (q * cos) + (rotate_half(q) * sin)\n"
_HALVES = ("x1 = x[..., : x.shape[-1] // 2]\n", "torch.cat((-x2, x1), dim=-1)\n")


def rotates(module: torch.nn.Module) -> bool:
    """Whether `module` is attention whose queries are rotated by the known formula."""
    forward = inspect.unwrap(type(module).forward)  # its globals are the model's
    known: dict[str, Any] = getattr(forward, "__globals__", {})
    return (
        type(getattr(module, "q_proj", None)) is torch.nn.Linear
        and all(line in _source(forward) for line in _ROTARY)
        and _source(forward).count("query_states =") == 1
        and _ROTATION in _source(known.get("apply_rotary_pos_emb", rotates))
        and all(line in _source(known.get("rotate_half", rotates)) for line in _HALVES)
    )


Span = tuple[int, int, int]
"""First flat row, number of rows, and position of the first, of consecutive tokens."""
Visible = tuple[int, torch.Tensor]
"""The first key that belongs to a sequence, and which keys [S] a query sees."""
Sample = Product | Attended | Gated | Rotated
_decoder: msgspec.msgpack.Decoder[list[Sample]] = msgspec.msgpack.Decoder(list[Sample])


def pack(samples: Sequence[Sample]) -> bytes:
    """The object that holds samples."""
    return msgspec.msgpack.encode(list(samples))


def unpack(body: bytes) -> list[Sample]:
    """The samples in an object.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: it holds none.
    """
    return _decoder.decode(body)


@dataclass
class Target:
    """What is kept of one request.

    Attributes:
        samples: of the position that is kept, in order of execution.
        angles: cos and sin [n] of rotary embedding, in the attention module that runs.
    """

    draw: random.Random
    samples: list[Sample] = field(default_factory=list)
    met: int = 0
    flat: int | None = None
    position: int = -1
    angles: tuple[torch.Tensor, torch.Tensor] | None = None

    def offer(self, spans: Sequence[Span]) -> None:
        """Chooses among the request's tokens of a forward pass, and those before it, evenly."""
        count = sum(n for _, n, _ in spans)
        self.met += count
        self.flat = None
        at = self.draw.randrange(self.met) if count else self.met
        for flat, n, position in spans:
            if at < n:
                self.flat, self.position, self.samples = flat + at, position + at, []
                return
            at -= n


class Sampler:
    """Keeps samples of some requests of a batch.

    Args:
        model: its `torch.nn.Linear` modules are listened to.
        draw: decides on positions and heads.

    Attributes:
        targets: the requests that are kept, by key.
    """

    def __init__(self, model: torch.nn.Module, draw: random.Random) -> None:
        self.targets: dict[int | str, Target] = {}
        self._draw = draw
        self._names = {module: name for name, module in model.named_modules()}
        gates = {name: gate_of(module) for module, name in self._names.items()}
        #: By the place of the product behind a gate: its own place, and its function.
        self._gates = {f"{name}.down_proj": (name, f) for name, f in gates.items() if f}
        self._total = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens to products and attention in the block."""
        with ExitStack() as stack:
            for module, name in self._names.items():
                if isinstance(module, torch.nn.Linear):
                    stack.callback(module.register_forward_hook(self._product(name)).remove)
                elif rotates(module):
                    hook = module.register_forward_pre_hook(self._angles, with_kwargs=True)
                    stack.callback(hook.remove)
            _listening.append(self)
            stack.callback(_listening.remove, self)
            yield

    def add(self, key: int | str) -> None:
        """Keeps samples of a request from now on."""
        self.targets[key] = Target(self._draw)

    def pop(self, key: int | str) -> bytes | None:
        """The object with a request's samples, which are kept no longer; None: there are none."""
        target = self.targets.pop(key, None)
        return pack(target.samples) if target is not None and target.samples else None

    def begin(self, total: int, spans: Callable[[Any], list[Span]]) -> None:
        """A forward pass of `total` rows begins; `spans(key)` are those of a request's tokens."""
        self._total = total
        for key, target in self.targets.items():
            target.offer(spans(key))

    def again(self) -> None:
        """The forward pass begins once more: what it has given so far does not count."""
        for target in self.targets.values():
            if target.flat is not None:
                target.samples = []

    def end(self) -> None:
        """The forward pass is over."""
        self._total = 0

    def _product(self, name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: torch.Tensor) -> None:
            x = args[0]
            if not self._total or math.prod(x.shape[:-1]) != self._total:
                return
            for target in self.targets.values():
                if target.flat is not None:
                    target.samples.append(
                        Product(
                            place=name, position=target.position, dtype=dtype_name(x.dtype),
                            k=x.shape[-1], n=output.shape[-1], bias=module.bias is not None,
                            x=words(x.reshape(self._total, -1)[target.flat]),
                            y=words(output.reshape(self._total, -1)[target.flat]),
                        )
                    )  # fmt: skip
                    if name in self._gates:
                        target.samples.append(self._gated(name, target.samples[-1]))

        return hook

    def _angles(self, _module: Any, _args: Any, options: dict[str, Any]) -> None:
        """Attention begins: what its queries will be rotated by."""
        for target in self.targets.values():
            target.angles = None
            given = options.get("position_embeddings")
            if target.flat is not None and given is not None:
                tables = [table.flatten(0, 1) for table in given]  # of all rows, or of one batch's
                row = target.flat % len(tables[0])
                if self._total and self._total % len(tables[0]) == 0:
                    target.angles = tables[0][row], tables[1][row]

    def _gated(self, down: str, behind: Sample) -> Gated:
        """The gate before a product that was kept."""
        assert isinstance(behind, Product)
        place, function = self._gates[down]
        return Gated(
            place=place, position=behind.position, dtype=behind.dtype, n=behind.k,
            function=function, gate=f"{place}.gate_proj", up=f"{place}.up_proj", down=down,
        )  # fmt: skip

    def attention(
        self,
        module: torch.nn.Module,
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
        visible: Callable[[int, int], Visible | None],
        options: dict[str, Any],
    ) -> None:
        """What an attention function computed for a batch of rows.

        Args:
            module: the layer's module.
            tensors: q [B, H, T, D], k [B, G, S, D], v [B, G, S, Dv], result [B, H, T, Dv].
            visible: for a row and column of q the first key that belongs to the sequence, and which
                keys [S] are seen; None where nobody can tell.
            options: scale, softcap, and sinks [H] or None.
        """
        q, k, v, y = tensors
        if q.shape[0] * q.shape[2] != self._total or module not in self._names:
            return
        for target in self.targets.values():
            if target.flat is not None:
                b, t = divmod(target.flat, q.shape[2])
                found = visible(b, t)
                if found is not None:
                    parts = q[b, :, t], k[b], v[b], y[b, :, t]
                    target.samples.append(self._attended(module, target, parts, found, options))

    def packed_attention(
        self,
        module: torch.nn.Module,
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
        offsets: tuple[torch.Tensor, torch.Tensor],
        window: int | None,
        options: dict[str, Any],
    ) -> None:
        """What an attention function computed for sequences one after another, causally.

        Args:
            module: the layer's module.
            tensors: q [total, H, D], k [keys, G, D], v [keys, G, Dv], result [total, H, Dv].
            offsets: where sequences begin among q's and k's rows, [sequences + 1] each.
            window: distances from here on are not seen; None: all are.
            options: as `attention`.
        """
        q, k, v, y = tensors
        if module not in self._names:
            return
        at_q, at_k = (x.tolist() for x in offsets)
        for target in self.targets.values():
            if target.flat is None or target.flat >= len(q):
                continue
            row = target.flat
            i = bisect_right(at_q, row) - 1
            keys = slice(at_k[i], at_k[i + 1])
            last = (at_k[i + 1] - at_k[i]) - (at_q[i + 1] - row)
            distance = last - torch.arange(keys.stop - keys.start)
            seen = (distance >= 0) & (distance < (window or keys.stop + 1))
            parts = q[row], k[keys].transpose(0, 1), v[keys].transpose(0, 1), y[row]
            target.samples.append(self._attended(module, target, parts, (0, seen), options))

    def _attended(
        self,
        module: torch.nn.Module,
        target: Target,
        parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
        visible: Visible,
        options: dict[str, Any],
    ) -> Attended:
        """One head of a query: q [H, D], k [G, S, D], v [G, S, Dv], result [H, Dv]."""
        q, k, v, y = parts
        start, seen = visible[0], visible[1].cpu()
        stop = int(seen.nonzero()[-1]) + 1 if bool(seen.any()) else start
        seen = seen[start:stop]
        head = self._draw.randrange(len(q))
        group = head // (len(q) // len(k))
        if target.angles is not None and all(x.dtype == q.dtype for x in target.angles):
            place, (cos, sin) = self._names[module], target.angles
            target.samples.append(
                Rotated(
                    place=place, position=target.position, dtype=dtype_name(q.dtype), head=head,
                    n=q.shape[1], query=f"{place}.q_proj", cos=words(cos), sin=words(sin),
                )
            )  # fmt: skip
            target.angles = None
        sinks = options.get("sinks")
        return Attended(
            place=self._names[module], position=target.position, head=head,
            dtype=dtype_name(q.dtype), d=q.shape[1], dv=v.shape[2], keys=stop - start,
            q=words(q[head]), k=words(k[group, start:stop]), v=words(v[group, start:stop]),
            y=words(y[head]),
            seen=None if bool(seen.all()) else seen.to(torch.uint8).numpy().tobytes(),
            scale=options.get("scale"), softcap=options.get("softcap"),
            sink=None if sinks is None else float(sinks[head]),
        )  # fmt: skip


_listening: list[Sampler] = []


def samplers() -> Sequence[Sampler]:
    """Who wants to know what attention computes; usually nobody."""
    return _listening


def words(x: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements, row-major."""
    return x.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()
