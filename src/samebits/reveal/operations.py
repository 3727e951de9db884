"""Which operations are sums of addends that we choose, and how: by name, or a caller's function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from samebits.errors import RevealError
from samebits.reveal.operand import Levels, Operand
from samebits.reveal.positive import Terms

Function = Callable[..., Any]

_DTYPES = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
    "fp16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
#: Addends of a sum: as many units as fp32 counts beside a mask.
_MOST = 1 << 22
_FP8 = torch.float8_e4m3fn, torch.float8_e5m2
_NAMES = {dtype: name for name, dtype in _DTYPES.items() if name != "tf32"}
#: Operations with columns, with several matrices or heads, and those without rows.
_COLUMNS = frozenset({"mm", "linear", "bmm", "conv2d", "pv", "qk", "all_reduce"})
_MATRICES = frozenset({"bmm", "pv", "qk"})
_NO_ROWS = frozenset({"dot", "all_reduce"})


@dataclass(frozen=True)
class Request:
    """An operation and its sizes.

    Attributes:
        op: a key of `OPERATIONS`.
        k: addends of a sum: the length of the reduced axis; for "qk" the head dimension.
        m: rows: of x for matrix products and rows, queries for attention, batch for convolutions.
            None for a function of one vector, and for "dot" and "all_reduce", which have no rows.
        n: columns: output features, value dimension of "pv", keys of "qk"; for operations that have
            columns only.
        dtype: "fp64", "fp32", "tf32" (fp32 on tensor cores), "bf16", "fp16", "e4m3", "e5m2", or a
            torch dtype.
        device: "cpu", "cuda", ...
        batch: matrices of bmm, heads of attention.
        fn: the function to look at; torch's own if None.
    """

    op: str
    k: int
    m: int | None = None
    n: int | None = None
    dtype: str | torch.dtype = "fp32"
    device: str | torch.device = "cpu"
    batch: int = 1
    fn: Function | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.op, str) or self.op not in OPERATIONS:
            raise RevealError(f"{self.op!r} is not known: use one of {', '.join(OPERATIONS)}")
        if self.fn is not None and not callable(self.fn):
            raise RevealError(f"{self.fn!r} is no function: pass one, or the name of an operation")
        sizes = {"k": self.k, "m": self.m, "n": self.n, "batch": self.batch}
        for name, size in sizes.items():
            if size is None and name in ("m", "n"):
                continue
            if not isinstance(size, int | np.integer) or isinstance(size, bool):
                raise RevealError(f"{self.op}: {name} = {size!r}, where an integer is needed")
            if size < 1:
                raise RevealError(f"{self.op}: {name} = {size}, where at least 1 is needed")
        meaningless = [
            f"{name} = {size}"
            for name, size, has in (
                ("m", self.m, self.op not in _NO_ROWS),
                ("n", self.n, self.op in _COLUMNS),
                ("batch", None if self.batch == 1 else self.batch, self.op in _MATRICES),
            )
            if size is not None and not has
        ]
        if meaningless:
            own = "" if self.fn is None else "; op= says how a function is called"
            raise RevealError(f"{self.op} has no such size: {', '.join(meaningless)}{own}")
        if self.k > _MOST:
            raise RevealError(f"{self.op}: k = {self.k}; sums of up to {_MOST} addends are probed")
        known = (*_DTYPES, *_NAMES)
        if not any(self.dtype is d or (isinstance(d, str) and self.dtype == d) for d in known):
            raise RevealError(f"dtype {self.dtype} is not known: use one of {', '.join(_DTYPES)}")
        if self.where.type == "meta":
            raise RevealError(f"{self.op} on meta: its tensors have no numbers")
        if self.where.type == "cuda" and not torch.cuda.is_available():
            raise RevealError(
                f"{self.op} on {self.device}: this machine has no usable CUDA GPU: reveal on the "
                "CPU, or install a CUDA build of torch"
            )
        try:
            torch.zeros(1, device=self.where)
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            raise RevealError(f"{self.op} on {self.device}: {error}") from error

    @property
    def where(self) -> torch.device:
        """The device."""
        try:
            return torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise RevealError(f"device {self.device!r} is not known: {error}") from error

    @property
    def type(self) -> torch.dtype:
        """The dtype of tensors."""
        return self.dtype if isinstance(self.dtype, torch.dtype) else _DTYPES[self.dtype]

    @property
    def type_name(self) -> str:
        """The dtype's short name, "tf32" for fp32 on tensor cores."""
        return self.dtype if isinstance(self.dtype, str) else _NAMES[self.dtype]

    @property
    def rows(self) -> int:
        """m, or 1."""
        return 1 if self.m is None else self.m

    @property
    def columns(self) -> int:
        """n, or 1."""
        return 1 if self.n is None else self.n

    def __str__(self) -> str:
        sizes = [("batch", self.batch if self.batch > 1 else None), ("m", self.m), ("n", self.n)]
        shown = "".join(f"{name}={size}, " for name, size in sizes if size is not None)
        own = "" if self.fn is None else f" of {getattr(self.fn, '__qualname__', self.fn)}"
        return f"{self.op}({shown}k={self.k}){own}, {self.type_name}, {self.where.type}"


def operand_of(request: Request) -> tuple[Operand, Terms | None]:
    """The operation as a sum; with `Terms` if its terms are positive."""
    build, terms = OPERATIONS[request.op]
    if request.type in _FP8 and (terms is not None or request.op in ("pv", "qk")):
        raise RevealError(f"{request}: fp8 has no room for its probes; use bf16, fp16 or fp32")
    return build(request), terms


def _ones(request: Request, *shape: int) -> Tensor:
    """Ones, made through fp32: not every dtype can be filled."""
    return torch.ones(shape, device=request.where).to(request.type)


def _operand(request: Request, slots: int, run: Function, **more: Any) -> Operand:
    values = torch.bfloat16 if request.dtype == "tf32" else None
    return Operand(
        str(request), request.k, slots, request.type, request.where, run, values=values, **more
    )


@contextmanager
def _precision(request: Request) -> Iterator[None]:
    """fp32 products on a GPU: IEEE unless tf32 is asked for."""
    if request.type != torch.float32 or request.where.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.dtype == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _one(y: Any) -> Any:
    """A scalar as a matrix; what is none is left for the caller to refuse."""
    return y.reshape(1, 1) if isinstance(y, Tensor) and y.numel() == 1 else y


# ---- rows ---------------------------------------------------------------------------------------


def _row(stock: Function) -> Callable[[Request], Operand]:
    """Functions x [m, k] -> [m], or, if m is None, [k] -> a scalar."""

    def build(request: Request) -> Operand:
        fn = request.fn or stock
        if request.m is None:
            return _operand(request, 1, lambda x: _one(fn(x[0])))
        return _operand(request, request.m, lambda x: fn(x)[None], rowwise=True)

    return build


def _elements(stock: Function) -> Callable[[Request], Operand]:
    """Functions x [m, k] -> [m, k] or [m], of positive terms."""

    def build(request: Request) -> Operand:
        fn = request.fn or stock

        def run(x: Tensor) -> Tensor:
            y: Tensor = fn(x)
            return y.reshape(1, len(x), -1)

        return _operand(request, request.rows, run)

    return build


def _mean(request: Request) -> Operand:
    operand = _row(lambda x: torch.mean(x, -1))(request)
    operand.levels, operand.scale = _averaged(request)
    return operand


def _averaged(request: Request) -> tuple[Levels | None, float | None]:
    """fp16: a unit divided by k has to be seen in the result, as one step of 2^-24, or two or more.

    A mask of 65,504 swallows what is together less than 2^-10, the last bit of a fused block of 25.
    A unit is too small to measure 1 / k with, so that is known.
    """
    if request.type != torch.float16:
        return None, None
    k = request.k
    bits = (k - 1).bit_length() + bool(k & k - 1)
    if bits > 13:
        raise RevealError(f"{request}: fp16 has no room for masks beside a unit divided by {k}")
    return Levels(65504.0, 2.0 ** (bits - 24), max(2, (1 << 14 - bits) - 1)), 1 / k


# ---- products -----------------------------------------------------------------------------------


def _dot(request: Request) -> Operand:
    fn, one = request.fn or torch.dot, _ones(request, request.k)
    return _operand(
        request, 1, lambda w: fn(w[0], one).reshape(1, 1),
        multiply=lambda x, w: fn(w[0], x).reshape(1, 1),
    )  # fmt: skip


def _mv(request: Request) -> Operand:
    fn, one = request.fn or torch.mv, _ones(request, request.k)
    return _operand(
        request, request.rows, lambda w: fn(w, one)[None], multiply=lambda x, w: fn(w, x)[None],
        rowwise=True,
    )  # fmt: skip


def _linear(request: Request) -> Operand:
    if request.type in _FP8:
        return _scaled_linear(request)
    fn = request.fn or F.linear
    one = _ones(request, request.rows, request.k)

    def run(w: Tensor) -> Tensor:
        with _precision(request):
            y: Tensor = fn(one, w)
            return y

    def multiply(x: Tensor, w: Tensor) -> Tensor:
        with _precision(request):
            y: Tensor = fn(x.expand_as(one).contiguous(), w)
            return y

    return _operand(request, request.columns, run, multiply=multiply)


def _mm(request: Request) -> Operand:
    fn = request.fn or torch.mm
    one = _ones(request, request.rows, request.k)

    def run(w: Tensor) -> Tensor:
        with _precision(request):
            y: Tensor = fn(one, w.t().contiguous())
            return y

    return _operand(request, request.columns, run)


def _scaled_linear(request: Request) -> Operand:
    """fp8 products of torch._scaled_mm (or fn(x, w)), scales 1.

    e4m3 holds 2^17 between its smallest and largest numbers, which is too little to swamp units in
    fp32; so both factors take part, and a slot is an element of the diagonal.
    """
    scale = torch.ones((), device=request.where)

    def stock(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = torch._scaled_mm(
            x, w.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )
        return y

    fn, m, n = request.fn or stock, request.rows, request.columns
    slots = min(m, n)

    def padded(x: Tensor, rows: int) -> Tensor:
        full = _ones(request, rows, request.k)
        full.view(torch.uint8)[:slots] = x.view(torch.uint8)
        return full

    def run(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = fn(padded(x, m), padded(w, n))
        return y.diagonal()[None]

    levels = Levels(2.0**15, 2.0**-15, 32)
    return _operand(request, slots, run, levels=levels, factors=True)


def _bmm(request: Request) -> Operand:
    fn, b, n, k = request.fn or torch.bmm, request.batch, request.columns, request.k
    one = _ones(request, b, request.rows, k)

    def run(w: Tensor) -> Tensor:
        with _precision(request):
            y: Tensor = fn(one, w.view(b, n, k).transpose(1, 2).contiguous())
            return y.permute(1, 0, 2).reshape(-1, b * n)

    return _operand(request, b * n, run)


def _conv2d(request: Request) -> Operand:
    """3 x 3 kernels over k / 9 channels, images of 8 x 8; every position is a row."""
    if request.k % 9:
        raise RevealError(f"conv2d: k = {request.k} is no multiple of 9, the size of its kernel")
    fn, channels = request.fn or F.conv2d, request.k // 9
    one = _ones(request, request.rows, channels, 8, 8)

    def run(w: Tensor) -> Tensor:
        y: Tensor = fn(one, w.view(-1, channels, 3, 3))
        return y.permute(0, 2, 3, 1).reshape(-1, request.columns)

    return _operand(request, request.columns, run)


# ---- attention ----------------------------------------------------------------------------------


def _pv(request: Request) -> Operand:
    """The sum over keys: scores are equal, so that every probability is; addends are values."""
    fn = request.fn or F.scaled_dot_product_attention
    heads, d, keys = request.batch, request.n or 64, request.k
    q = _ones(request, 1, heads, request.rows, d) * 0
    k = _ones(request, 1, heads, keys, d) * 0

    def run(v: Tensor) -> Tensor:
        y: Tensor = fn(q, k, v.view(1, heads, d, keys).transpose(-1, -2).contiguous())
        return y[0].transpose(0, 1).reshape(request.rows, heads * d)

    levels, scale = _averaged(request)
    return _operand(request, heads * d, run, levels=levels, scale=scale)


#: Units of a score of "qk" that make one e-fold, and how many can be told apart in bf16.
_FOLD, _COUNTED = 16, 128


def _qk(request: Request) -> Operand:
    """The score of key 0, read from its share of the softmax: value 1 at it, 0 at the others.

    q is -1, so a count c makes a score of -c / 16; a smaller share keeps its relative precision.
    16 is a power of 4 because some kernels multiply q and k by its root.
    """
    fn = request.fn or F.scaled_dot_product_attention
    heads, keys, d = request.batch, request.n or 64, request.k
    if keys < 2:
        raise RevealError("qk: a score is read from a softmax over at least 2 keys")
    q = -_ones(request, 1, heads, request.rows, d)
    k = _ones(request, 1, heads, keys, d) * 0
    v = k.clone()
    v[:, :, 0] = 1

    def run(addends: Tensor) -> Tensor:
        k[0, :, 0] = addends
        y: Tensor = fn(q, k, v, scale=1 / _FOLD)
        share = y[0, :, :, 0].double().transpose(0, 1)
        counts = -_FOLD * torch.log(share / (1 - share) * (keys - 1))
        return torch.where(counts.abs() < 0.3, 0.0, counts)

    if request.type == torch.float16:
        raise RevealError("qk in fp16 has no room for a mask beside scores that can be read: bf16")
    levels = Levels(2.0**60, 1.0, _COUNTED)
    return _operand(request, heads, run, levels=levels, scale=1.0, direct=False)


# ---- collectives --------------------------------------------------------------------------------


def _all_reduce(request: Request) -> Operand:
    """torch.distributed: rank r holds leaf r of every sum; all ranks call this together."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        raise RevealError(
            "all_reduce: torch.distributed is not initialised: call this in every rank"
        )
    world, rank = distributed.get_world_size(), distributed.get_rank()
    if request.k != world:
        raise RevealError(f"all_reduce: k = {request.k}, but the group has {world} ranks")
    fn = request.fn or distributed.all_reduce

    def run(addends: Tensor) -> Tensor:
        mine = addends[:, rank].contiguous()
        fn(mine)
        distributed.broadcast(mine, 0)  # so that all ranks ask the same questions
        return mine[None]

    return _operand(request, request.columns, run)


def _cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1)[..., -1]


def _rms_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


#: An fma does not round a mask's square before it adds, so that has to be exact.
_SQUARES = Terms(
    lambda term: term**0.5, 0.0, tuple(x * x for x in (1, 1.25, 1.5, 1.75, 1.125, 1.375, 1.625))
)
_EXPONENTIALS = Terms(
    lambda term: float(torch.tensor(term, dtype=torch.float64, device="cpu").log()),
    float("-inf"),
    (1.0,),
)

#: Builders, and the terms of sums whose terms are positive.
OPERATIONS: dict[str, tuple[Callable[[Request], Operand], Terms | None]] = {
    "sum": (_row(lambda x: torch.sum(x, -1)), None),
    "mean": (_mean, None),
    "cumsum": (_row(_cumsum), None),
    "dot": (_dot, None),
    "mv": (_mv, None),
    "mm": (_mm, None),
    "linear": (_linear, None),
    "bmm": (_bmm, None),
    "conv2d": (_conv2d, None),
    "pv": (_pv, None),
    "qk": (_qk, None),
    "all_reduce": (_all_reduce, None),
    "softmax": (_elements(lambda x: torch.softmax(x, -1)), _EXPONENTIALS),
    "log_softmax": (_elements(lambda x: torch.log_softmax(x, -1)), _EXPONENTIALS),
    "logsumexp": (_elements(lambda x: torch.logsumexp(x, -1)), _EXPONENTIALS),
    "norm": (_elements(lambda x: torch.linalg.vector_norm(x, dim=-1)), _SQUARES),
    "rms_norm": (_elements(_rms_norm), _SQUARES),
}
