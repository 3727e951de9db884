// What all schedules of the matrix product share: sizes, packing, and the end of an output.
// Included by gemm.cpp only.
#pragma once
#include "kernels/gemm_finish.hpp"

namespace samebits::SB_ISA {
namespace {

// Register tile: kRows x kCols(rows) accumulators. Columns divide 16.
#if defined(SB_ISA_avx512)
constexpr int kRows = 6;
constexpr int cols_for(int rows) { return rows <= 3 ? 8 : 4; }
#elif defined(SB_ISA_scalar)
constexpr int kRows = 2;
constexpr int cols_for(int) { return 2; }
#else
constexpr int kRows = 3;
constexpr int cols_for(int rows) { return rows == 1 ? 4 : 2; }
#endif
constexpr int64_t kChunk = 48;          // steps: a tile of x stays in the first-level cache
constexpr int64_t kUnitRows = 132;      // accumulators and x of a unit stay in the second level
constexpr int64_t kCols = 32;            // also the width of the two vectors in across_tile
constexpr int64_t kUnitFloats = 4 << 20;
constexpr int64_t kStreamRows = 4;      // up to so many rows, w with contiguous columns is not transposed
constexpr int64_t kStreamCols = 128;
// Up to this K, turning w round costs less than folding lanes across a register (measured); less
// if w has to be transposed for it.
constexpr int64_t kShort = 768, kShortTransposed = 256;
// From so many rows on, and for K above 128, w is packed in strips (measured).
#if defined(SB_ISA_avx512)
constexpr int64_t kManyRows = 96, kManyRowsPairs = 32;
#else
constexpr int64_t kManyRows = 48, kManyRowsPairs = kManyRows;
#endif
constexpr int64_t kStripDepth = 128;
constexpr uint8_t kOrder[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};  // its own inverse

int64_t min_(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- how a range is cut evenly into parts ----
struct Cut {
  int64_t size, parts;
  int64_t at(int64_t i) const { return size * i / parts; }
};
Cut tiles_of(int64_t rows) { return {rows, div_up(rows, kRows)}; }

struct Unit {
  int64_t batch, row0, rows;
};
Unit unit_at(const GemmArgs& g, const GemmPlan& p, int64_t unit) {
  Cut cut{g.m, p.row_units};
  int64_t i = unit % p.row_units;
  return {unit / p.row_units, cut.at(i), cut.at(i + 1) - cut.at(i)};
}

// ---- packing ----
struct Place {  // where a row goes: first step, distance between steps
  float* at;
  int64_t step;
};

// Widens rows x [k0, k0 + 16 * steps) to fp32, missing k as +0.
template <class T>
void pack_rows(const T* src, int64_t row, int64_t col, int rows, int64_t k0, int64_t k_end, int64_t steps,
               const Place* to) {
  if (col == 1) {
    for (int r = 0; r < rows; ++r) {
      const T* s = src + r * row + k0;
      float* d = to[r].at;
      int64_t full = min_(steps, (k_end - k0) / 16);
      for (int64_t i = 0; i < full; ++i, d += to[r].step) store_f32(d, load(s + 16 * i));
      if (full < steps) store_f32(d, load_part(s + 16 * full, static_cast<int>(k_end - k0 - 16 * full)));
    }
    return;
  }
  for (int64_t i = 0; i < steps; ++i) {
    int64_t k = k0 + 16 * i;
    int valid = static_cast<int>(min_(16, k_end - k));
    F16 v[16];
    if (row == 1) {
      for (int j = 0; j < 16; ++j)
        v[j] = j >= valid ? zero() : rows == 16 ? load(src + (k + j) * col) : load_part(src + (k + j) * col, rows);
      transpose16(v);
    } else {
      for (int r = 0; r < rows; ++r) {
        float t[16] = {};
        for (int j = 0; j < valid; ++j) t[j] = to_float(src[r * row + (k + j) * col]);
        v[r] = load_f32(t);
      }
    }
    for (int r = 0; r < rows; ++r) store_f32(to[r].at + i * to[r].step, v[r]);
  }
}

void finish_row(const GemmArgs& g, const float* acc, int64_t b, int64_t row, int64_t n0, int64_t cols) {
  for (int64_t j = 0; j < cols; j += 16) {
    F16 a[16];
    for (int i = 0; i < 16; ++i) a[i] = load_f32(acc + 16 * (j + i));
    finish(g, fold16(a), b, row, n0 + j, static_cast<int>(min_(16, cols - j)));
  }
}

}  // namespace
}  // namespace samebits::SB_ISA
