"""Matrix products: what a result may be in any order, and with how many bits it was computed.

Only a sample is computed again, of the rows of the request and of the columns in which the runs
differ most, so that a vocabulary's worth of weights costs no more than a layer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from samebits.check.cause.capture import Operation
from samebits.engines.triton import device_class
from samebits.errors import DTypeError, SamebitsError
from samebits.plan import contract_of

_ROWS, _COLUMNS = 64, 256
#: Where the factors are among the operands, whether the second lies transposed, and the bias.
_FORMS = {
    "mm": (0, 1, True, None), "addmm": (1, 2, True, 0), "linear": (0, 1, False, 2),
    "mv": (1, 0, False, None), "bmm": (0, 1, True, None),
}  # fmt: skip
_PARTS = (2, 3, 4, 8, 16)
#: Unit roundoff of an accumulator in fp32 that is cut off, as on tensor cores, or rounded.
UNIT = 2.0**-23
#: Of the last rounding.
OUTPUT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}

#: Types that operands are rounded to on the way.
_SHORTER = {
    "e5m2": torch.float8_e5m2, "e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16,
    "fp16": torch.float16,
}  # fmt: skip

Cut = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Product:
    """A sample of ``y = x w^T + bias``.

    Attributes:
        x, w, bias: [R, K], [N, K], [N] or None, in binary64.
        y: [R, N] as the run computed it, in binary64.
        inputs, output: types of the factors and of the result.
        device: device class of the contract that it would have.
    """

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None
    y: torch.Tensor
    inputs: torch.dtype
    output: torch.dtype
    device: str

    def exact(self, cut: Cut = lambda t: t) -> torch.Tensor:
        """The result in binary64, of factors that `cut` has rounded."""
        product = cut(self.x) @ cut(self.w).mT
        return product if self.bias is None else product + self.bias

    def of_bound(self) -> float:
        """How far the run's result is from the exact one, as a share of what any order can cause.

        1 is the end of the contract's interval over all orders (`LinearContract.interval`); the
        largest share of the sample's elements.
        """
        low, high = self._ends()
        exact, tiny = self.exact(), torch.finfo(self.output).tiny
        error = self.y - exact
        most = torch.where(error < 0, exact - low, high - exact).clamp(min=tiny)
        share = (error.abs() / most).nan_to_num(float("inf"), posinf=float("inf"))
        # An end itself may come out as 1 + 1e-16.
        inside = (low <= self.y) & (self.y <= high)
        return float(torch.where(inside, share.clamp(max=1.0), share).max())

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest result of any order, [R, N]."""
        try:
            contract: Any = contract_of(
                "linear", n=len(self.w), k=self.x.shape[1], dtype=self.inputs, device=self.device
            )
            x, w = (t.to(self.inputs).cpu() for t in (self.x, self.w))
            bias = None if self.bias is None else self.bias.float().cpu()
            found = contract.interval(x, w, bias, self.output, order="any", replay=False)
            ends = torch.from_numpy(found.low), torch.from_numpy(found.high)
            return ends[0].to(self.y.device), ends[1].to(self.y.device)
        except (SamebitsError, ValueError):
            # No contract for these types or this device: gamma_K sum |x||w| with fp32 accumulators
            # that are cut off, and the rounding to the output.
            size = self.x.abs() @ self.w.abs().mT
            if self.bias is not None:
                size = size + self.bias.abs()
            exact = self.exact()
            last = OUTPUT[self.output] * exact.abs() + torch.finfo(self.output).tiny
            bound = (self.x.shape[1] + 2) * UNIT * size + last
            return exact - bound, exact + bound

    def narrower(self) -> str | None:
        """With which fewer bits it was computed: ``tf32``, ...; None: with those of its factors.

        A product of rounded factors is told by its distance: it is much nearer to the exact product
        of the rounded factors than to that of the factors themselves.
        """
        if not bool(self.y.isfinite().all()):
            return None
        plain = self._distance(self.exact())
        found = [(self._distance(value), label) for label, value in self._candidates()]
        least = min((distance for distance, _ in found), default=plain)
        # fp16 and tf32 have equally many fraction bits: of candidates as near the first is meant.
        distance, label = next((f for f in found if f[0] <= 1.01 * least), (plain, ""))
        # Half: the last rounding of a 16-bit output hides a part of any distance.
        return label if distance < 0.5 * plain else None

    def _distance(self, value: torch.Tensor) -> float:
        rounded = value.to(self.output).double()
        return float((self.y - rounded).square().mean().sqrt())

    def _candidates(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.inputs is torch.float32:
            yield "tf32", self.exact(_tf32)
            yield "bf16", self.exact(lambda t: t.bfloat16().double())
            yield "fp16", self.exact(lambda t: t.half().double())
        narrow = torch.float16 if self.output is torch.float16 else torch.bfloat16
        bias = 0.0 if self.bias is None else self.bias
        for parts in _PARTS:
            if self.x.shape[1] % parts:
                continue
            pairs = zip(self.x.chunk(parts, 1), self.w.chunk(parts, 1), strict=True)
            sums = [(a @ b.mT).to(narrow).double() for a, b in pairs]
            label = f"16-bit partial sums ({parts} parts)"
            yield label, torch.stack(sums).sum(0) + bias
            yield label, _added(sums, narrow) + bias


def sample(first: Operation, second: Operation) -> tuple[Product, Product] | None:
    """The same elements of both calls of a product; None where they are not such products.

    Of a batch of products the one in which they differ most.
    """
    pairs = list(zip(_whole(first), _whole(second), strict=False))
    if not pairs or any(x.y.shape != y.y.shape for x, y in pairs):
        return None
    gaps = [(x.y - y.y).abs().nan_to_num(float("inf")) for x, y in pairs]
    gap, (x, y) = max(zip(gaps, pairs, strict=True), key=lambda one: float(one[0].max()))
    rows = gap.amax(1).topk(min(_ROWS, len(gap))).indices
    columns = gap.amax(0).topk(min(_COLUMNS, gap.shape[1])).indices
    return _cut(x, rows, columns), _cut(y, rows, columns)


def _whole(op: Operation) -> list[Product]:
    """The request's rows of each product, nothing computed yet; none where it is no product."""
    name = op.func._schema.name
    own = name.partition("::")[2].rstrip("_")
    form = (0, 1, False, None) if op.twin is not None else _FORMS.get(own)
    operands = op.operands
    if form is None or not (name.startswith("aten::") or op.twin is not None):
        return []
    left, right, transposed, third = form
    if len(operands) <= max(left, right) or not op.output:
        return []
    x, w, y = op.parts(operands[left : left + 1]), operands[right], op.parts(op.output[:1])
    bias = operands[third] if third is not None and len(operands) > third else None
    if not x or not y or y[0].dtype not in OUTPUT or w.dim() not in (2, 3) or not y[0].numel():
        return []
    if any(op.kwargs.get(k, 1) != 1 for k in ("alpha", "beta")):
        return []
    if w.dim() == 2:
        a, b = (t.reshape(-1, t.shape[-1]) for t in (x[0], y[0]))
        return _products([(a, w.mT if transposed else w, b)], bias)
    ws = op.parts([w])
    if op.alone or not ws or {x[0].dim(), ws[0].dim(), y[0].dim()} != {3}:
        return []  # a token cannot be cut out of both factors
    w = ws[0].mT if transposed else ws[0]
    return _products(list(zip(x[0], w, y[0], strict=False)), bias)


def _products(
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], bias: torch.Tensor | None
) -> list[Product]:
    """Products x [R, K] times w [N, K] that gave y [R, N]; none where one has other shapes."""
    found = []
    for x, w, y in parts:
        fits = x.shape[1] == w.shape[1] and y.shape == (len(x), len(w))
        if not fits or (bias is not None and bias.shape != (len(w),)):
            return []
        found.append(Product(x, w, bias, y.double(), w.dtype, y.dtype, _device(w)))
    return found


def _cut(p: Product, rows: torch.Tensor, columns: torch.Tensor) -> Product:
    bias = None if p.bias is None else p.bias[columns].double()
    x, w = p.x[rows].double(), p.w[columns].double()
    return Product(x, w, bias, p.y[rows][:, columns], p.inputs, p.output, p.device)


def _device(t: torch.Tensor) -> str:
    """The device class of a tensor; ``cuda`` for one that has no contracts."""
    if not t.is_cuda:
        return "cpu"
    try:
        return device_class(t.get_device())
    except DTypeError:
        return "cuda"


def _added(sums: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Partial sums added in 16 bits, as atomic additions do."""
    total = sums[0]
    for part in sums[1:]:
        total = (total + part).to(dtype).double()
    return total


def _tf32(t: torch.Tensor) -> torch.Tensor:
    """fp32 values with ten fraction bits, rounded to nearest even."""
    drop = 13
    words = t.float().view(torch.int32)
    half = (1 << (drop - 1)) - 1 + ((words >> drop) & 1)
    return ((words + half) >> drop << drop).view(torch.float32).double()


def rounding(a: torch.Tensor, b: torch.Tensor) -> tuple[int, str] | None:
    """Which of two tensors (0 or 1) is the other rounded to a shorter type, and to which.

    None: neither is.
    """
    if a.shape != b.shape or a.dtype is not b.dtype or a.dtype not in OUTPUT or not a.numel():
        return None
    for which, (wide, narrow) in enumerate(((b, a), (a, b))):
        for label, dtype in _SHORTER.items():
            if dtype.itemsize < a.dtype.itemsize and torch.equal(
                wide.to(dtype).to(a.dtype), narrow
            ):
                return which, label
        if a.dtype is torch.float32 and _is_tf32(wide, narrow):
            return which, "tf32"
    return None


def _is_tf32(wide: torch.Tensor, narrow: torch.Tensor) -> bool:
    """Whether fp32 numbers are others cut to ten fraction bits, however the last was rounded."""
    if bool((narrow.contiguous().view(torch.int32) & 0x1FFF).any()):
        return False
    return bool(((wide - narrow).abs() <= 2.0**-10 * wide.abs()).all())
