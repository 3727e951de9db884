// Threads around the augmented operations, and sums in bins: three integers a row, rounded once.
#include <cmath>
#include <vector>

#include "bind.hpp"
#include "fixed_sum.hpp"
#include "kernels/augmented.hpp"

namespace samebits {
SB_KERNEL_TABLE(AugmentedKernels, augmented_kernels)

namespace {

constexpr int64_t kPiece = 1 << 14;  // elements of a task

/// ceil(a / b), b > 0.
int div_up_signed(int a, int b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/// The bin of a row whose largest magnitude is m: 1 < m / 2^(width * bin) <= 2^width.
int bin_of(double m, int width) {
  const int e = std::ilogb(m);
  return div_up_signed(std::ldexp(1.0, e) == m ? e : e + 1, width) - 1;
}

/// size * 2^exponent rounded to fp64, to nearest even; `rest`: something is left below it.
double round_even(__int128 value, bool rest, int exponent) {
  const bool negative = value < 0;
  unsigned __int128 size = static_cast<unsigned __int128>(negative ? -value : value);
  if (size == 0) return 0.0;
  const uint64_t high = static_cast<uint64_t>(size >> 64);
  const int top = high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll(static_cast<uint64_t>(size));
  const int lead = top + exponent, last = (lead > -1022 ? lead : -1022) - 52, drop = last - exponent;
  int unit = exponent;
  if (drop > 0) {
    const unsigned __int128 one = 1, kept = drop < 128 ? size >> drop : 0;
    const unsigned __int128 low = drop < 128 ? size - (kept << drop) : size, half = drop <= 127 ? one << (drop - 1) : 0;
    size = kept + (half && (low > half || (low == half && (rest || (kept & 1)))));
    unit = last;
  }
  const double v = std::ldexp(static_cast<double>(static_cast<uint64_t>(size)), unit);
  return negative ? -v : v;
}

/// `Bins` of a whole row: 2^23 deposits of fp64 already fill 64 bits.
struct Totals {
  __int128 total[3];
};

float result_of(const Totals& b, int bin, float) {
  FixedSum sum;
  for (int i = 0; i < 3; ++i)
    for (int part = 0; part < 2; ++part) {  // a total may have more than the 48 bits that add() takes
      const auto total = static_cast<int64_t>(b.total[i]);  // below 2^13 an element
      const int64_t low = total & 0xffffffff, high = (total - low) / (int64_t{1} << 32);
      sum.add(part ? high : low, kBinWidth32 * (bin - i) + 32 * part);
    }
  return sum.value(DType::f32);
}

double result_of(const Totals& b, int bin, double) {
  constexpr int w = kBinWidth64;
  constexpr int64_t unit = int64_t{1} << w;
  // Totals of the lower bins are brought into [0, 2^w); a floor, so that what is left is not negative.
  const auto floor_of = [](__int128 v) { return v >> w; };
  __int128 t[3] = {b.total[0], b.total[1], b.total[2]};
  t[1] += floor_of(t[2]);
  t[2] -= floor_of(b.total[2]) * unit;
  const __int128 up = floor_of(t[1]);
  t[0] += up;
  t[1] -= up * unit;
  const __int128 v = t[0] * unit + t[1];
  const bool wide = v > (static_cast<__int128>(1) << 80) || v < -(static_cast<__int128>(1) << 80);
  if (!wide) return round_even(v * unit + t[2], false, w * (bin - 2));
  // One bit more holds whether anything is left; with it a tie is seen, or none where there is none.
  return round_even(v * 2 + (t[2] != 0), false, w * (bin - 1) - 1);
}

const auto& kernel_largest(float) { return augmented_kernels().largest32; }
const auto& kernel_largest(double) { return augmented_kernels().largest64; }
const auto& kernel_deposit(float) { return augmented_kernels().deposit32; }
const auto& kernel_deposit(double) { return augmented_kernels().deposit64; }

template <class T>
void binned_sum(const T* x, int64_t rows, int64_t row, int64_t n, T* out) {
  if (rows == 0) return;
  constexpr int width = sizeof(T) == 4 ? kBinWidth32 : kBinWidth64;
  const int64_t pieces = n > 0 ? (n + kPiece - 1) / kPiece : 1;
  const int threads = threads_for(rows * n, 1 << 15);
  const auto length = [&](int64_t piece) { return n - piece * kPiece < kPiece ? n - piece * kPiece : kPiece; };
  std::vector<T> largest(static_cast<size_t>(rows * pieces));
  parallel_for(rows * pieces, threads, [&](int64_t i) {
    const int64_t r = i / pieces, piece = i % pieces;
    largest[static_cast<size_t>(i)] = kernel_largest(T{})(x + r * row + piece * kPiece, length(piece));
  });
  std::vector<T> top(static_cast<size_t>(rows), T{0});
  in_ieee_mode([&] {
    for (int64_t i = 0; i < rows * pieces; ++i) {
      T& t = top[static_cast<size_t>(i / pieces)];
      const T m = largest[static_cast<size_t>(i)];
      if (m != m || m > t) t = t != t ? t : m;
    }
  });
  std::vector<Bins> bins(static_cast<size_t>(rows * pieces));
  parallel_for(rows * pieces, threads, [&](int64_t i) {
    const int64_t r = i / pieces, piece = i % pieces;
    const T m = top[static_cast<size_t>(r)];
    if (m > 0 && std::isfinite(m))
      bins[static_cast<size_t>(i)] =
          kernel_deposit(T{})(x + r * row + piece * kPiece, length(piece), bin_of(static_cast<double>(m), width));
  });
  parallel_for(rows, 1, [&](int64_t r) {
    const T m = top[static_cast<size_t>(r)];
    if (!(m > 0) || !std::isfinite(m)) {
      T plain = 0;  // zero, Inf or NaN, in any order
      for (int64_t i = 0; i < n; ++i) plain += std::isfinite(x[r * row + i]) ? T{0} : x[r * row + i];
      out[r] = plain != plain ? static_cast<T>(__builtin_nan("")) : plain;
      return;
    }
    Totals total{{0, 0, 0}};
    for (int64_t p = 0; p < pieces; ++p)
      for (int b = 0; b < 3; ++b) total.total[b] += bins[static_cast<size_t>(r * pieces + p)].total[b];
    out[r] = result_of(total, bin_of(static_cast<double>(m), width), T{});
  });
}

}  // namespace

void bind_augmented(nb::module_& m) {
  m.def("augmented", [](int op, bool wide, uintptr_t x, uintptr_t y, uintptr_t result, uintptr_t error, int64_t n) {
    need_memory(n, {x, y});
    nb::gil_scoped_release release;
    const AugmentedKernels& kernels = augmented_kernels();
    const auto kind = static_cast<Augmented>(op);
    parallel_for((n + kPiece - 1) / kPiece, threads_for(n, 1 << 15), [&](int64_t i) {
      const int64_t at = i * kPiece, count = n - at < kPiece ? n - at : kPiece;
      if (wide)
        kernels.run64(kind, ptr<const double>(x) + at, ptr<const double>(y) + at, ptr<double>(result) + at,
                      ptr<double>(error) + at, count);
      else
        kernels.run32(kind, ptr<const float>(x) + at, ptr<const float>(y) + at, ptr<float>(result) + at,
                      ptr<float>(error) + at, count);
    });
  });
  m.def("binned_sum", [](bool wide, uintptr_t x, int64_t rows, int64_t row, int64_t n, uintptr_t out) {
    need_memory(rows * n, {x});
    nb::gil_scoped_release release;
    if (wide) binned_sum(ptr<const double>(x), rows, row, n, ptr<double>(out));
    else binned_sum(ptr<const float>(x), rows, row, n, ptr<float>(out));
  });
}

}  // namespace samebits
