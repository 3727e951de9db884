"""What every machine computes for a record: the same operands everywhere, made from integers.

A case runs an operation of torch on one device, and evaluates a contract. Which operands those are,
and which results a record samples, follows from the case's name and sizes alone.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from samebits.contract import Contract
from samebits.contract.exact.contract import ExactContract
from samebits.contract.intervals.interval import Interval
from samebits.contract.random import philox
from samebits.engines import family
from samebits.models import tiny
from samebits.ops import exact, logsumexp, vector_norm
from samebits.plan.contracts import contract_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Where functions have their edges; a recorded function gets every kind of number besides.
_EDGES = (
    0.0, -0.0, 1.0, -1.0, 0.5, 88.7, -88.0, -104.0, 127.9, 128.0, -126.0, -149.0, 1e-45, -1e-38,
    3.4e38, -3.4e38, float("inf"), float("-inf"), float("nan"), 131072.0, -1e22,
)  # fmt: skip
_PROMPT = b"ROMEO:\nBut soft, what light through yonder window breaks?"


def words(name: str, count: int) -> Any:
    """`count` 32-bit words, a function of `name`: Philox-4x32-10 keyed by its CRC."""
    counter = np.zeros((-(-count // 4), 4), np.uint32)
    counter[:, 0] = np.arange(len(counter))
    return philox(counter, (zlib.crc32(name.encode()), 0)).reshape(-1)[:count]


def numbers(name: str, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of either sign between 2^-20 and 8, a function of `name`: products of integers."""
    drawn = words(name, int(np.prod(shape))).astype(np.int64)
    values = ((drawn & 0xFFFF) * 2 - 0xFFFF) * 2.0 ** (((drawn >> 16) & 7) - 20)
    return torch.from_numpy(values.astype(np.float32).reshape(shape)).to(dtype)


@dataclass(frozen=True)
class Case(ABC):
    """One operation on fixed operands.

    Attributes:
        dtype: of operands and result, as contracts name it.
    """

    dtype: str

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in records: equal names, equal operands."""

    @abstractmethod
    def run(self, device: torch.device) -> torch.Tensor:
        """The operation, as torch offers it."""

    def contract(self, device_class: str) -> Contract | None:
        """What decides its bits on a device class; None if that is no `Contract`.

        Raises:
            ContractError: nothing does.
        """
        return None

    def sampled(self, result: torch.Tensor) -> torch.Tensor:
        """The results that a record keeps."""
        return result.flatten()[:16]

    def evaluated(self, contract: Contract) -> torch.Tensor:
        """The whole result by a contract."""
        raise NotImplementedError

    def interval(self, contract: Contract, order: str) -> Interval:
        """Between which numbers the sampled results lie."""
        raise NotImplementedError

    @property
    def _torch(self) -> torch.dtype:
        return DTYPES[self.dtype]


@dataclass(frozen=True)
class Linear(Case):
    """[m, k] x [n, k]."""

    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"linear {self.dtype} {self.m}x{self.n}x{self.k}"

    def contract(self, device_class: str) -> Contract:
        return contract_of("linear", n=self.n, k=self.k, dtype=self.dtype, device=device_class)

    def run(self, device: torch.device) -> torch.Tensor:
        return F.linear(*(t.to(device) for t in self._operands))

    def sampled(self, result: torch.Tensor) -> torch.Tensor:
        rows, columns = self._places
        return result[rows][:, columns]

    def evaluated(self, contract: Contract) -> torch.Tensor:
        y = contract.evaluate(*self._operands, out_dtype=self.dtype)
        assert isinstance(y, torch.Tensor)
        return y

    def interval(self, contract: Any, order: str) -> Interval:
        return contract.interval(*self._sample, out_dtype=self.dtype, order=order)  # type: ignore[no-any-return]

    @property
    def _operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            numbers(f"x {self.name}", self.m, self.k, dtype=self._torch),
            numbers(f"w {self.name}", self.n, self.k, dtype=self._torch),
        )

    @property
    def _places(self) -> tuple[list[int], list[int]]:
        columns = sorted({i * (self.n - 1) // 7 for i in range(8)})
        return sorted({0, self.m // 2, self.m - 1}), columns

    @property
    def _sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        (x, w), (rows, columns) = self._operands, self._places
        return x[rows], w[columns]


@dataclass(frozen=True)
class Row(Case):
    """An operation along three rows of n elements."""

    op: str
    n: int

    @property
    def name(self) -> str:
        return f"{self.op} {self.dtype} {self.n}"

    def contract(self, device_class: str) -> Contract:
        return contract_of(str(self.op), dtype=self.dtype, device=device_class)

    def run(self, device: torch.device) -> torch.Tensor:
        x, *parameters = (t.to(device) for t in self._operands)
        summed = family.in_force() == "exact"
        call: dict[str, Any] = {
            "sum": lambda: x.sum(-1),
            "mean": lambda: x.mean(-1),
            "var": lambda: x.var(-1),
            "norm": lambda: exact.vector_norm(x, -1) if summed else vector_norm(x, 2, -1),
            "logsumexp": lambda: (exact.logsumexp if summed else logsumexp)(x, -1),
            "softmax": lambda: x.softmax(-1),
            "log_softmax": lambda: x.log_softmax(-1),
            "rms_norm": lambda: F.rms_norm(x, (self.n,), parameters[0], 1e-5),
            "layer_norm": lambda: F.layer_norm(x, (self.n,), parameters[0], parameters[1], 1e-5),
        }
        result: torch.Tensor = call[self.op]()
        return result

    def sampled(self, result: torch.Tensor) -> torch.Tensor:
        return result if result.dim() == 1 else result[:, :: max(1, self.n // 8)]

    def evaluated(self, contract: Contract) -> torch.Tensor:
        y = contract.evaluate(*self._operands, out_dtype=self.dtype)
        assert isinstance(y, torch.Tensor)
        return y

    def interval(self, contract: Any, order: str) -> Interval:
        found = contract.interval(*self._operands, out_dtype=self.dtype, order=order)
        return found if found.first.ndim == 1 else found[:, :: max(1, self.n // 8)]  # type: ignore[no-any-return]

    @property
    def _operands(self) -> list[torch.Tensor]:
        shapes: dict[str, tuple[int, ...]] = {"x": (3, self.n)}
        if self.op in ("rms_norm", "layer_norm"):
            shapes["weight"] = (self.n,)
        if self.op == "layer_norm":
            shapes["bias"] = (self.n,)
        return [numbers(f"{k} {self.name}", *s, dtype=self._torch) for k, s in shapes.items()]


@dataclass(frozen=True)
class Attention(Case):
    """The last `rows` positions of a causal sequence: 4 query heads, 2 KV heads of 64."""

    rows: int
    keys: int

    @property
    def name(self) -> str:
        return f"attention {self.dtype} {self.rows} of {self.keys}"

    def contract(self, device_class: str) -> Contract:
        return contract_of("attention", dtype=self.dtype, head_dim=64, device=device_class)

    def run(self, device: torch.device) -> torch.Tensor:
        from samebits.ops import attention

        q, k, v = (t.to(device) for t in self._operands)
        run = exact.attention if family.in_force() == "exact" else attention
        y = run(q, k, v, causal=True, q_start=self.keys - self.rows)
        assert isinstance(y, torch.Tensor)
        return y

    def sampled(self, result: torch.Tensor) -> torch.Tensor:
        return result[0, 1, ::2, :16]

    def evaluated(self, contract: Contract) -> torch.Tensor:
        q, k, v = self._operands
        if not isinstance(contract, ExactContract):  # which shares keys among heads itself
            k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        y = contract.evaluate(q, k, v, causal=True, out_dtype=self.dtype)
        assert isinstance(y, torch.Tensor)
        return y

    def interval(self, contract: Any, order: str) -> Interval:
        q, k, v, seen = self._sample
        found: Interval = contract.interval(q, k, v, seen=seen, out_dtype=self.dtype, order=order)
        return found[..., :16]

    @property
    def _operands(self) -> tuple[torch.Tensor, ...]:
        sizes = {"q": (4, self.rows), "k": (2, self.keys), "v": (2, self.keys)}
        return tuple(
            numbers(f"{name} {self.name}", 1, *size, 64, dtype=self._torch)
            for name, size in sizes.items()
        )

    @property
    def _sample(self) -> tuple[Any, ...]:
        q, k, v = self._operands
        position = self.keys - self.rows + np.arange(0, self.rows, 2)
        seen = np.arange(self.keys)[None] <= position[:, None]
        return q[0, 1, ::2], k[0, 0], v[0, 0], seen


@dataclass(frozen=True)
class Function(Case):
    """A function of every element, at its edges and at numbers of all magnitudes."""

    op: str

    @property
    def name(self) -> str:
        return f"{self.op} {self.dtype}"

    def run(self, device: torch.device) -> torch.Tensor:
        any_bits = torch.from_numpy(words(self.name, 6000).view(np.float32))
        near = numbers(f"near {self.name}", 2000, dtype=torch.float32)
        x = torch.cat([torch.tensor(_EDGES), any_bits, near]).to(self._torch).to(device)
        function = getattr(F, self.op, None) or getattr(torch, self.op)
        result: torch.Tensor = function(x)
        return result


@dataclass(frozen=True)
class Model(Case):
    """The logits of the bundled model's prompt, in one call, and of a long text."""

    tokens: int

    @property
    def name(self) -> str:
        return f"model {self.dtype} {self.tokens} tokens"

    def run(self, device: torch.device) -> torch.Tensor:
        model = tiny.load(dtype=self._torch, device=device)
        text = (_PROMPT * (self.tokens // len(_PROMPT) + 1))[: self.tokens]
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([list(text)], device=device))
        return logits

    def sampled(self, result: torch.Tensor) -> torch.Tensor:
        return result[0, -1, 96:112]


_ROWS = ("sum", "mean", "var", "norm", "logsumexp", "softmax", "log_softmax", "rms_norm",
         "layer_norm")  # fmt: skip
_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "rsqrt", "sqrt",
              "sigmoid", "silu", "gelu")  # fmt: skip


def cases(contracts: str) -> list[Case]:
    """All cases of a record; functions and whole models only where the family is "portable", no
    variance where it is "exact": that has no exact contract."""
    found: list[Case] = []
    for dtype in DTYPES:
        found += [Linear(dtype, *size) for size in ((7, 96, 320), (130, 264, 1100), (5, 64, 2560))]
    rows = [op for op in _ROWS if contracts != "exact" or op != "var"]
    for dtype in ("fp32", "bf16"):
        found += [Row(dtype, op, 1000) for op in rows]
    found += [Row("fp32", op, 20001) for op in rows]
    found += [Attention(dtype, *size) for dtype in DTYPES for size in ((6, 6), (5, 700))]
    if contracts == "portable":
        found += [Function(dtype, op) for op in _FUNCTIONS for dtype in ("fp32", "bf16")]
        found += [Model(dtype, len(_PROMPT)) for dtype in DTYPES]
        found.append(Model("fp32", 700))
    return found
