// Elementwise functions: lists of operations by arity, and the kernel table.
#pragma once
#include <cstdint>

// X(name, parameters): y = name(x; p[0], p[1], ...)
#define SB_UNARY_OPS(X) \
  X(exp, 0) X(exp2, 0) X(exp2_flush, 0) X(log, 0)

namespace samebits {
struct PointwiseKernels {
  /// y[i] = f(x[i]) for i < n, both dense, dtype codes as in types.hpp. `op` indexes SB_UNARY_OPS.
  void (*unary)(int op, int dtype, const void* x, void* y, int64_t n, const float* params);
};
}  // namespace samebits
