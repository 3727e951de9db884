// Exact products: the correctly rounded value of the exact sum, in any order of work.
#pragma once
#include <cstdint>

#include "types.hpp"

namespace samebits {

/// out[b, m, n] = R(sum_k x[b, m, k] * w[b, n, k] + c[b, m, n]). Columns of x and w are contiguous;
/// other strides count elements and may be anything, 0 included.
struct ExactProduct {
  const void *x, *w;
  const float* c;  // may be null
  void* out;
  int64_t batch, m, n, k;
  int64_t x_batch, x_row, w_batch, w_row;
  int64_t c_batch, c_row, c_col, out_batch, out_row, out_col;
  DType in_type, out_type;
  double* bound;  // if not null, out is fp64: the sums, not rounded, and here what they may be wrong by
};

/// Returns how many results were not certain in fp64 and were summed without rounding.
int64_t exact_product(const ExactProduct& p);

/// The same with every result summed without rounding: slow, and simple enough to be believed.
void exact_product_plain(const ExactProduct& p, int threads);

/// Joins parts of sums: out[i] = R(sum_p y[p * n + i]), each part within e[p * n + i] of the exact one. Where that does
/// not decide the rounding open[i] is 1 and out[i] is not final, else 0.
void exact_join(const double* y, const double* e, int64_t parts, int64_t n, void* out, DType out_type, uint8_t* open);

/// Limbs of sums without rounding (`FixedSum::kLimbs` each, which may be added): of x[m[i]] . w[n[i]], i < count.
void exact_limbs(const ExactProduct& p, const int64_t* m, const int64_t* n, int64_t count, int64_t* limbs);

/// out[i] = R(the sum that limbs hold + term[i]); term may be null.
void exact_value(const int64_t* limbs, const float* term, int64_t count, void* out, DType out_type);

}  // namespace samebits
