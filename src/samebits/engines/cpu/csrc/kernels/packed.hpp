// Matrix products with a weight that was laid out once: the bits of gemm.hpp, at less cost a call.
//
// A panel holds 16 columns (rows n of w): unit by unit of K, lane by lane, 16 columns side by side.
// A unit is a step of 16 k, and of bf16 two steps: the first in the upper half of a word, the second
// in the lower one. So the chains of lanes(16) of 16 columns lie in one register, and what processors
// call a dot product of pairs, where it is two fused steps, upper half first, is two steps of them.
#pragma once
#include <cstdint>

#include "kernels/gemm.hpp"

namespace samebits {

/// Biased exponents of numbers that are not zero; an infinity or NaN has 255, no number at all {255, 0}.
struct Range {
  uint8_t low, high;
};

/// The layout of a weight [n, k]: sizes count bytes.
struct PackedShape {
  int64_t steps, units, panels, panel_bytes;
  PackedShape(DType type, int64_t n, int64_t k)
      : steps((k + 15) / 16),
        units(type == DType::bf16 ? (steps + 1) / 2 : steps),
        panels((n + 15) / 16),
        panel_bytes(units * 256 * (type == DType::f16 ? 2 : 4)) {}
};

/// Rows of x that were packed together, and the panels they meet. `g` says where results go.
struct PackedTile {
  const GemmArgs* g;
  const void* x;  // [unit][row][16 lanes] of words: fp32, or pairs of bf16
  int64_t row, rows;
  const void* w;      // the first panel
  const void* ahead;  // what will be read next
  int64_t panel;      // the first panel's number
  int64_t panels;     // 1 or 2
};

struct PackedKernels {
  int64_t rows;  // of a tile, at most
  int64_t many;  // rows of fp32 or fp16 from which on strips (gemm_strips.hpp) are faster
  /// Lays out one panel of g.w; returns the range of its numbers (of bf16 only).
  Range (*pack_w)(const GemmArgs& g, int64_t panel, void* to);
  /// Lays out rows of x; the same.
  Range (*pack_x)(const GemmArgs& g, int64_t row, int64_t rows, void* to);
  void (*run)(const PackedTile& t);
};

#ifdef SB_HAVE_dot
namespace avx512 {
/// `run` of bf16 by vdpbf16ps. Only for ranges that `dot_keeps_bits` allows.
void run_dot(const PackedTile& t);
/// Whether this processor's vdpbf16ps is two fused steps, upper half first, rounded to nearest even.
bool dot_is_two_steps();
}  // namespace avx512
#endif

/// vdpbf16ps takes subnormals for zeros and rounds to none. Every partial sum is a multiple of the
/// product of the last places of the two smallest numbers, 2^(a - 134) 2^(b - 134): where that is a
/// normal number, and no product overflows, no subnormal number ever appears.
inline bool dot_keeps_bits(Range x, Range w) {
  return x.low > 0 && w.low > 0 && x.high < 255 && w.high < 255 && x.low + w.low >= 268 - 126 &&
         x.high + w.high <= 379;
}

}  // namespace samebits
