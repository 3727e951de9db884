// Sums and dot products in fp64 with what bounds their error: the first step of exact results.
//
// A product of two fp32 numbers is exact in fp64, so only additions round: a sum of chains of d
// additions is wrong by at most d * 2^-53 * sum |terms|. No finite term or sum overflows.
#pragma once
#include <cstdint>

#include "types.hpp"

namespace samebits {

/// What is known of a row besides its sum.
struct RowFacts {
  double squares;   // sum of squares, in fp64
  double smallest;  // smallest magnitude that is not zero; +Inf without one
};

struct ExactKernels {
  /// Chains of a lane-wise sum of k terms have at most k / lanes + 16 additions.
  int64_t lanes;
  /// Rows to fp64 [rows, k_padded]; k_padded a multiple of 16, filled with zeros. Facts are updated.
  void (*pack)(DType, const void* x, int64_t row, int64_t rows, int64_t k, double* packed, int64_t k_padded,
               RowFacts* facts);
  /// acc[r * columns + c] += x[r] . w[c], r < rows, c < columns; both packed with k_padded.
  void (*multiply)(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k_padded, double* acc);
  /// As multiply for at most 4 rows, with w read where it lies; w's facts are updated.
  void (*stream)(DType, const double* x, int64_t rows, int64_t k_padded, const void* w, int64_t w_row,
                 int64_t columns, int64_t k, double* acc, RowFacts* facts);
};

}  // namespace samebits
