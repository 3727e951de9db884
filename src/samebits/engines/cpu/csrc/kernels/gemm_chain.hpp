// Few rows along the tree of one chain: vectors along n, w turned round in registers and used at once, since nothing
// would read a packed copy again. Included by gemm.cpp only.
#pragma once
#include "kernels/gemm_parts.hpp"
#include "kernels/product_steps.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr int64_t kChainRows = 4, kChainCols = 64;

void plan_chain(const GemmArgs& g, GemmPlan& p) {
  p.few = true;
  p.row_units = 1;
  p.unit_rows = g.m;
  p.cols = kChainCols;
  p.col_blocks = div_up(g.n, p.cols);
}

template <class T, int R>
void chain_rows(const GemmArgs& g, int64_t batch, const T* w, int64_t n0, int64_t cols) {
  const T* x = static_cast<const T*>(g.x) + batch * g.x_batch;
  for (int64_t c = 0; c < cols; c += 16) {
    const int width = static_cast<int>(min_(16, cols - c));
    F16 a[R];
    for (int r = 0; r < R; ++r) a[r] = zero();
    for (int64_t s = 0; 16 * s < g.k; ++s) {
      F16 v[16];
      turned(w + c * g.w_row, g.w_row, g.w_col, width, s, g.k, false, v);
      float xs[R][16];
      for (int r = 0; r < R; ++r) store_f32(xs[r], sixteen(x + r * g.x_row, g.x_col, 16 * s, g.k));
      const auto step = [&](int l) {
        for (int r = 0; r < R; ++r) a[r] = fma(set1(xs[r][l]), v[l], a[r]);
      };
      const int64_t left = g.k - 16 * s;
      if (left >= 16)
#pragma GCC unroll 16
        for (int l = 0; l < 16; ++l) step(l);
      else
        for (int l = 0; l < left; ++l) step(l);
    }
    for (int r = 0; r < R; ++r) finish(g, a[r], batch, r, n0 + c, width);
  }
}

// Returns where k ended.
template <class T>
int64_t chain(const GemmArgs& g, int64_t batch, const T* w, int64_t n0, int64_t cols) {
  switch (g.m) {
    case 1: chain_rows<T, 1>(g, batch, w, n0, cols); break;
    case 2: chain_rows<T, 2>(g, batch, w, n0, cols); break;
    case 3: chain_rows<T, 3>(g, batch, w, n0, cols); break;
    default: chain_rows<T, 4>(g, batch, w, n0, cols); break;
  }
  return g.k;
}

}  // namespace
}  // namespace samebits::SB_ISA
