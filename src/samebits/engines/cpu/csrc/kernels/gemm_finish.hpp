// The end of an output of a matrix product: alpha, beta * c, one rounding.
#pragma once
#include "kernels/gemm.hpp"
#include "vec.hpp"

namespace samebits::SB_ISA {
namespace {

template <class T>
F16 load_c(const T* c, int64_t col, int n) {
  if (col == 1) return n == 16 ? load(c) : load_part(c, n);
  if (col == 0) return set1(to_float(*c));
  float t[16] = {};
  for (int j = 0; j < n; ++j) t[j] = to_float(c[j * col]);
  return load_f32(t);
}
template <class T>
void store_out(T* out, int64_t col, F16 v, int n) {
  if (col == 1) {
    if (n == 16) store(out, v); else store_part(out, v, n);
    return;
  }
  float t[16];
  store_f32(t, v);
  for (int j = 0; j < n; ++j) store1(out + j * col, t[j]);
}

// Columns col .. col + n - 1 of a row, from their folded accumulators.
void finish(const GemmArgs& g, F16 v, int64_t b, int64_t row, int64_t col, int n) {
  float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  if (alpha != 1.0f) v = mul(set1(alpha), v);
  if (g.c && beta != 0.0f) {
    int64_t at = b * g.c_batch + row * g.c_row + col * g.c_col;
    F16 c = g.c_type == DType::f32    ? load_c(static_cast<const float*>(g.c) + at, g.c_col, n)
            : g.c_type == DType::bf16 ? load_c(static_cast<const bf16*>(g.c) + at, g.c_col, n)
                                      : load_c(static_cast<const f16*>(g.c) + at, g.c_col, n);
    if (beta != 1.0f) c = mul(set1(beta), c);
    v = add(v, c);
  }
  int64_t at = b * g.out_batch + row * g.out_row + col * g.out_col;
  switch (g.out_type) {
    case DType::f32: store_out(static_cast<float*>(g.out) + at, g.out_col, v, n); break;
    case DType::bf16: store_out(static_cast<bf16*>(g.out) + at, g.out_col, v, n); break;
    case DType::f16: store_out(static_cast<f16*>(g.out) + at, g.out_col, v, n); break;
  }
}

}  // namespace
}  // namespace samebits::SB_ISA
