"""Launcher of the matrix products. Operands are validated by the caller; any strides are taken.

Every output is ``round(alpha * acc + beta * c)``: acc is the fp32 tree lanes(16) over k (a chain
where portable contracts are in force), alpha = 1 and beta = 1 multiply nothing, beta = 0 does not
read c, each step is one IEEE fp32 operation, and there is one rounding to the output type.
"""

from __future__ import annotations

import math

import torch

from samebits.engines import family, watch
from samebits.engines.cpu import DTYPE_CODE, _cpu
from samebits.engines.cpu.numbers import written

_linear = _cpu.linear
_gemm = _cpu.gemm


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``x @ weight.T + bias``: x [..., K], weight [N, K], bias [N] or None, all of one dtype."""
    code = out_code = DTYPE_CODE[x.dtype]
    n, k = weight.shape
    shape = x.shape
    if len(shape) == 3 and out_dtype is None:
        batch, length, _ = shape
        rows = batch * length
        out = x.new_empty(batch, length, n)  # quicker to parse than a tuple
    elif len(shape) == 2 and out_dtype is None:
        rows = shape[0]
        out = x.new_empty(rows, n)
    else:
        lead = shape[:-1]
        rows = math.prod(lead)
        out = x.new_empty(*lead, n, dtype=out_dtype)
        if out_dtype is not None:
            out_code = DTYPE_CODE[out_dtype]
    if not x.is_contiguous():
        x = x.contiguous()
    bias_ptr = 0
    if bias is not None:
        if not bias.is_contiguous():
            bias = bias.contiguous()
        bias_ptr = bias.data_ptr()
    w_row, w_col = weight.stride()
    wrong = _linear(
        x.data_ptr(),
        weight.data_ptr(),
        bias_ptr,
        out.data_ptr(),
        rows,
        n,
        k,
        w_row,
        w_col,
        code,
        out_code,
        family.portable(),
    )
    if wrong:
        watch.report(wrong)
    return written(out)


def bmm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``alpha * a @ b + beta * c``: a [B, M, K], b [B, K, N]; or a [M, K], b [K, N].

    c broadcasts to the result and has its dtype or that of a. `out`, if given, has the result's
    dtype and shape and any strides, and overlaps neither a, b nor (at shifted places) c.
    """
    code = out_code = DTYPE_CODE[a.dtype]
    if a.dim() == 2:
        m, k = a.shape
        n = b.shape[1]
        batch = 1
        xb, (xr, xc) = 0, a.stride()
        wb, (wc, wr) = 0, b.stride()
        if out is None:
            out = a.new_empty(m, n, dtype=out_dtype)
        ob, (orow, oc) = 0, out.stride()
    else:
        batch, m, k = a.shape
        n = b.shape[2]
        xb, xr, xc = a.stride()
        wb, wc, wr = b.stride()
        if out is None:
            out = a.new_empty(batch, m, n, dtype=out_dtype)
        ob, orow, oc = out.stride()
    if out_dtype is not None:
        out_code = DTYPE_CODE[out_dtype]
    c_ptr = cb = cr = cc = c_code = 0
    if c is not None and beta != 0:
        c_ptr, c_code = c.data_ptr(), DTYPE_CODE[c.dtype]
        c_strides = c.expand(out.shape).stride()
        cr, cc = c_strides[-2:]
        cb = c_strides[0] if a.dim() == 3 else 0
    wrong = _gemm(
        a.data_ptr(),
        b.data_ptr(),
        c_ptr,
        out.data_ptr(),
        batch,
        m,
        n,
        k,
        xb,
        xr,
        xc,
        wb,
        wr,
        wc,
        cb,
        cr,
        cc,
        ob,
        orow,
        oc,
        code,
        c_code,
        out_code,
        alpha,
        beta,
        family.portable(),
    )
    if wrong:
        watch.report(wrong)
    return written(out)


watch.offer(__name__, linear, bmm)
