// IEEE 754-2019, 9.5: augmented operations, and sums in bins on top of them.
#pragma once
#include <cstdint>

namespace samebits {

enum class Augmented : int { addition = 0, subtraction = 1, multiplication = 2 };

/// What up to 2^22 elements of a row sum up to in units of 1, 2^-W and 2^-2W, after a division by 2^(W * bin).
struct Bins {
  int64_t total[3];
};

/// Bits of a bin: fp32 and fp64.
constexpr int kBinWidth32 = 13, kBinWidth64 = 40;

struct AugmentedKernels {
  void (*run32)(Augmented, const float* x, const float* y, float* result, float* error, int64_t n);
  void (*run64)(Augmented, const double* x, const double* y, double* result, double* error, int64_t n);
  /// The largest magnitude; a NaN if there is one.
  float (*largest32)(const float* x, int64_t n);
  double (*largest64)(const double* x, int64_t n);
  /// bin: the one of the row's largest magnitude m, 1 < m / 2^(W * bin) <= 2^W; all elements finite.
  Bins (*deposit32)(const float* x, int64_t n, int bin);
  Bins (*deposit64)(const double* x, int64_t n, int bin);
};

}  // namespace samebits
