// What the schedule for many rows (gemm_strips.hpp) and its register tile (strip_tile.hpp) share.
#pragma once
#include <cstdint>

namespace samebits::SB_ISA {

// The tile's accumulators, the vectors of w of one lane and one number of x fill the registers. Two lanes at a time
// halve what is written between lanes, which is what short K costs.
#if defined(SB_ISA_avx512)
constexpr int kStripRows = 7, kStripPanels = 2, kStripLanes = 2;
#elif defined(SB_ISA_scalar)
constexpr int kStripRows = 2, kStripPanels = 1, kStripLanes = 1;
#else
constexpr int kStripRows = 6, kStripPanels = 1, kStripLanes = 1;
#endif

constexpr int64_t kStripWidth = 8;  // rows that a tile of x has room for
constexpr int64_t kStripCols = 16 * kStripPanels, kTileFloats = kStripRows * kStripCols;

/// held[level] = the sums held[0] to held[level - 1], each added in turn to: start + the units' products, those of
/// several lanes folded. Null: +0. Sums lie as [row][panel][16].
struct StripTile {
  int rows, panels;
  const void* x;  // [unit][lane][kStripWidth rows], words: fp32, or pairs of bf16
  const void* w;  // [unit][lane][panel][16]
  int64_t units;
  bool half;  // of the last unit only the first step is there
  const float* start;
  float* held;
  int level;
};

#if defined(SB_ISA_avx512) && defined(SB_HAVE_dot)
void run_dot_strip(const StripTile& t);  // pairs by vdpbf16ps: only for ranges that `dot_keeps_bits` allows
#endif

}  // namespace samebits::SB_ISA
