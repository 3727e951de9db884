// Elementwise functions: lists of operations by arity, and the kernel table.
#pragma once
#include <cstdint>

// X(name, parameters): y = name(x, p[0], ...) with so many float parameters
#define SB_UNARY_OPS(X)                                                                            \
  X(exp, 0) X(exp2, 0) X(exp2_flush, 0) X(expm1, 0) X(log, 0) X(log2, 0) X(log10, 0) X(log1p, 0)   \
  X(sinh, 0) X(cosh, 0) X(tanh, 0) X(asinh, 0) X(acosh, 0) X(atanh, 0)                             \
  X(sin, 0) X(cos, 0) X(tan, 0) X(asin, 0) X(acos, 0) X(atan, 0) X(erf, 0) X(erfc, 0)   \
  X(sigmoid, 0) X(silu, 0) X(gelu, 0) X(gelu_tanh, 0) X(mish, 0) X(softplus, 2) X(elu, 3)          \
  X(softshrink, 1) X(logit, 1) X(rsqrt, 0) X(square, 0) X(cube, 0) X(square_root, 0)               \
  X(reciprocal, 0) X(inverse_square, 0) X(pow_exponent, 1) X(pow_base, 1)

// y = name(a, b, p[0], ...)
#define SB_BINARY_OPS(X)                                                                           \
  X(pow, 0) X(atan2, 0) X(hypot, 0) X(logaddexp, 0) X(logaddexp2, 0) X(xlogy, 0) X(mul, 0) X(glu, 0) \
  X(maximum, 0) X(minimum, 0)                                                                      \
  X(add_scaled, 1) X(silu_backward, 0) X(gelu_backward, 0) X(gelu_tanh_backward, 0)                \
  X(mish_backward, 0) X(softplus_backward, 2) X(elu_backward, 3) X(elu_backward_result, 3)         \
  X(logit_backward, 1) X(hardtanh_backward, 2) X(shrink_backward, 1) X(hardswish_backward, 0)

namespace samebits {
constexpr int kRotaryDims = 4;

struct Rotary {
  int dtype;
  bool interleaved;           // pairs (2i, 2i+1) instead of (i, i + d/2)
  int64_t d;                  // even
  int64_t size[kRotaryDims];  // leading sizes of x, which is dense; a factor repeats with stride 0
  int64_t cos_stride[kRotaryDims], sin_stride[kRotaryDims];
  int64_t second;             // offset of the factor of a pair's second element: d/2, 1, or 0
  int64_t step;               // distance between the factors of neighbouring pairs
  const void *x, *cos, *sin;
  void* y;
};

struct PointwiseKernels {
  /// y[i] = f(x[i]) for i < n, all dense; dtype codes as in types.hpp; `op` indexes SB_UNARY_OPS.
  void (*unary)(int op, int dtype, const void* x, void* y, int64_t n, const float* params);
  /// y[i] = f(a[i], b[i]); `op` indexes SB_BINARY_OPS.
  void (*binary)(int op, int dtype, const void* a, const void* b, void* y, int64_t n, const float* params);
  /// y[i] = f(gate[i]) * up[i] with f(gate[i]) rounded to the dtype first; f from SB_UNARY_OPS.
  void (*gated)(int op, int dtype, const void* gate, const void* up, void* y, int64_t n);
  /// Rows [begin, end) of a rotary embedding.
  void (*rotary)(const Rotary& job, int64_t begin, int64_t end);
};
}  // namespace samebits
