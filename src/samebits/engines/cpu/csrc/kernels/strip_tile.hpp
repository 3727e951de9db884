// The register tile of strips.hpp: rows x 16 * panels columns, one chain each, over consecutive units.
#pragma once
#include "kernels/product_steps.hpp"
#include "kernels/strips.hpp"

namespace samebits::SB_ISA {
namespace {

template <class Step, int R, int C, int L>
void strip_tile(const StripTile& t) {
  constexpr int A = R * C;
  const auto* x = static_cast<const typename Step::X*>(t.x);
  const auto* w = static_cast<const typename Step::W*>(t.w);
  const float* start = t.start;
  float* held = t.held;
  const bool half = Step::kHalves && t.half;
  const int64_t whole = t.units - half;
  F16 a[L * A];
#pragma GCC unroll 28
  for (int i = 0; i < L * A; ++i) a[i] = zero();
  if (L == 1 && start)
#pragma GCC unroll 28
    for (int i = 0; i < A; ++i) a[i] = load_f32(start + 16 * i);
  for (int64_t u = 0; u < whole; ++u)
#pragma GCC unroll 2
    for (int l = 0; l < L; ++l, x += kStripWidth, w += 16 * C) {
      decltype(Step::load(w)) v[C];
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) v[c] = Step::load(w + 16 * c);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) a[l * A + r * C + c] = Step::add(a[l * A + r * C + c], x[r], v[c]);
    }
  if (half)
    for (int l = 0; l < L; ++l, x += kStripWidth, w += 16 * C)
      for (int c = 0; c < C; ++c)
        for (int r = 0; r < R; ++r)
          a[l * A + r * C + c] = Step::add_first(a[l * A + r * C + c], x[r], Step::load(w + 16 * c));
  if (L == 2)
#pragma GCC unroll 28
    for (int i = 0; i < A; ++i) a[i] = add(a[i], a[(L - 1) * A + i]);
  for (int level = t.level; level > 0; --level, held += kTileFloats)
#pragma GCC unroll 28
    for (int i = 0; i < A; ++i) a[i] = add(load_f32(held + 16 * i), a[i]);
#pragma GCC unroll 28
  for (int i = 0; i < A; ++i) store_f32(held + 16 * i, a[i]);
}

template <class Step, int C, int L>
void strip_rows(const StripTile& t) {
  switch (t.rows) {
#define SB_ROWS(R) case R: return strip_tile<Step, R, C, L>(t);
    SB_ROWS(1) SB_ROWS(2)
#if !defined(SB_ISA_scalar)
    SB_ROWS(3) SB_ROWS(4) SB_ROWS(5) SB_ROWS(6)
#endif
#if defined(SB_ISA_avx512)
    SB_ROWS(7)
#endif
#undef SB_ROWS
  }
}

template <class Step, int L>
void strip_run(const StripTile& t) {
  if (t.panels == 1) return strip_rows<Step, 1, L>(t);
  if constexpr (kStripPanels == 2) strip_rows<Step, 2, L>(t);
}

}  // namespace
}  // namespace samebits::SB_ISA
