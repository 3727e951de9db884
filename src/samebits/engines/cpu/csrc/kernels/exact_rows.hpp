// Sums of rows with a bound of their error, and what norms and softmaxes do with them.
#pragma once
#include <cstdint>

#include "types.hpp"

namespace samebits {

/// A sum and what it may be wrong by; `sum` is not finite exactly if the row has Inf or NaN.
struct BoundedSum {
  double sum, error;
};

/// A sum in fp64, that of its terms' magnitudes, the smallest magnitude of an element that is not zero (+Inf without
/// one), and how many additions a term goes through.
struct WideSum {
  double sum, magnitude, smallest;
  int64_t depth;
};

struct ExactRowKernels {
  /// The sum of a row of n < 2^20 elements.
  BoundedSum (*sum)(DType, const void* x, int64_t n);
  /// The sum of the squares of x - u, a difference rounded to fp32; of x for u = 0.
  BoundedSum (*squares)(DType, const void* x, int64_t n, float u);
  /// out = fma((x - u) * r, w, b) in fp32, every operation rounded; w and b may be null. All of one type.
  void (*normalise)(DType, const void* x, int64_t n, float u, float r, const void* w, const void* b, void* out);
  /// The largest element; a NaN is passed over, -0 is +0, -Inf without an element.
  float (*maximum)(DType, const void* x, int64_t n);
  /// e = exp(x - m) in fp32, and the sum of them.
  BoundedSum (*exponentials)(DType, const void* x, int64_t n, float m, float* e);
  /// out = e / s; out may be e.
  void (*quotients)(DType to, const float* e, int64_t n, float s, void* out);
  /// out = (x - m) - l.
  void (*shifted)(DType, const void* x, int64_t n, float m, float l, DType to, void* out);
  /// log(x) of one number.
  float (*log)(float x);
  /// The sum of a row (or of its squares) in fp64, which is exact where the terms allow it.
  WideSum (*wide)(DType, const void* x, int64_t n, bool squares);
  /// out[i] = the sum of x[t * stride + i], t < terms, where fp64 holds it and one rounding makes `to` of it; elsewhere
  /// open[i] is 1, else 0.
  void (*columns)(DType, const void* x, int64_t terms, int64_t stride, int64_t n, DType to, void* out, uint8_t* open);
};

}  // namespace samebits
