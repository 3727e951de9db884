"""Elementwise operations that torch's own kernels compute alike wherever an element lies.

Established by tests/mode/explore_elementwise.py, which compares the bits of each operation on the
same values in many presentations: contiguous, strided, at an offset, transposed, in pieces of 1 to
40 elements, one by one, and large enough for threads; in fp32, bf16, fp16 and fp64.
tests/mode/test_elementwise.py repeats it for the installed torch. An operation that failed in any
dtype is not here: mode/aten/pointwise.py overrides it, or it is refused (orthogonal polynomials:
they turn a degree that is no integer into one in several ways).
"""

from __future__ import annotations

_NAMES = """
_prelu_kernel _prelu_kernel_backward abs acos acosh add addcdiv addcmul angle asin asinh atan ceil
clamp clamp_max clamp_min copysign cos deg2rad digamma div erf erfc erfinv exp expm1 floor fmax
fmin frac hardshrink hardsigmoid hardsigmoid_backward hardswish hardtanh heaviside i0 leaky_relu
leaky_relu_backward lerp lgamma linalg_cross log log10 log1p log2 log_sigmoid_backward
log_sigmoid_forward mse_loss_backward mul mvlgamma nan_to_num neg nextafter polar polygamma
rad2deg reciprocal relu round rrelu_with_noise_backward rsub sgn sigmoid_backward sign sin sinc
special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
special_entr special_erfcx special_i1 special_i1e special_log_ndtr special_modified_bessel_i0
special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0
special_xlog1py special_zeta sqrt sub tan tanh tanh_backward threshold threshold_backward trunc
where xlogy
"""

#: Base names in aten that run on stock kernels.
SAFE = frozenset(_NAMES.split())

#: Found unsafe but not covered: `add`, `sub`, `rsub` with an `alpha` that is no power of two, in
#: bf16, fp16 and (for numbers) fp64: vector code fuses the product, the scalar tail does not.
SCALED_ADD = frozenset({"add", "sub", "rsub"})
