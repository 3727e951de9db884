// What a unit of k is and how it goes into an accumulator, for tiles with vectors along n; and how units are read.
// A unit is a step of 16 k; where bf16 is held in pairs, two steps: the first in the upper half of a word, the
// second in the lower one.
#pragma once
#include "kernels/packed.hpp"
#include "vec.hpp"

namespace samebits::SB_ISA {
namespace {

// A unit is a step; x is fp32.
template <class T>
struct Single {
  using X = float;
  using W = T;
  static constexpr bool kHalves = false;
  static int64_t whole(const PackedShape& s) { return s.units; }
  static F16 load(const T* w) { return SB_ISA::load(w); }
  static F16 add(F16 a, float x, F16 w) { return fma(set1(x), w, a); }
  static F16 add_first(F16 a, float, F16) { return a; }
};

static inline F16 upper(I16 v) { return as_float(and_i(v, set1_i(static_cast<int32_t>(0xffff0000u)))); }
static inline F16 lower(I16 v) { return as_float(shl<16>(v)); }

// A unit is two steps of bf16, each a fused multiply-add.
struct Pair {
  using X = int32_t;
  using W = int32_t;
  static constexpr bool kHalves = true;  // half a unit is not a unit with zeros: -0 + 0 is not -0
  struct Both {
    F16 upper, lower;
  };
  static int64_t whole(const PackedShape& s) { return s.steps / 2; }
  static Both load(const int32_t* w) {
    I16 v = load_i(w);
    return {SB_ISA::upper(v), SB_ISA::lower(v)};
  }
  static F16 add(F16 a, int32_t x, Both w) {
    a = add_first(a, x, w);
    return fma(set1(bit_float(static_cast<uint32_t>(x) << 16)), w.lower, a);
  }
  static F16 add_first(F16 a, int32_t x, Both w) {
    return fma(set1(bit_float(static_cast<uint32_t>(x) & 0xffff0000u)), w.upper, a);
  }
};

// Exponents of bf16 numbers, upper and lower halves alike.
class Exponents {
 public:
  void see(I16 v) {
    one(shr<16>(v));
    one(v);
  }
  Range range() const {
    int32_t low[16], high[16];
    store_i(low, low_);
    store_i(high, high_);
    Range r{255, 0};
    for (int i = 0; i < 16; ++i) {
      if (low[i] < r.low) r.low = static_cast<uint8_t>(low[i]);
      if (high[i] > r.high) r.high = static_cast<uint8_t>(high[i]);
    }
    return r;
  }

 private:
  void one(I16 v) {
    I16 size = and_i(v, set1_i(0x7fff)), e = shr<7>(size);
    I16 counted = select_i(eq_i(size, set1_i(0)), set1_i(255), e);
    low_ = select_i(lt_i(counted, low_), counted, low_);
    high_ = select_i(lt_i(high_, e), e, high_);
  }
  I16 low_ = set1_i(255), high_ = set1_i(0);
};

// Sixteen numbers from k on, missing ones as +0, widened.
template <class T>
F16 sixteen(const T* row, int64_t col, int64_t k, int64_t end) {
  int n = static_cast<int>(end - k < 16 ? (end - k > 0 ? end - k : 0) : 16);
  if (col == 1) return n == 16 ? load(row + k) : load_part(row + k, n);
  float t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = to_float(row[(k + i) * col]);
  return load_f32(t);
}
static inline F16 joined(F16 first, F16 second) { return as_float(or_i(as_int(first), shr<16>(as_int(second)))); }
// Words of a unit of one row: fp32, or two steps of bf16.
template <class T>
F16 words(const T* row, int64_t col, int64_t unit, int64_t end, bool pairs) {
  if (!pairs) return sixteen(row, col, 16 * unit, end);
  return joined(sixteen(row, col, 32 * unit, end), sixteen(row, col, 32 * unit + 16, end));
}

// The words of a unit of up to 16 rows, turned round: v[l] holds lane l of all rows, missing ones as +0.
template <class T>
void turned(const T* src, int64_t row, int64_t col, int rows, int64_t unit, int64_t end, bool pairs, F16* v) {
  if (row == 1) {
    const auto at = [&](int64_t k) {
      return k >= end ? zero() : rows == 16 ? load(src + k * col) : load_part(src + k * col, rows);
    };
    for (int l = 0; l < 16; ++l)
      v[l] = pairs ? joined(at(32 * unit + l), at(32 * unit + 16 + l)) : at(16 * unit + l);
    return;
  }
  if (!pairs && col == 1 && 16 * (unit + 1) <= end)
    for (int r = 0; r < 16; ++r) v[r] = r < rows ? load(src + r * row + 16 * unit) : zero();
  else
    for (int r = 0; r < 16; ++r) v[r] = r < rows ? words(src + r * row, col, unit, end, pairs) : zero();
  transpose16(v);
}
// Two units of up to 8 rows: those of the first in the lower half of v[l], those of the second in the upper half.
template <class T>
void turned_two(const T* src, int64_t row, int64_t col, int rows, int64_t unit, int64_t end, bool pairs, F16* v) {
  const bool whole = !pairs && col == 1 && 16 * (unit + 2) <= end;
  for (int r = 0; r < 8; ++r) {
    if (whole && r < rows) {
      v[r] = load(src + r * row + 16 * unit);
      v[8 + r] = load(src + r * row + 16 * unit + 16);
      continue;
    }
    v[r] = r < rows ? words(src + r * row, col, unit, end, pairs) : zero();
    v[8 + r] = r < rows ? words(src + r * row, col, unit + 1, end, pairs) : zero();
  }
  transpose16(v);
}

}  // namespace
}  // namespace samebits::SB_ISA
