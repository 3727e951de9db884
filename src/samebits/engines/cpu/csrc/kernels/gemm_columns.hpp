// Schedules of the matrix product with vectors along n, for few rows and for short K: the chains of lanes(16) side by
// side in one register belong to different columns, so the fold needs no shuffles. Included by gemm.cpp only.
#pragma once
#include "kernels/gemm_parts.hpp"

namespace samebits::SB_ISA {
namespace {

// ---- few rows, contiguous columns: vectors along n, one accumulator for each of the 16 lanes ----
// The same chains as in the tile, held the other way round: acc[row][lane][column]. w is read once,
// in order, and the fold needs no shuffles.
template <class T, int R, int G>
void stream_steps(const float* x, const T* w, int64_t w_row, int64_t lanes, int64_t cols, float* acc, bool first) {
  const int64_t acc_lane = kStreamCols, acc_row = 16 * acc_lane;
  for (int64_t l = 0; l < 16; ++l) {
    const T* q = w + l * w_row;
    const bool there = l < lanes;  // past K both operands are +0
    F16 xv[R][G];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int s = 0; s < G; ++s) xv[r][s] = there ? set1(x[16 * (s * R + r) + l]) : zero();
    for (int64_t j = 0; j < cols; j += 16) {
      int n = static_cast<int>(min_(16, cols - j));
      F16 wv[G];
#pragma GCC unroll 8
      for (int s = 0; s < G; ++s) {
        const T* at = q + 16 * s * w_row + j;
        wv[s] = !there ? zero() : n == 16 ? load(at) : load_part(at, n);
        if (there) __builtin_prefetch(at + 2 * w_row, 0, 3);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* to = acc + r * acc_row + l * acc_lane + j;
        F16 a = first ? zero() : load_f32(to);
#pragma GCC unroll 8
        for (int s = 0; s < G; ++s) a = fma(xv[r][s], wv[s], a);
        store_f32(to, a);
      }
    }
  }
}

// Returns where k ended.
template <class T, int R>
int64_t stream(const GemmArgs& g, const GemmPlan& p, const Unit& u, const float* x, const T* w, int64_t n0, int64_t cols,
            float* acc) {
  constexpr int64_t kGroup = 4;
  int64_t full = g.k / 16, s = 0;
  for (; s + kGroup <= full; s += kGroup)
    stream_steps<T, R, kGroup>(x + 16 * s * R, w + 16 * s * g.w_col, g.w_col, 16, cols, acc, s == 0);
  for (; s < p.steps; ++s) {
    int64_t lanes = min_(16, g.k - 16 * s);
    stream_steps<T, R, 1>(x + 16 * s * R, w + 16 * s * g.w_col, g.w_col, lanes, cols, acc, s == 0);
  }
  for (int r = 0; r < R; ++r)
    for (int64_t j = 0; j < cols; j += 16) {
      F16 a[16];
      for (int l = 0; l < 16; ++l) a[l] = p.steps ? load_f32(acc + (16 * r + l) * kStreamCols + j) : zero();
      for (int width = 8; width >= 1; width /= 2)
        for (int l = 0; l < width; ++l) a[l] = add(a[l], a[l + width]);
      finish(g, a[0], u.batch, u.row0 + r, n0 + j, static_cast<int>(min_(16, cols - j)));
    }
  return min_(g.k, 16 * s);
}

// ---- short K: vectors along n, one lane after the other ----
// Turns a block of w with `k` elements a row round: [k][column], both filled up with +0.
template <class T>
void pack_across(const T* w, const GemmArgs& g, int64_t k_end, int64_t steps, int64_t cols, float* to) {
  for (int64_t s = 0; s < steps; ++s) {
    int valid = static_cast<int>(min_(16, k_end - 16 * s));
    for (int64_t j = 0; j < cols; j += 16) {
      int n = static_cast<int>(min_(16, cols - j));
      const T* at = w + j * g.w_row + 16 * s * g.w_col;
      F16 v[16];
      if (g.w_row == 1) {
        for (int k = 0; k < 16; ++k)
          v[k] = k >= valid ? zero() : n == 16 ? load(at + k * g.w_col) : load_part(at + k * g.w_col, n);
      } else {
        for (int c = 0; c < 16; ++c) {
          const T* row = at + c * g.w_row;
          if (c >= n) v[c] = zero();
          else if (g.w_col == 1) v[c] = valid == 16 ? load(row) : load_part(row, valid);
          else {
            float t[16] = {};
            for (int k = 0; k < valid; ++k) t[k] = to_float(row[k * g.w_col]);
            v[c] = load_f32(t);
          }
        }
        transpose16(v);
      }
      for (int k = 0; k < 16; ++k) store_f32(to + (16 * s + k) * kCols + j, v[k]);
    }
  }
}

// Lanes are visited in bit-reversed order, so that the fold 8-4-2-1 is a binary counter.
template <int R>
void across_tile(const GemmArgs& g, const Unit& u, int64_t row, const float* x, const float* w, int64_t steps,
                 int64_t n0, int64_t cols) {
  F16 held[5][R][2];
  for (unsigned i = 0; i < 16; ++i) {
    const float *xs = x + kOrder[i], *ws = w + kOrder[i] * kCols;
    F16 a[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r][0] = a[r][1] = zero();
    for (int64_t s = 0; s < steps; ++s, xs += 16 * R, ws += 16 * kCols) {
      F16 w0 = load_f32(ws), w1 = load_f32(ws + 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        F16 xv = set1(xs[16 * r]);
        a[r][0] = fma(xv, w0, a[r][0]);
        a[r][1] = fma(xv, w1, a[r][1]);
      }
    }
    int level = 0;
    for (; (i >> level) & 1u; ++level)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        for (int h = 0; h < 2; ++h) a[r][h] = add(held[level][r][h], a[r][h]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2; ++h) held[level][r][h] = a[r][h];
  }
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2 && 16 * h < cols; ++h)
      finish(g, held[4][r][h], u.batch, row + r, n0 + 16 * h, static_cast<int>(min_(16, cols - 16 * h)));
}

// Returns where k ended.
template <class T>
int64_t across(const GemmArgs& g, const GemmPlan& p, const Unit& u, const float* packed, const T* w, int64_t n0,
               int64_t cols, float* wp) {
  pack_across(w, g, g.k, p.steps, cols, wp);
  Cut tiles = tiles_of(u.rows);
  for (int64_t t = 0; t < tiles.parts; ++t) {
    int64_t r0 = tiles.at(t), row = u.row0 + r0;
    const float* x = packed + 16 * r0 * p.steps;
    switch (tiles.at(t + 1) - r0) {
      case 1: across_tile<1>(g, u, row, x, wp, p.steps, n0, cols); break;
      case 2: across_tile<2>(g, u, row, x, wp, p.steps, n0, cols); break;
#if !defined(SB_ISA_scalar)
      case 3: across_tile<3>(g, u, row, x, wp, p.steps, n0, cols); break;
#endif
#if defined(SB_ISA_avx512)
      case 4: across_tile<4>(g, u, row, x, wp, p.steps, n0, cols); break;
      case 5: across_tile<5>(g, u, row, x, wp, p.steps, n0, cols); break;
      case 6: across_tile<6>(g, u, row, x, wp, p.steps, n0, cols); break;
#endif
    }
  }
  return min_(g.k, 16 * p.steps);
}

}  // namespace
}  // namespace samebits::SB_ISA
