"""What the switch installs besides when the portable contracts are in force.

An operation is portable if a CPU and a GPU give it the same bits: it only moves numbers or rounds
once, or samebits computes it by a portable contract on both. Everything else that rounds is
refused. So are operations whose kernels only look exact: on a GPU torch divides by a number by
multiplying with its reciprocal, and tables of floats are made with other formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Kernel = Callable[..., Any]

_BOTH = """
    _addmm_activation _fused_rms_norm _log_softmax _scaled_dot_product_flash_attention_for_cpu
    _softmax addbmm addmm addmv argmax argmin argsort baddbmm bmm cumprod cumsum dot embedding gelu
    index_add kthvalue layer_norm linalg_vector_norm linear logsumexp mean mm mv nansum
    native_layer_norm norm prod rms_norm scaled_dot_product_attention scatter_add sigmoid silu sort
    std std_mean sum tensordot topk trace var var_mean vdot
"""
_POLYNOMIALS = """
    acos acosh asin asinh atan atan2 atanh cos cosh elu erf erfc exp exp2 expm1 glu hypot log log10
    log1p log2 logaddexp logaddexp2 logit maximum minimum mish pow rsqrt sin sinh softplus
    softshrink sqrt tan tanh xlogy
"""
#: Covered on CPUs and on GPUs by portable contracts (base names).
BOTH = frozenset(_BOTH.split())
#: With the functions that a CPU computes by fixed polynomials. A GPU has those of `_ON_GPU`.
ON_CPU = BOTH | frozenset(_POLYNOMIALS.split())
#: Exact for any one device only.
_TABLES = frozenset({"fft_fftfreq", "fft_rfftfreq", "linspace", "logspace", "range"})
