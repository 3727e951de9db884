// Ziv's strategy, applied to sums: what exact products and exact rows share.
//
// A sum in floating point is a number y and a bound e of its error. If y - e and y + e round to the same number of the
// result's type, that number is the correctly rounded exact sum (rounding is monotone). If not, or if the exact sum
// lies on a boundary, the terms are added again into a fixed-point number that holds every bit.
#pragma once
#include <cmath>
#include <cstdint>

#include "fixed_sum.hpp"
#include "scalar_types.hpp"
#include "types.hpp"

namespace samebits {

constexpr double kUnit = 0x1p-53;
constexpr double kSlack = 1.01;  // for the roundings of the bounds themselves, second order included

inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline float element(DType type, const void* x, int64_t i) {
  switch (type) {
    case DType::f32: return static_cast<const float*>(x)[i];
    case DType::bf16: return base::to_float(static_cast<const base::bf16*>(x)[i]);
    default: return base::to_float(static_cast<const base::f16*>(x)[i]);
  }
}

inline void put(DType type, void* out, int64_t i, float v) {
  switch (type) {
    case DType::f32: return base::store1(static_cast<float*>(out) + i, v);
    case DType::bf16: return base::store1(static_cast<base::bf16*>(out) + i, v);
    case DType::f16: return base::store1(static_cast<base::f16*>(out) + i, v);
  }
}

inline const char* advance(const void* x, DType type, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(type);
}
inline char* advance(void* x, DType type, int64_t elements) {
  return static_cast<char*>(x) + elements * size_of(type);
}

/// A unit that divides all numbers of a type whose magnitude is at least `smallest`, or 0.
inline double unit_of(DType type, double smallest) {
  if (std::isinf(smallest)) return smallest;  // no such number
  const int fraction = type == DType::f32 ? 23 : type == DType::bf16 ? 7 : 10;
  return std::ldexp(1.0, std::ilogb(smallest) - fraction);
}

/// A bound of the error of a sum of terms in fp64.
/// magnitude: at least the sum of their magnitudes; unit: divides all of them; depth: additions that a
/// term goes through.
inline double error_bound(double magnitude, double unit, int64_t depth) {
  magnitude *= kSlack;
  if (magnitude < 0x1p53 * unit) return 0;  // every partial sum is a multiple of unit with at most 53 bits
  return static_cast<double>(depth) * kUnit * kSlack * magnitude;
}

/// Whether every number within e of y rounds to one number, which is put into `result`.
inline bool certain(double y, double e, DType type, float& result) {
  if (e == 0 || !std::isfinite(y)) {
    result = y != y ? base::bit_float(base::kNan32) : rounded(y, type);
    return true;
  }
  e = e * kSlack + 0x1p-52 * std::fabs(y);  // y - e and y + e are rounded, too
  result = rounded(y + e, type);
  return base::float_bits(rounded(y - e, type)) == base::float_bits(result);
}

/// y + c, and the error of that addition added to e.
inline double with_term(double y, double c, double& e) {
  const double s = y + c, t = s - y;
  if (std::isfinite(s)) e += std::fabs((y - (s - t)) + (c - t));  // Knuth's TwoSum: exact
  return s;
}

}  // namespace samebits
