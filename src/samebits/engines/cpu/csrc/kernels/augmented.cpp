// Rounding to nearest with ties toward zero, from hardware that has ties to even: a tie is seen in the
// exact error, and moved (Boldo, Lauter and Muller, "Emulating round-to-nearest ties-to-zero augmented
// floating-point operations", IEEE TC 2021). Branch-free loops, so that they become vectors.
#include "kernels/augmented.hpp"

#include <cstring>

#include "scalar_types.hpp"

namespace samebits::SB_ISA {
namespace {

template <class T> struct Type;
template <> struct Type<float> {
  using Word = uint32_t;
  static constexpr int kDigits = 24, kTop = 127, kWidth = kBinWidth32;
  static constexpr float kLargest = 0x1.fffffep127f, kNan = __builtin_nanf("");
};
template <> struct Type<double> {
  using Word = uint64_t;
  static constexpr int kDigits = 53, kTop = 1023, kWidth = kBinWidth64;
  static constexpr double kLargest = 0x1.fffffffffffffp1023, kNan = __builtin_nan("");
};

template <class T> using Word = typename Type<T>::Word;
template <class T> static inline Word<T> word(T v) { Word<T> u; std::memcpy(&u, &v, sizeof u); return u; }
template <class T> static inline T number(Word<T> u) { T v; std::memcpy(&v, &u, sizeof v); return v; }
template <class T> static inline T magnitude(T v) { return number<T>(word(v) & ~(Word<T>{1} << (8 * sizeof(T) - 1))); }
template <class T> static inline T with_sign(T size, T sign) {
  constexpr Word<T> top = Word<T>{1} << (8 * sizeof(T) - 1);
  return number<T>((word(size) & ~top) | (word(sign) & top));
}
/// The neighbour of a number that is not zero, toward zero.
template <class T> static inline T toward_zero(T v) { return number<T>(word(v) - 1); }
template <class T> static inline bool finite(T v) { return magnitude(v) <= Type<T>::kLargest; }
template <class T> static inline T power(int e) {
  constexpr int fraction = Type<T>::kDigits - 1;
  return number<T>(static_cast<Word<T>>(e + Type<T>::kTop) << fraction);
}

/// result + error == x + y, result rounded with ties toward zero.
template <class T>
static inline void add_pair(T x, T y, T& result, T& error) {
  const bool swap = magnitude(x) < magnitude(y);
  const T a = swap ? y : x, b = swap ? x : y;
  const T s = a + b;
  const T e = b - (s - a);  // exact: |a| >= |b| (Dekker), and nothing overflows on the way
  const bool tie = (e != 0) & (s - toward_zero(s) == -2 * e);
  const T r = tie ? toward_zero(s) : s;
  const T rest = tie ? -e : e, zero = with_sign(T{0}, s);
  const T left = e == 0 ? zero : rest;
  // Half a unit beyond the largest number is a tie as well, which hardware rounds to Inf.
  constexpr int unit = Type<T>::kTop - Type<T>::kDigits + 1;
  const T ha = a / 2, hb = b / 2, hs = ha + hb, he = hb - (hs - ha);
  const bool edge = (magnitude(hs) == power<T>(Type<T>::kTop)) & (with_sign(he, he * hs) == -power<T>(unit - 2));
  const bool in_range = finite(s), saved = edge & finite(x) & finite(y);
  const T special = s != s ? Type<T>::kNan : s;
  const T largest = with_sign(Type<T>::kLargest, a), beyond = with_sign(power<T>(unit - 1), a);
  const T result_out = saved ? largest : special, error_out = saved ? beyond : special;
  result = in_range ? r : result_out;
  error = in_range ? left : error_out;
}

/// d rounded to fp32 with ties toward zero; d - result is exact in fp64.
static inline float round_ties_to_zero(double d, double& left) {
  const float s = static_cast<float>(d);
  const double e = d - static_cast<double>(s);
  const float t = s == 0 ? s : toward_zero(s);
  const bool tie = finite(s) & (e != 0) & (static_cast<double>(s) - static_cast<double>(t) == -2 * e);
  left = tie ? -e : e;
  return tie ? t : s;
}

static inline void multiply_pair(float x, float y, float& result, float& error) {
  const double p = static_cast<double>(x) * y;  // exact, and far from fp64's limits
  double left, rest;
  const float r = round_ties_to_zero(p, left);
  const float zero = with_sign(0.0f, r), tail = with_sign(round_ties_to_zero(left, rest), static_cast<float>(left));
  const float e = left == 0 ? zero : tail;
  const bool edge = magnitude(p) == 0x1.ffffffp127;
  const bool in_range = finite(r);
  const float special = p != p ? Type<float>::kNan : r;  // Inf: of an operand, or by overflow
  const float largest = with_sign(Type<float>::kLargest, r), beyond = with_sign(0x1p103f, r);
  const float result_out = edge ? largest : special, error_out = edge ? beyond : special;
  result = in_range ? r : result_out;
  error = in_range ? e : error_out;
}

/// magnitude * 2^exponent rounded to fp64 with ties toward zero, and what is left, in the same unit.
double round_integer(unsigned __int128 size, int exponent, bool negative, __int128& left) {
  left = 0;
  if (size == 0) return negative ? -0.0 : 0.0;
  const uint64_t high = static_cast<uint64_t>(size >> 64);
  const int top = high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll(static_cast<uint64_t>(size));
  const int lead = top + exponent, last = (lead > -1022 ? lead : -1022) - 52, drop = last - exponent;
  unsigned __int128 kept = size;
  int unit = exponent;
  if (drop > 0) {
    kept = drop < 128 ? size >> drop : 0;
    const unsigned __int128 rest = drop < 128 ? size - (kept << drop) : size;
    left = static_cast<__int128>(rest);
    if (drop <= 127 && rest > static_cast<unsigned __int128>(1) << (drop - 1)) {
      ++kept;
      left -= static_cast<__int128>(static_cast<unsigned __int128>(1) << drop);
    }
    unit = last;
  }
  const double v = __builtin_ldexp(static_cast<double>(static_cast<uint64_t>(kept)), unit);
  if (negative) left = -left;
  return negative ? -v : v;
}

/// The product of finite numbers in integers: where the error underflows, or the result overflows.
void multiply_integers(double x, double y, double& result, double& error) {
  const auto split = [](double v, int& e) {
    const uint64_t u = word(v), field = u >> 52 & 2047;
    e = static_cast<int>(field ? field : 1) - 1075;
    return (u & ((uint64_t{1} << 52) - 1)) | (field ? uint64_t{1} << 52 : 0);
  };
  int ex, ey;
  const unsigned __int128 size = static_cast<unsigned __int128>(split(x, ex)) * split(y, ey);
  const bool negative = (word(x) ^ word(y)) >> 63;
  __int128 left, rest;
  result = round_integer(size, ex + ey, negative, left);
  if (!finite(result)) {
    error = result;
    return;
  }
  const bool below = left < 0;
  error = left == 0 ? with_sign(0.0, result)
                    : round_integer(static_cast<unsigned __int128>(below ? -left : left), ex + ey, below, rest);
}

static inline void multiply_pair(double x, double y, double& result, double& error) {
  const double p = x * y;
  if (!(finite(x) && finite(y)) || p != p) {
    result = error = p != p ? Type<double>::kNan : p;
    return;
  }
  if (x == 0 || y == 0) {
    result = error = p;
    return;
  }
  if (!(magnitude(p) >= 0x1p-915 && finite(p))) return multiply_integers(x, y, result, error);
  const double e = __builtin_fma(x, y, -p);  // exact: its last bit is at 2^-1074 or above
  const bool tie = e != 0 && p - toward_zero(p) == -2 * e;
  result = tie ? toward_zero(p) : p;
  error = tie ? -e : e == 0 ? with_sign(0.0, p) : e;
}

template <class T>
void run(Augmented op, const T* __restrict x, const T* __restrict y, T* __restrict result, T* __restrict error,
         int64_t n) {
  switch (op) {
    case Augmented::addition:
      for (int64_t i = 0; i < n; ++i) add_pair(x[i], y[i], result[i], error[i]);
      return;
    case Augmented::subtraction:
      for (int64_t i = 0; i < n; ++i) add_pair(x[i], -y[i], result[i], error[i]);
      return;
    case Augmented::multiplication:
      for (int64_t i = 0; i < n; ++i) multiply_pair(x[i], y[i], result[i], error[i]);
  }
}

template <class T>
T largest(const T* x, int64_t n) {
  T top = 0;
  bool nan = false;
  for (int64_t i = 0; i < n; ++i) {
    const T m = magnitude(x[i]);
    nan |= m != m;
    top = m > top ? m : top;
  }
  return nan ? Type<T>::kNan : top;
}

constexpr int kLanes = 16;

template <class T>
Bins deposit(const T* x, int64_t n, int bin) {
  constexpr int width = Type<T>::kWidth, digits = Type<T>::kDigits;
  // Deposits of at most 2^W units, and a quarter of 2^digits units to either side of the start.
  constexpr int64_t batch = int64_t{1} << (digits - 3 - width);
  // Scaling by 2^e is exact where it matters: what falls below the smallest number is far below the
  // last bin.
  const int e = -width * bin, half = e / 2;
  const T first = power<T>(half), second = power<T>(e - half);
  T start[3], unit[3];
  for (int b = 0; b < 3; ++b) {
    start[b] = T{1.5} * power<T>(digits - 1 - b * width);
    unit[b] = power<T>(b * width);
  }
  Bins bins{{0, 0, 0}};
  for (int64_t i = 0; i < n; i += batch * kLanes) {
    T lane[3][kLanes];
    for (int b = 0; b < 3; ++b)
      for (int l = 0; l < kLanes; ++l) lane[b][l] = start[b];
    const int64_t stop = i + batch * kLanes < n ? i + batch * kLanes : n;
    for (int64_t j = i; j < stop; j += kLanes) {
      T rest[kLanes] = {};
      if (stop - j >= kLanes)
        for (int l = 0; l < kLanes; ++l) rest[l] = x[j + l] * first * second;
      else
        for (int l = 0; l < stop - j; ++l) rest[l] = x[j + l] * first * second;
      for (int b = 0; b < 3; ++b)  // a bin takes what its unit divides, the rest goes on
        for (int l = 0; l < kLanes; ++l) {
          T sum, left;
          add_pair(lane[b][l], rest[l], sum, left);
          lane[b][l] = sum;
          rest[l] = left;
        }
    }
    for (int b = 0; b < 3; ++b)
      for (int l = 0; l < kLanes; ++l) bins.total[b] += static_cast<int64_t>((lane[b][l] - start[b]) * unit[b]);
  }
  return bins;
}

}  // namespace

const AugmentedKernels& augmented_kernels();
const AugmentedKernels& augmented_kernels() {
  static const AugmentedKernels table{run<float>, run<double>, largest<float>, largest<double>,
                                      deposit<float>, deposit<double>};
  return table;
}

}  // namespace samebits::SB_ISA
