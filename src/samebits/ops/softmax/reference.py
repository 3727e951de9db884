"""Both softmaxes along the last axis in NumPy; fp32 in, fp32 out."""

from __future__ import annotations

import numpy as np

from samebits.contract import functions
from samebits.contract.numerics import F32, Array, canonical
from samebits.ops.reduce import reference as rows


def softmax(x: Array) -> F32:
    """exp(x - m) / S(exp(x - m)), m the maximum."""
    m = rows.maximum(x)
    with np.errstate(all="ignore"):
        e = functions.exp(canonical(np.asarray(x, np.float32) - m[..., None]))
        return canonical(e / rows.sum(e)[..., None])


def log_softmax(x: Array) -> F32:
    """(x - m) - log(S(exp(x - m)))."""
    m = rows.maximum(x)
    with np.errstate(all="ignore"):
        d = canonical(np.asarray(x, np.float32) - m[..., None])
        return canonical(d - functions.log(rows.exp_sum(x, m))[..., None])
