// Reductions of strided tensors to one value per output, all with the row tree (row_tree.hpp).
#pragma once
#include <cstdint>

#include "types.hpp"

namespace samebits {

enum class Reduce : int {
  sum, square, absolute, product, maximum, max_abs, min_abs, nonzero, nan_sum,
  centred,      // sum of (x - param)^2
  exponential,  // sum of exp(x - param)
};

/// What is done to a reduced value before its one rounding to the output type.
enum class Finish : int { none, divide, divide_sqrt, sqrt, log_plus_param, plus_zero };

constexpr int kMaxDims = 64;

struct Dims {
  int count = 0;
  int64_t size[kMaxDims], stride[kMaxDims];
};

struct ReduceArgs {
  const void* x;
  void* out;           // one element per output, row-major over the kept axes
  const float* param;  // one per output, or null
  float divisor;
  int64_t outputs, n;
  Reduce op;
  Finish finish;
  DType in, to;
  Dims kept, reduced;  // coalesced; `reduced` in row-major logical order is the one reduced axis
  bool wide;           // the tree: see row_tree.hpp
  bool columns;        // vectorise across outputs: the reduced axis is strided, the last kept is not
};

struct ReduceKernels {
  /// Partial results of outputs [u0, u1) over elements [k0, k1) of the reduced axis; k0 is a
  /// multiple of the leaf, k1 too unless it is n.
  void (*partial)(const ReduceArgs& a, int64_t u0, int64_t u1, int64_t k0, int64_t k1, float* out);
  /// Folds `groups` partial results of each of outputs [u0, u1) and stores the finished value.
  /// Group g of output u is at partials[g * stride + u - u0].
  void (*finish)(const ReduceArgs& a, int64_t u0, int64_t u1, const float* partials, int64_t groups,
                 int64_t stride);
};
}  // namespace samebits
