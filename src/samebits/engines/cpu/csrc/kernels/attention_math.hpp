// The arithmetic of attention that all its schedules share, and exact copies of rows.
#pragma once
#include "kernels/attention.hpp"
#include "math.hpp"
#include "vec.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr float kLog2e = 0x1.715476p+0f;
constexpr float kLn2 = 0x1.62e430p-1f;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline float infinity() { return bit_float(0x7f800000u); }

/// The softcap's tanh; absolute error below 2^-23.
inline F16 capped(F16 x) {
  F16 e = exp2_flush(vmin(set1(126.0f), mul(x, set1(2.8853900817779268f))));
  return sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
}

/// 2^d for an integer d <= 0, exactly; 0 below the normal range (and for NaN).
inline F16 power(F16 d) {
  F16 e = as_float(shl<23>(add_i(round_i(d), set1_i(127))));
  return select(le(set1(-126.0f), d), e, zero());
}

inline F16 exponent(const AttentionTask& t, F16 s) {
  F16 x = mul(s, set1(t.scale));
  return t.cap == 0.0f ? x : mul(capped(x), set1(t.cap));
}
inline F16 biased(F16 x, F16 bias) { return fma(bias, set1(kLog2e), x); }

inline F16 rounded(F16 p, const float*) { return p; }
inline F16 rounded(F16 p, const bf16*) {
  I16 u = as_int(p);
  I16 odd = and_i(shr<16>(u), set1_i(1));
  I16 r = and_i(add_i(add_i(u, set1_i(0x7fff)), odd), set1_i(static_cast<int32_t>(0xffff0000u)));
  return select(is_nan(p), p, as_float(r));
}
inline F16 rounded(F16 p, const f16*) {
  f16 h[16];
  store(h, p);
  return load(h);
}

/// p = 2^(x - m): 0 below 2^-126, then, unless it stays wide, one rounding to the type of the values.
template <class T>
inline F16 probability(F16 x, F16 m, bool wide) {
  const F16 p = exp2_flush(sub(x, m));
  return wide ? p : rounded(p, static_cast<const T*>(nullptr));
}

/// The running state of rows after folding the next leaf in: one rescale by an exact power of two.
struct Fold {
  M16 up;     // the next leaf has the larger maximum: the running side is rescaled
  F16 scale;
  F16 m;
  Fold(F16 m0, F16 m1) {
    up = le(m0, m1);
    m = select(up, m1, m0);
    scale = power(sub(select(up, m0, m1), m));
  }
  F16 operator()(F16 running, F16 next) const {
    return fma(select(up, running, next), scale, select(up, next, running));
  }
};

inline void fold_sink(F16 sink, F16& m, F16& l, F16& scale_o) {
  F16 x = mul(sink, set1(kLog2e));
  F16 ms = ceil(x);
  Fold fold(m, ms);
  l = fold(l, exp2_flush(sub(x, ms)));
  scale_o = select(fold.up, fold.scale, set1(1.0f));
  m = fold.m;
}

inline F16 log_sum(F16 m, F16 l) { return fma(m, set1(kLn2), log(l)); }

// ---- paths ----

/// The order-free sum of the integer views of n floats.
inline int64_t view_sum(const float* p, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, p + i, 4);
    sum += bits;
  }
  return sum;
}

/// Compares the paths that rows took with the contract's: leaves of check->leaf keys, ascending.
inline void report_paths(const AttentionTask& t, const uint32_t* path, bool sums = true) {
  for (int r = 0; r < t.rows; ++r) {
    uint32_t expected = t.check->seed;
    for (int64_t k = 0; k < t.count[r]; k += t.check->leaf)
      expected = path_fold(expected, path_leaf(k, least(k + t.check->leaf, t.count[r])));
    t.check->report(sums && path[r] == expected);
  }
}

// ---- packing: exact copies ----

template <class T>
inline void widen_row(const T* p, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_f32(out + i, load(p + i));
  if (i < n) store_part_f32(out + i, load_part(p + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

/// Keys [k0, k0 + n) as fp32 rows: in place if they are that already, else copied to `to`.
template <class T>
inline const float* rows_of(const KeyView& view, int64_t k0, int64_t n, int64_t d, float* to,
                            int64_t& stride) {
  const T* base = static_cast<const T*>(view.base);
  if constexpr (sizeof(T) == 4) {
    if (!view.table) {
      stride = view.stride;
      return base + k0 * view.stride;
    }
  }
  for (int64_t i = 0; i < n; ++i) widen_row(base + view.at(k0 + i), d, to + i * d);
  stride = d;
  return to;
}

/// out[i * ld + j] = row j, element i for the given rows (null rows give 0).
template <class T>
inline void transpose_rows(const T* const* rows, int n, int64_t d, float* out, int64_t ld) {
  int64_t i = 0;
  if (n == 16) {
    for (; i + 16 <= d; i += 16) {
      F16 a[16];
      for (int j = 0; j < 16; ++j) a[j] = load(rows[j] + i);
      transpose16(a);
      for (int j = 0; j < 16; ++j) store_f32(out + (i + j) * ld, a[j]);
    }
  }
  for (; i < d; i += 16) {
    int w = static_cast<int>(least(16, d - i));
    F16 a[16];
    for (int j = 0; j < 16; ++j)
      a[j] = j >= n ? zero() : w == 16 ? load(rows[j] + i) : load_part(rows[j] + i, w);
    transpose16(a);
    for (int j = 0; j < w; ++j) store_f32(out + (i + j) * ld, a[j]);
  }
}

}  // namespace
}  // namespace samebits::SB_ISA
