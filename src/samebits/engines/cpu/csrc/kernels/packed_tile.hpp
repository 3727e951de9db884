// The register tile of products with packed weights: R rows, L lanes of the 16, C panels of 16
// columns. Vectors lie along n: chains stay apart until the end, and the fold needs no shuffles.
#pragma once
#include "kernels/gemm_finish.hpp"
#include "kernels/packed.hpp"

namespace samebits::SB_ISA {
namespace {

#if defined(SB_ISA_avx512)
constexpr int kTileRows = 6, kTilesUpTo = 192;
constexpr int lanes_of(int rows) { return rows == 1 ? 16 : rows <= 3 ? 8 : 2; }
constexpr int panels_of(int rows) { return rows <= 3 ? 1 : 2; }
#elif defined(SB_ISA_scalar)
constexpr int kTileRows = 2, kTilesUpTo = 64;
constexpr int lanes_of(int) { return 1; }
constexpr int panels_of(int) { return 1; }
#else
constexpr int kTileRows = 3, kTilesUpTo = 64;
constexpr int lanes_of(int rows) { return rows == 1 ? 4 : 1; }
constexpr int panels_of(int rows) { return rows == 1 ? 1 : 2; }
#endif

/// `Step` says what a unit of x and w is, and how it goes into an accumulator.
template <class Step, int R, int C>
void tile(const PackedTile& t, const PackedShape& shape, int64_t panel) {
  using X = typename Step::X;
  using W = typename Step::W;
  constexpr int L = lanes_of(R), kGroups = 16 / L;
  const X* x = static_cast<const X*>(t.x);
  const int64_t to_next = shape.panel_bytes / static_cast<int64_t>(sizeof(W));
  const W* w = static_cast<const W*>(t.w) + (panel - t.panel) * to_next;
  const W* ahead = static_cast<const W*>(t.ahead) + (panel - t.panel) * to_next;
  const int64_t whole = Step::whole(shape);
  F16 part[kGroups][R][C];
  for (int group = 0; group < kGroups; ++group) {  // lanes group, group + kGroups, ...
    F16 a[L][R][C];
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) a[l][r][c] = zero();
    int64_t at = 16 * group;
    const X* xs = x + group;
    for (int64_t u = 0; u < whole; ++u, at += 256, xs += 16 * R) {
#pragma GCC unroll 16
      for (int l = 0; l < L; ++l)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          const int64_t o = at + 16 * kGroups * l + c * to_next;
          const auto wv = Step::load(w + o);
          __builtin_prefetch(ahead + o, 0, 2);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) a[l][r][c] = Step::add(a[l][r][c], xs[16 * r + kGroups * l], wv);
        }
    }
    if (whole < shape.units)  // a unit of which only the first step is there
      for (int l = 0; l < L; ++l)
        for (int c = 0; c < C; ++c) {
          const auto wv = Step::load(w + at + 16 * kGroups * l + c * to_next);
          for (int r = 0; r < R; ++r) a[l][r][c] = Step::add_first(a[l][r][c], xs[16 * r + kGroups * l], wv);
        }
#pragma GCC unroll 4
    for (int width = L / 2; width >= 1; width /= 2)
#pragma GCC unroll 8
      for (int l = 0; l < width; ++l)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) a[l][r][c] = add(a[l][r][c], a[l + width][r][c]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) part[group][r][c] = a[0][r][c];
  }
  for (int width = kGroups / 2; width >= 1; width /= 2)
    for (int group = 0; group < width; ++group)
      for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) part[group][r][c] = add(part[group][r][c], part[group + width][r][c]);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      const int64_t n0 = 16 * (panel + c), left = t.g->n - n0;
      finish(*t.g, part[0][r][c], 0, t.row + r, n0, static_cast<int>(left < 16 ? left : 16));
    }
}

template <class Step, int R>
void rows_of_tile(const PackedTile& t) {
  const PackedShape shape(t.g->in_type, t.g->n, t.g->k);
  if (panels_of(R) == 2 && t.panels == 2) return tile<Step, R, panels_of(R)>(t, shape, t.panel);
  for (int64_t p = 0; p < t.panels; ++p) tile<Step, R, 1>(t, shape, t.panel + p);
}

template <class Step>
void run_tile(const PackedTile& t) {
  switch (t.rows) {
    case 1: return rows_of_tile<Step, 1>(t);
    case 2: return rows_of_tile<Step, 2>(t);
#if !defined(SB_ISA_scalar)
    case 3: return rows_of_tile<Step, 3>(t);
#endif
#if defined(SB_ISA_avx512)
    case 4: return rows_of_tile<Step, 4>(t);
    case 5: return rows_of_tile<Step, 5>(t);
    case 6: return rows_of_tile<Step, 6>(t);
#endif
  }
}

}  // namespace
}  // namespace samebits::SB_ISA
