// A sum of products of fp32 numbers with no rounding: a fixed-point number as wide as all of them.
// Kulisch's accumulator in limbs of 32 bits, carries postponed: an addition touches three words.
#pragma once
#include <cmath>
#include <cstdint>

#include "scalar_types.hpp"
#include "types.hpp"

namespace samebits {

/// A double rounded to a result type, once, to nearest even, and held as fp32.
inline float rounded(double d, DType type) {
  const float f = static_cast<float>(d);
  if (type == DType::f32 || f != f || std::isinf(f)) return f;
  // fp32 rounded to odd: rounding that to 16 bits is rounding d (Boldo and Melquiond 2008).
  uint32_t u = base::float_bits(f);
  const double back = f;
  if (back != d) {
    if (std::fabs(back) > std::fabs(d)) --u;
    u |= 1u;
  }
  const float odd = base::bit_float(u);
  if (type == DType::bf16) return base::to_float(base::bf16{base::to_bf16_bits(odd)});
  return base::f16_bits_to_float(base::to_f16_bits(odd));
}

class FixedSum {
 public:
  /// Weight of bit 0: the product of two smallest subnormals.
  static constexpr int kLow = -298;
  /// 640 bits: products are below 2^256, and 2^40 of them fit.
  static constexpr int kLimbs = 20;

  /// Adds significand * 2^exponent; |significand| < 2^48, exponent >= kLow.
  void add(int64_t significand, int exponent) {
    const int at = exponent - kLow;
    const __int128 v = static_cast<__int128>(significand) << (at & 31);
    int64_t* l = limb_ + (at >> 5);
    l[0] += static_cast<int64_t>(static_cast<uint32_t>(v));
    l[1] += static_cast<int64_t>(static_cast<uint32_t>(v >> 32));
    l[2] += static_cast<int64_t>(v >> 64);
    if (++pending_ == (1 << 30)) carry();
  }

  /// Adds a * b, both finite.
  void add_product(float a, float b) {
    int ea, eb;
    const int64_t sa = split(a, ea), sb = split(b, eb);
    if (sa && sb) add(sa * sb, ea + eb);
  }

  /// Adds a finite a.
  void add_value(float a) { add_product(a, 1.0f); }

  /// Adds limbs, or sums of limbs of up to 2^20 sums, as `limbs` gives them.
  void add(const int64_t* limbs) {
    for (int i = 0; i < kLimbs; ++i) limb_[i] += limbs[i];
    carry();
  }

  /// Limbs 0 to kLimbs - 1 with carries done: 32 bits each, the last one signed.
  const int64_t* limbs() {
    carry();
    return limb_;
  }

  /// The sum rounded once, to nearest even, and held as fp32. Zero is +0.
  float value(DType type) {
    carry();
    const bool negative = limb_[kLimbs - 1] < 0;
    uint32_t digit[kLimbs];
    uint64_t borrow = negative ? 1 : 0;
    int top = -1;
    for (int i = 0; i < kLimbs; ++i) {  // the magnitude: two's complement if negative
      const uint32_t low = static_cast<uint32_t>(limb_[i]);
      const uint64_t d = static_cast<uint64_t>(negative ? ~low : low) + borrow;
      digit[i] = static_cast<uint32_t>(d);
      borrow = d >> 32;
      if (digit[i]) top = i;
    }
    if (top < 0) return 0.0f;
    // The highest 64 bits, and whether anything is left below them.
    const auto at = [&](int i) -> uint64_t { return i >= 0 ? digit[i] : 0; };
    const int lead = __builtin_clz(digit[top]);
    uint64_t head = at(top) << 32 | at(top - 1);
    if (lead) head = head << lead | at(top - 2) >> (32 - lead);
    bool rest = (at(top - 2) << lead & 0xffffffffu) != 0;
    for (int i = top - 3; i >= 0 && !rest; --i) rest = digit[i] != 0;
    const int exponent = 32 * top + 31 - lead + kLow;  // of the leading bit
    const int fraction = type == DType::f32 ? 23 : type == DType::bf16 ? 7 : 10;
    const int lowest = type == DType::f16 ? -14 : -126;
    const int last = (exponent > lowest ? exponent : lowest) - fraction;  // of the last place
    const int drop = last - (exponent - 63);                              // bits of head to round away: >= 40
    uint64_t kept = 0;
    if (drop < 64) {
      kept = head >> drop;
      const uint64_t low = head << (64 - drop), half = uint64_t{1} << 63;
      kept += low > half || (low == half && (rest || (kept & 1)));
    } else if (drop == 64) {
      kept = head > (uint64_t{1} << 63) || rest;  // head is at least a half; exactly a half goes to 0
    }
    const float magnitude = static_cast<float>(std::ldexp(static_cast<double>(kept), last));
    const float limited = type == DType::f16 && magnitude > 65504.0f ? INFINITY
                          : type == DType::bf16 && magnitude > 0x1.fep127f ? INFINITY : magnitude;
    return negative ? -limited : limited;
  }

 private:
  /// a = result * 2^exponent with |result| < 2^24.
  static int64_t split(float a, int& exponent) {
    const uint32_t u = base::float_bits(a), e = u >> 23 & 255;
    const int64_t s = (u & 0x7fffffu) | (e ? 0x800000u : 0u);
    exponent = static_cast<int>(e ? e : 1) - 150;
    return u >> 31 ? -s : s;
  }

  void carry() {
    for (int i = 0; i + 1 < kLimbs; ++i) {
      const int64_t up = limb_[i] >> 32;  // rounds down
      limb_[i] -= up * (int64_t{1} << 32);
      limb_[i + 1] += up;
    }
    pending_ = 0;
  }

  int64_t limb_[kLimbs] = {};
  int64_t pending_ = 0;
};

}  // namespace samebits
