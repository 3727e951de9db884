"""Matrix products by cuBLASLt with a pinned algorithm.

A non-split algorithm of sm_90 walks k once, in ascending order, with the accumulator in the tensor
core: the tree `chain`. For fp32 operands the library's pedantic mode is the chain of IEEE fma; its
tf32 products have other bits than the chip's own step and are not taken.

Trees of several leaves are as many products, one after another, onto one fp32 matrix: the library
adds beta * C after the leaf is complete, by one IEEE addition.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits.contract import Balanced, Chain, LinearContract, Segment, Split, Tree
from samebits.contract.tree import cut
from samebits.engines.driver import _cuda
from samebits.engines.vendor.schedule import CublasLt
from samebits.errors import DeviceError

#: cudaDataType by torch dtype.
TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
#: cublasComputeType_t: fp32 accumulation; fp32 operands by fma on CUDA cores.
COMPUTE_32F, COMPUTE_32F_PEDANTIC = 68, 69
#: Every address and every stride is a multiple of so many bytes, or the product is not taken.
ALIGNMENT = 16
#: `Prepared` by contract, schedule and operands; one takes some hundred bytes of host memory.
_PLANS = _cuda.Memo(8192)

_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def run(
    contract: LinearContract,
    schedule: CublasLt,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> bool:
    """y = epilogue(x @ w.T), with the bits of `contract`, if the library takes the operands.

    Args:
        contract: its tree and arithmetic; y may hold fp32 instead of its output type.
        schedule: the algorithm.
        x: [M, K] or [B, M, K]; fp32, bf16 or fp16; rows or columns contiguous.
        w: [N, K] or [B, N, K], dtype of x, likewise (the right operand of ``mm``, transposed).
        y: [M, N] or [B, M, N], rows contiguous.
        c: bias, a view expanded to y's shape, or None.
        alpha, beta: factors of the product and of c.

    Returns:
        False, and nothing has been computed, where the library does not take the operands or would
        round in another order: take another schedule of the contract then (`refusal` says why).

    Raises:
        DeviceError: the schedule is for another version of the library.
    """
    if beta == 0:
        c = None
    plan = _PLANS.get(contract, schedule, x, w, y, c)
    if plan is None:
        plan = Prepared(contract, schedule, x, w, y, c)
        _PLANS.put(plan, contract, schedule, x, w, y, c)
    return plan.refusal is None and bool(plan.run(x, w, y, c, alpha, beta))


def refusal(
    contract: LinearContract,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    c: torch.Tensor | None = None,
) -> str | None:
    """Why `run` does not take these operands; None if it does."""
    tree = contract.tree
    if not isinstance(tree, Chain) and not _ascending(tree):
        return f"the tree is {tree}, not a chain or an ascending fold of chains"
    if contract.input not in ("bf16", "fp16", "fp32"):
        return f"the contract multiplies {contract.input}"
    if contract.scaling != "none" or set(contract.epilogue) - {"alpha", "bias"}:
        return f"scaling {contract.scaling}, epilogue {contract.epilogue}"
    if min(*y.shape, x.shape[-1]) < 1:
        return "an operand is empty"
    for name, t in (("x", x), ("w", w), ("y", y)):
        unit = ALIGNMENT // t.element_size()
        strides = [s for s, n in zip(t.stride()[-2:], t.shape[-2:], strict=True) if n > 1]
        if t.dtype not in TYPES:
            return f"{name} is {t.dtype}"
        if strides and 1 not in strides:
            return f"neither rows nor columns of {name} are contiguous: strides {t.stride()}"
        if any(s < 1 or (s > 1 and s % unit) for s in strides) or _apart(t) % unit:
            return f"strides {t.stride()} of {name} are not multiples of {ALIGNMENT} bytes"
        if t.data_ptr() % ALIGNMENT:
            return f"the address of {name} is not a multiple of {ALIGNMENT}"
        if max(*t.shape, *t.stride()) >= 2**31:
            return f"{name} is too large: shape {tuple(t.shape)}, strides {t.stride()}"
    if not _by_rows(y):
        return f"rows of y are not contiguous: strides {y.stride()}"
    if c is not None:
        if c.dtype is not y.dtype:
            return f"c is {c.dtype}, y {y.dtype}"
        if c.data_ptr() % ALIGNMENT:
            return f"the address of c is not a multiple of {ALIGNMENT}"
        if not _is_bias(c) and c.stride() != y.stride():
            return f"c has strides {c.stride()}: neither a row of bias nor those of y"
    return None


class Prepared:
    """The library's descriptors for operands of given shapes and strides, one product a leaf.

    Attributes:
        refusal: why the operands are not taken, or None.
    """

    def __init__(
        self,
        contract: LinearContract,
        schedule: CublasLt,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
    ) -> None:
        self.refusal = refusal(contract, x, w, y, c)
        if self.refusal is not None:
            return
        if schedule.version != _cuda.lt_version():
            raise DeviceError(
                f"{schedule} is for cuBLASLt {schedule.version}, this is {_cuda.lt_version()}: "
                "tune again on this machine"
            )
        k, tree = x.shape[-1], contract.tree
        self.device = y.get_device()
        self.leaves = [(0, k)] if isinstance(tree, Chain) else cut(tree, 0, k)  # type: ignore[arg-type]
        self.row_bias = c is not None and _is_bias(c)
        chain = len(self.leaves) == 1
        self.products = [
            describe(
                x[..., start:stop], w[..., start:stop], y, y.dtype if chain else torch.float32,
                bias=y.dtype if chain and self.row_bias else None,
            )
            for start, stop in self.leaves
        ]  # fmt: skip
        try:
            for product in self.products:
                product.pin(schedule.configuration())
        except DeviceError as refused:  # not for these sizes, or not with a bias
            self.refusal = str(refused)
            return
        self.scratch = max(product.workspace for product in self.products)

    def __call__(
        self,
        m: int,
        batch: int,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
        *_: Any,
    ) -> None:
        """As `run`, where that is known to take the factors: alpha = beta = 1 always are."""
        if not self.run(x, w, y, c, alpha, beta):
            raise AssertionError("factors that round in another order")

    def run(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        y: torch.Tensor,
        c: torch.Tensor | None,
        alpha: float,
        beta: float,
    ) -> bool:
        """y = epilogue(x @ w.T) for operands like those; returns as `run` in this module.

        x may have any leading axes over the same memory.
        """
        a, b, d, e = w.data_ptr(), x.data_ptr(), y.data_ptr(), 0 if c is None else c.data_ptr()
        # With one leaf and no c there is one rounding, of alpha * acc; else keep to the contract's.
        single = len(self.products) == 1
        if (e and beta != 1) or (alpha != 1 and (e or not single)):
            return False
        stream, size = _stream(self.device), self.scratch
        # Some algorithms count tiles in a few bytes. The allocator may have them back at once: what
        # it gives out next on this stream runs later.
        scratch = torch.empty(size, dtype=torch.uint8, device=y.device).data_ptr() if size else 0
        if single:
            bias, addend = (e, 0) if self.row_bias else (0, e)
            self.products[0].run(
                a, b, addend or d, d, bias, alpha, float(addend != 0), scratch, size, stream
            )
            return True
        acc = y
        if y.dtype is not torch.float32:
            acc = torch.empty_strided(y.shape, y.stride(), dtype=torch.float32, device=y.device)
        p, step_w, step_x = acc.data_ptr(), _step(w), _step(x)
        for product, (start, _) in zip(self.products, self.leaves, strict=True):
            product.run(
                a + start * step_w, b + start * step_x, p, p, 0, 1.0, float(start > 0), scratch,
                size, stream,
            )  # fmt: skip
        if c is not None:
            acc.add_(c)
        if acc is not y:
            y.copy_(acc)
        return True


def describe(
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    result: torch.dtype,
    *,
    bias: torch.dtype | None = None,
) -> _cuda.Product:
    """The library's descriptors of y = x @ w.T: y.T = w @ x.T, column major.

    Args:
        x, w, y: operands as `run` takes them.
        result: dtype of what is stored with the strides of y.
        bias: dtype of a bias [N], if there is one.
    """
    k, (m, n) = x.shape[-1], y.shape[-2:]
    compute = COMPUTE_32F_PEDANTIC if x.dtype is torch.float32 else COMPUTE_32F
    a, turned_a = _operand(w, n, k)
    b, turned_b = _operand(x, m, k)
    d = _cuda.Layout(TYPES[result], n, m, _leading(y), _apart(y))
    batch = y.shape[0] if y.dim() == 3 else 1
    kind = -1 if bias is None else TYPES[bias]
    return _cuda.Product(y.get_device(), compute, turned_a, not turned_b, a, b, d, batch, kind)


def _operand(t: torch.Tensor, rows: int, k: int) -> tuple[_cuda.Layout, bool]:
    """The column-major layout of [rows, k], and whether it holds the transpose of that."""
    if _by_rows(t):
        return _cuda.Layout(TYPES[t.dtype], k, rows, _leading(t), _apart(t)), True
    return _cuda.Layout(TYPES[t.dtype], rows, k, t.stride(-1), _apart(t)), False


def _by_rows(t: torch.Tensor) -> bool:
    return t.stride(-1) == 1 or t.shape[-1] == 1


def _leading(t: torch.Tensor) -> int:
    """Elements from row to row; of a single row, those of a matrix with aligned rows."""
    if t.shape[-2] > 1:
        return t.stride(-2)
    unit = ALIGNMENT // t.element_size()
    return -(-t.shape[-1] // unit) * unit


def _apart(t: torch.Tensor) -> int:
    """Elements from matrix to matrix of a batch."""
    return t.stride(0) if t.dim() == 3 else 0


def _step(t: torch.Tensor) -> int:
    """Bytes from k to k + 1."""
    return t.stride(-1) * t.element_size()


def _is_bias(c: torch.Tensor) -> bool:
    """Whether c is one contiguous row for all rows of the result."""
    return (c.stride(-1) == 1 or c.shape[-1] == 1) and not any(
        s for s, n in zip(c.stride()[:-1], c.shape[:-1], strict=True) if n > 1
    )


def _ascending(tree: Tree) -> bool:
    """Whether leaves are chains that fold one after another."""
    return (
        isinstance(tree, Split | Segment | Balanced)
        and isinstance(tree.leaf, Chain)
        and (tree.fold == "ascending" or (isinstance(tree, Balanced) and tree.parts == 2))
    )
