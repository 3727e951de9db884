// Rows for exact results: sums with a bound of their error. In which order terms meet does not matter:
// the results are certified, or computed again without rounding (exact_rows.cpp).
//
// Widening fp32 to fp64 costs more than adding. So plain sums are taken in two fp32 accumulators: `high` begins at
// 1.5 S, S a power of two far above the terms, and takes what an addition leaves of each term; the rest, which is
// exact (Dekker's FastTwoSum), goes to `low`, whose terms are at most half a unit of S. Both are widened once in
// kSteps terms. That `high` never leaves [S, 2S) is seen in its exponent, and proves all that this needs; a block
// where it does is added in fp64.
#include "kernels/exact_rows.hpp"

#include <type_traits>

#include "kernels/row_maps.hpp"
#include "math.hpp"
#include "vec64.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr float kInf = __builtin_inff();
constexpr double kRound32 = 0x1.02p-24, kRound64 = 0x1.02p-53;  // half a unit, with room for second order
constexpr int kChains = 4, kSteps = 32;
constexpr int64_t kPiece = 16 * kChains, kBlock = kPiece * kSteps;

struct Two {
  F16 a, b;
};
// 32 elements in any order: halves of words need no shuffle.
static inline Two load_two(const bf16* p) {
  const I16 w = load_i(reinterpret_cast<const int32_t*>(p));
  return {as_float(shl<16>(w)), as_float(and_i(w, set1_i(static_cast<int32_t>(0xffff0000u))))};
}
template <class T>
static inline Two load_two(const T* p) { return {load(p), load(p + 16)}; }

/// The sum of magnitudes of the first elements: what the terms are like.
template <class T>
float typical(const T* x, int64_t n) {
  if (n < kPiece) return 0;
  F16 s = zero();
  for (int64_t i = 0; i < kPiece; i += 32) {
    const Two v = load_two(x + i);
    s = add(s, add(abs(v.a), abs(v.b)));
  }
  return fold(s);
}

/// The power of two above v, or 0 where an accumulator could not begin there.
float power_above(float v) {
  const uint32_t exponent = float_bits(v) >> 23;
  return exponent >= 27 && exponent < 253 ? bit_float((exponent + 1) << 23) : 0.0f;
}

/// Sums `pieces` <= kSteps pieces in two accumulators. Returns whether they held.
template <class T>
bool split_sum(const T* x, int64_t pieces, float s, D16& total) {
  const F16 begin = set1(1.5f * s), zeros = zero();
  // An addition by fma runs where multiplications do, and leaves the adders to the others.
  const volatile float unity = 1.0f;
  const F16 one = set1(unity), minus = set1(-unity);
  const I16 exponent = as_int(set1(s));
  F16 high[kChains] = {begin, begin, begin, begin}, low[kChains] = {zeros, zeros, zeros, zeros};
  I16 seen = set1_i(0);
  for (int64_t p = 0; p < pieces; ++p, x += kPiece) {
    const Two v[2] = {load_two(x), load_two(x + 32)};
    const F16 term[kChains] = {v[0].a, v[0].b, v[1].a, v[1].b};
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
      const F16 sum = add(high[c], term[c]);
      low[c] = fma(add(fma(sum, minus, high[c]), term[c]), one, low[c]);
      seen = or_i(seen, xor_i(as_int(sum), exponent));
      high[c] = sum;
    }
  }
  const M16 left = lt_i(set1_i(0), and_i(seen, set1_i(0x7f800000)));
  if (m_bits(m_or(left, lt_i(seen, set1_i(0))))) return false;
  // Multiples of S's unit, at most 2^22 of them each: their sums are exact in fp32.
#pragma GCC unroll 4
  for (int c = 0; c < kChains; ++c) high[c] = sub(high[c], begin);
  total = add(total, widen(add(add(high[0], high[1]), add(high[2], high[3]))));
  total = add(total, widen(add(add(low[0], low[1]), add(low[2], low[3]))));
  return true;
}

/// Sums in fp64; returns the largest magnitude.
template <class T>
float wide_sum(const T* x, int64_t n, D16& total) {
  D16 t = set1_d(0);
  F16 high = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const F16 v = n - i >= 16 ? load(x + i) : load_part(x + i, static_cast<int>(n - i));
    t = add(t, widen(v));
    high = vmax(high, abs(v));
  }
  total = add(total, t);
  float lane[16], largest = 0;
  store_f32(lane, high);
  for (float f : lane) largest = f > largest ? f : largest;
  return largest;
}

template <class T>
BoundedSum sum_typed(const T* x, int64_t n) {
  D16 total = set1_d(0);
  double magnitude = 0, error = 0;  // of the terms that fp64 adds; of `low`
  float s = power_above(typical(x, n));
  int64_t depth = 20;  // fp64 additions that a term goes through
  for (int64_t i = 0; i < n; depth += 2) {
    const int64_t left = n - i, pieces = left < kBlock ? left / kPiece : kSteps;
    if (pieces > 0 && s > 0 && split_sum(x + i, pieces, s, total)) {
      const double unit = 0x1p-23 * s, count = static_cast<double>(pieces * kPiece);
      // After j steps |low| is at most j units / 2, which the next addition may round; then two levels of chains.
      error += 0.5 * (kSteps + 5) * kRound32 * count * unit / 2;
      magnitude += 16 * 2.1 * s;
      i += pieces * kPiece;
    } else {
      const int64_t count = left < kBlock ? left : kBlock;
      const float largest = wide_sum(x + i, count, total);
      magnitude += static_cast<double>(largest) * static_cast<double>(count);
      depth += kBlock / 16 - 2;
      s = power_above(largest * (kPiece / 2));
      i += count;
    }
  }
  return {fold_any(total), error + static_cast<double>(depth) * kRound64 * magnitude};
}

/// The sum of squares of what `take` gives: the elements from i on, 16 or the last ones.
template <class F>
BoundedSum sum_of_squares(int64_t n, const F& take) {
  D16 total[2] = {set1_d(0), set1_d(0)};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int at = 0; at < 2; ++at) {
      const D16 d = widen(take(i + 16 * at, 16));
      total[at] = fma(d, d, total[at]);
    }
  for (; i < n; i += 16) {
    const D16 d = widen(take(i, n - i < 16 ? static_cast<int>(n - i) : 16));
    total[0] = fma(d, d, total[0]);
  }
  const double sum = fold_any(add(total[0], total[1]));
  return {sum, static_cast<double>(n / 32 + 20) * kRound64 * sum};
}

template <class T>
BoundedSum squares_typed(const T* x, int64_t n, float u) {
  const F16 mean = set1(u);
  if (u == 0)
    return sum_of_squares(n, [&](int64_t i, int count) { return count == 16 ? load(x + i) : load_part(x + i, count); });
  return sum_of_squares(n, [&](int64_t i, int count) {
    if (count == 16) return sub(load(x + i), mean);
    return select(m_first(count), sub(load_part(x + i, count), mean), zero());
  });
}

template <class T, bool W, bool B>
struct Normalised {
  const T* x;
  const T *w, *b;
  F16 u, r;
  F16 operator()(int64_t k) const {
    const F16 t = mul(sub(load(x + k), u), r);
    if constexpr (W && B) return fma(t, load(w + k), load(b + k));
    if constexpr (W) return mul(t, load(w + k));
    if constexpr (B) return add(t, load(b + k));
    return t;
  }
  F16 part(int64_t k, int n) const {
    const F16 t = mul(sub(load_part(x + k, n), u), r);
    if constexpr (W && B) return fma(t, load_part(w + k, n), load_part(b + k, n));
    if constexpr (W) return mul(t, load_part(w + k, n));
    if constexpr (B) return add(t, load_part(b + k, n));
    return t;
  }
};

template <class T>
void normalise_typed(const T* x, int64_t n, float u, float r, const T* w, const T* b, T* out) {
  const F16 mean = set1(u), scale = set1(r);
  if (w && b) map(out, n, Normalised<T, true, true>{x, w, b, mean, scale});
  else if (w) map(out, n, Normalised<T, true, false>{x, w, b, mean, scale});
  else if (b) map(out, n, Normalised<T, false, true>{x, w, b, mean, scale});
  else map(out, n, Normalised<T, false, false>{x, w, b, mean, scale});
}

template <class T>
BoundedSum exponentials_typed(const T* x, int64_t n, float m, float* e) {
  D16 total[2] = {set1_d(0), set1_d(0)};
  const F16 top = set1(m);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int at = 0; at < 2; ++at) {
      const F16 v = exp(sub(load(x + i + 16 * at), top));
      store_f32(e + i + 16 * at, v);
      total[at] = add(total[at], widen(v));
    }
  for (; i < n; i += 16) {
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    const F16 v = select(m_first(count), exp(sub(load_part(x + i, count), top)), zero());
    store_part_f32(e + i, v, count);
    total[0] = add(total[0], widen(v));
  }
  const double sum = fold_any(add(total[0], total[1]));
  return {sum, static_cast<double>(n / 32 + 20) * kRound64 * sum};
}

struct Quotient {
  const float* e;
  F16 s;
  F16 operator()(int64_t k) const { return div(load(e + k), s); }
  F16 part(int64_t k, int n) const { return div(load_part(e + k, n), s); }
};

template <class T>
WideSum wide_typed(const T* x, int64_t n, bool squares) {
  D16 total = set1_d(0), sizes = set1_d(0);
  F16 low = set1(kInf);
  for (int64_t start = 0; start < n; start += kBlock) {
    D16 t = set1_d(0), m = set1_d(0);
    const int64_t stop = n - start < kBlock ? n : start + kBlock;
    for (int64_t i = start; i < stop; i += 16) {
      const F16 v = stop - i >= 16 ? load(x + i) : load_part(x + i, static_cast<int>(stop - i)), size = abs(v);
      const D16 d = widen(v);
      t = squares ? fma(d, d, t) : add(t, d);
      m = add(m, widen(size));
      low = vmin(low, select(eq(v, zero()), set1(kInf), size));
    }
    total = add(total, t);
    sizes = add(sizes, m);
  }
  float lows[16], least = kInf;
  store_f32(lows, low);
  for (float f : lows) least = f < least ? f : least;
  const double sum = fold_any(total);
  return {sum, squares ? sum : fold_any(sizes), least, n / kBlock + kBlock / 16 + 20};
}

struct Pair {  // two fp32 numbers: an addition is the sum rounded once; -0 is +0
  const float *a, *b;
  F16 operator()(int64_t k) const { return add(add(load(a + k), load(b + k)), zero()); }
  F16 part(int64_t k, int n) const { return add(add(load_part(a + k, n), load_part(b + k, n)), zero()); }
};

template <class T, class O>
void columns_typed(const T* x, int64_t terms, int64_t stride, int64_t n, O* out, uint8_t* open) {
  if constexpr (std::is_same_v<T, float> && std::is_same_v<O, float>)
    if (terms == 2) {
      map(out, n, Pair{x, x + stride});
      std::memset(open, 0, static_cast<size_t>(n));
      return;
    }
  for (int64_t i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    D16 sum = set1_d(0), lost = set1_d(0);
    for (int64_t t = 0; t < terms; ++t) {
      const T* at = x + t * stride + i;
      const D16 d = widen(count == 16 ? load(at) : load_part(at, count)), s = add(sum, d), v = sub(s, sum);
      lost = add(lost, abs(add(sub(sum, sub(s, v)), sub(d, v))));  // Knuth's TwoSum: exact
      sum = s;
    }
    const F16 y = narrow(sum);
    // fp32 is rounded again on its way to 16 bits. All terms are multiples of 2^-149, so nothing here underflows.
    if (sizeof(O) == 2) lost = add(lost, abs(sub(sum, widen(y))));
    if (count == 16) store(out + i, y);
    else store_part(out + i, y, count);
    const uint32_t closed = m_bits(eq(narrow(lost), zero()));
    for (int l = 0; l < count; ++l) open[i + l] = ~closed >> l & 1;
  }
}

/// Calls f with a null pointer of the type that a dtype names.
template <class F>
auto typed(DType type, const F& f) {
  switch (type) {
    case DType::f32: return f(static_cast<const float*>(nullptr));
    case DType::bf16: return f(static_cast<const bf16*>(nullptr));
    default: return f(static_cast<const f16*>(nullptr));
  }
}
template <class T> const T* as(const T*, const void* p) { return static_cast<const T*>(p); }
template <class T> T* as(const T*, void* p) { return static_cast<T*>(p); }

BoundedSum sum(DType type, const void* x, int64_t n) {
  return typed(type, [&](auto t) { return sum_typed(as(t, x), n); });
}
BoundedSum squares(DType type, const void* x, int64_t n, float u) {
  return typed(type, [&](auto t) { return squares_typed(as(t, x), n, u); });
}
void normalise(DType type, const void* x, int64_t n, float u, float r, const void* w, const void* b, void* out) {
  typed(type, [&](auto t) { normalise_typed(as(t, x), n, u, r, as(t, w), as(t, b), as(t, out)); });
}
float largest(DType type, const void* x, int64_t n) {
  return typed(type, [&](auto t) { return maximum(as(t, x), n); });
}
BoundedSum exponentials(DType type, const void* x, int64_t n, float m, float* e) {
  return typed(type, [&](auto t) { return exponentials_typed(as(t, x), n, m, e); });
}
void quotients(DType to, const float* e, int64_t n, float s, void* out) {
  typed(to, [&](auto t) { map(as(t, out), n, Quotient{e, set1(s)}); });
}
void shifted(DType type, const void* x, int64_t n, float m, float l, DType to, void* out) {
  typed(type, [&](auto t) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(t)>>;
    typed(to, [&](auto o) { map(as(o, out), n, LogShift<T>{as(t, x), set1(m), set1(l)}); });
  });
}
WideSum wide(DType type, const void* x, int64_t n, bool squares) {
  return typed(type, [&](auto t) { return wide_typed(as(t, x), n, squares); });
}

void columns(DType type, const void* x, int64_t terms, int64_t stride, int64_t n, DType to, void* out, uint8_t* open) {
  typed(type, [&](auto t) {
    typed(to, [&](auto o) { columns_typed(as(t, x), terms, stride, n, as(o, out), open); });
  });
}

}  // namespace

const ExactRowKernels& exact_row_kernels();
const ExactRowKernels& exact_row_kernels() {
  static const ExactRowKernels table{sum,       squares, normalise, largest, exponentials,
                                     quotients, shifted, log1,      wide,    columns};
  return table;
}

}  // namespace samebits::SB_ISA
