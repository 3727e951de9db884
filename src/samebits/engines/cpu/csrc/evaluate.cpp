// The fast twin of contract/dot.py: dot products with exactly the bits of an arithmetic, in plain
// integer and scalar code. Nothing here is clever, so that it can be compared with the contract by
// reading; a hypothesis test compares the bits.
#include "evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel.hpp"
#include "scalar_types.hpp"

namespace samebits {
using namespace base;
namespace {

constexpr int kNoTerm = -(1 << 20);  // exponent of a zero: below every other
constexpr int kMinExponent = -126;   // of fp32
constexpr int64_t kColumns = 8;      // columns of the result in one tile

/// value = significand * 2^(exponent - fraction); a zero has exponent kNoTerm.
struct Decoded {
  int32_t significand, exponent;
};

/// A finite v, by its fields; bits below the format's last place are dropped.
///
/// No format has a smaller exponent than fp32, so fp32's subnormals need no renormalising.
inline Decoded decode(float v, int fraction, int min_exponent) {
  uint32_t word;
  std::memcpy(&word, &v, sizeof word);
  const auto field = static_cast<int32_t>(word >> 23 & 0xFF);
  const int32_t own = std::max(field, 1) - 127, exponent = std::max(own, min_exponent);
  const auto full = static_cast<int32_t>((word & 0x7FFFFF) | (field != 0 ? 1u << 23 : 0u));
  const int32_t magnitude = full >> std::min(23 - fraction + exponent - own, 31);
  const int32_t sign = -static_cast<int32_t>(word >> 31);
  return {(magnitude ^ sign) - sign, magnitude == 0 ? kNoTerm : exponent};
}

/// The rows of an operand, decoded and filled up with zeros to whole blocks.
struct Rows {
  std::vector<int32_t> significand, exponent;
  std::vector<uint8_t> special;  // a block holds an Inf or NaN
  int64_t blocks;

  Rows(const float* x, int64_t rows, int64_t k, const BlockArithmetic& a)
      : blocks((k + a.block - 1) / a.block) {
    const int64_t stride = blocks * a.block;
    significand.assign(static_cast<size_t>(rows * stride), 0);
    exponent.assign(static_cast<size_t>(rows * stride), kNoTerm);
    special.assign(static_cast<size_t>(rows * blocks), 0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t b = 0; b < blocks; ++b) {
        const float* v = x + r * k + b * a.block;
        const auto at = static_cast<size_t>(r * stride + b * a.block);
        const int64_t count = std::min<int64_t>(a.block, k - b * a.block);
        bool finite = true;
        for (int64_t i = 0; i < count; ++i) {
          const Decoded d = decode(v[i], a.fraction, a.min_exponent);
          significand[at + static_cast<size_t>(i)] = d.significand;
          exponent[at + static_cast<size_t>(i)] = d.exponent;
          finite &= std::isfinite(v[i]);
        }
        special[static_cast<size_t>(r * blocks + b)] = !finite;  // then the numbers are not read
      }
  }
};

/// magnitude * 2^-shift, truncated; a negative shift goes left.
inline uint64_t shifted(uint64_t magnitude, int shift) {
  return shift > 0 ? magnitude >> std::min(shift, 63) : magnitude << -shift;
}

/// An accumulator between two blocks.
struct Accumulator {
  Decoded value{0, kNoTerm};  // of fp32, while `special` is 0
  float special = 0.0f;       // Inf or NaN, once reached

  explicit Accumulator(float start) {
    if (!std::isfinite(start)) {
      special = start;
    } else if (start != 0.0f) {
      const int exponent = std::max(std::ilogb(start), kMinExponent);
      value = {static_cast<int32_t>(std::ldexp(start, 23 - exponent)), exponent};
    }
  }

  /// Takes `total` in units of 2^unit, truncated toward zero to the result's precision.
  void set(int64_t total, int unit, int significand) {
    if (total == 0) {
      value = {0, kNoTerm};
      return;
    }
    const uint64_t magnitude = static_cast<uint64_t>(total < 0 ? -total : total);
    const int top = unit + 63 - __builtin_clzll(magnitude);
    const int exponent = std::max(top, kMinExponent);
    if (exponent > 127) {
      special = total < 0 ? -HUGE_VALF : HUGE_VALF;
      return;
    }
    const int last_place = exponent - (significand - 1);
    const uint64_t kept = shifted(magnitude, last_place - unit);  // units of the last place
    const auto s = static_cast<int32_t>(kept << (24 - significand));
    value = s == 0 ? Decoded{0, kNoTerm} : Decoded{total < 0 ? -s : s, exponent};
  }

  float result() const {
    if (special != 0.0f) return special != special ? bit_float(kNan32) : special;
    return std::ldexp(static_cast<float>(value.significand), value.exponent - 23);
  }
};

/// What a block with an Inf or NaN among its terms adds up to.
float special_sum(const float* x, const float* w, int64_t count, float acc) {
  double sum = acc;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(w[i]);
  return static_cast<float>(sum);
}

/// One block of contract/arithmetic.py's BlockFma. B > 0: its size is known here.
template <int B>
inline void block_step(const int32_t* sx, const int32_t* ex, const int32_t* sw, const int32_t* ew,
                       const BlockArithmetic& a, Accumulator& acc) {
  const int count = B > 0 ? B : a.block;
  int top = std::max(a.floor, static_cast<int>(acc.value.exponent));
  for (int i = 0; i < count; ++i) top = std::max(top, ex[i] + ew[i]);
  // Products have 2 * fraction bits behind the point; the grid has `grid` bits below 2^top.
  const int left = a.grid - 2 * a.fraction;
  int64_t total = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t p = static_cast<int64_t>(sx[i]) * sw[i];
    const int64_t sign = p >> 63;
    const uint64_t magnitude = static_cast<uint64_t>((p ^ sign) - sign) << left;
    const auto term = static_cast<int64_t>(magnitude >> std::min(top - (ex[i] + ew[i]), 63));
    total += (term ^ sign) - sign;
  }
  if (const int32_t s = acc.value.significand) {
    const int shift = top - acc.value.exponent + 23 - a.grid;
    const auto term = static_cast<int64_t>(shifted(static_cast<uint64_t>(s < 0 ? -s : s), shift));
    total += s < 0 ? -term : term;
  }
  acc.set(total, top - a.grid, a.significand);
}

template <int B>
void block_dot(const float* x, const float* w, float* out, int64_t m, int64_t n, int64_t k,
               const BlockArithmetic& a, int threads) {
  const Rows rx(x, m, k, a), rw(w, n, k, a);
  const int64_t tiles = (n + kColumns - 1) / kColumns, stride = rx.blocks * a.block;
  parallel_for(m * tiles, threads, [&](int64_t task) {
    const int64_t i = task / tiles, j0 = task % tiles * kColumns;
    for (int64_t j = j0; j < std::min(n, j0 + kColumns); ++j) {
      Accumulator acc(out[i * n + j]);
      for (int64_t b = 0; b < rx.blocks; ++b) {
        const int64_t k0 = b * a.block, px = i * stride + k0, pw = j * stride + k0;
        const bool special = rx.special[static_cast<size_t>(i * rx.blocks + b)] |
                             rw.special[static_cast<size_t>(j * rw.blocks + b)];
        if (special || acc.special != 0.0f) {
          const int64_t count = std::min<int64_t>(a.block, k - k0);
          acc.special = special_sum(x + i * k + k0, w + j * k + k0, count, acc.result());
          continue;
        }
        block_step<B>(&rx.significand[static_cast<size_t>(px)], &rx.exponent[static_cast<size_t>(px)],
                      &rw.significand[static_cast<size_t>(pw)], &rw.exponent[static_cast<size_t>(pw)],
                      a, acc);
      }
      out[i * n + j] = acc.result();
    }
  });
}

/// Fills one lane's step: past the end of k both operands are +0.
inline float step(const float* x, const float* w, int64_t at, int64_t k, float acc) {
  return at < k ? ::fmaf(x[at], w[at], acc) : ::fmaf(0.0f, 0.0f, acc);
}

}  // namespace

void evaluate_block(const float* x, const float* w, float* out, int64_t m, int64_t n, int64_t k,
                    const BlockArithmetic& a, int threads) {
  switch (a.block) {
    case 8: return block_dot<8>(x, w, out, m, n, k, a, threads);
    case 16: return block_dot<16>(x, w, out, m, n, k, a, threads);
    case 32: return block_dot<32>(x, w, out, m, n, k, a, threads);
    default: return block_dot<0>(x, w, out, m, n, k, a, threads);
  }
}

void evaluate_fma(const float* x, const float* w, float* out, int64_t m, int64_t n, int64_t k,
                  int width, int threads) {
  const int64_t tiles = (n + kColumns - 1) / kColumns;
  parallel_for(m * tiles, threads, [&](int64_t task) {
    const int64_t i = task / tiles, j0 = task % tiles * kColumns, j1 = std::min(n, j0 + kColumns);
    std::vector<float> lanes(static_cast<size_t>(width * kColumns), 0.0f);
    for (int64_t j = j0; j < j1; ++j) lanes[static_cast<size_t>((j - j0) * width)] = out[i * n + j];
    for (int64_t k0 = 0; k0 < k; k0 += width)
      for (int64_t j = j0; j < j1; ++j) {
        float* lane = &lanes[static_cast<size_t>((j - j0) * width)];
        for (int l = 0; l < width; ++l) lane[l] = step(x + i * k, w + j * k, k0 + l, k, lane[l]);
      }
    for (int64_t j = j0; j < j1; ++j) {
      float* lane = &lanes[static_cast<size_t>((j - j0) * width)];
      for (int half = width / 2; half >= 1; half /= 2)
        for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
      store1(out + i * n + j, lane[0]);
    }
  });
}

}  // namespace samebits
