// Rows with exact sums: what a row adds up to, norms and softmaxes; and sums of a few rows.
#pragma once
#include <cstdint>

#include "types.hpp"

namespace samebits {

/// S and Q are the sum and the sum of squares of a row, exact and rounded to fp32.
enum class RowValue : int {
  sum = 0,       // the exact sum, rounded to the result's type
  squares = 1,   // the same of the squares
  mean = 2,      // S / n
  norm = 3,      // sqrt(Q)
};

/// What a softmax makes of e = exp(x - m) in fp32, m = max x.
enum class ExactSoftmax : int {
  softmax = 0,      // e / S(e)
  log_softmax = 1,  // (x - m) - log(S(e))
  logsumexp = 2,    // log(S(e)) + m, m = 0 where it is infinite: one number a row
};

/// out[r] of x[r], rows of n contiguous elements. Returns how many sums were not certain in floating point and were
/// taken without rounding.
int64_t exact_rows(const void* x, int64_t rows, int64_t row, int64_t n, RowValue value, void* out, DType in_type,
                   DType out_type);

/// out[r] = fma((x[r] - u) * s, w, b) with s = 1 / sqrt(Q(x[r] - u) / n + eps), u = S(x[r]) / n if `centred`, else 0;
/// rows of out contiguous, everything of one type; w and b may be null.
void exact_norm(const void* x, int64_t rows, int64_t row, int64_t n, const void* w, const void* b, float eps,
                bool centred, void* out, DType type);

/// Rows of out contiguous, or one number a row.
void exact_softmax(ExactSoftmax kind, const void* x, int64_t rows, int64_t row, int64_t n, void* out, DType in_type,
                   DType out_type);

/// out[i] = R(sum_t x[t * stride + i]), t < terms: for few terms. Returns as exact_rows.
int64_t exact_columns(const void* x, int64_t terms, int64_t stride, int64_t n, void* out, DType in_type,
                      DType out_type);

}  // namespace samebits
