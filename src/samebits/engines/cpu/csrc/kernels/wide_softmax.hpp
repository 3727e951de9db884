// Softmax along the wide tree: every leaf has its own maximum, see LEAF_FORMULAS of contract/rows.py.
// Included by norm.cpp.
#pragma once
#include "kernels/norm.hpp"
#include "kernels/row_maps.hpp"

namespace samebits::SB_ISA {
namespace {

template <class T>
struct FlushedExponential {
  const T* x;
  F16 m;
  F16 operator()(F16 acc, int, int64_t k) const { return add(acc, exp_flush(sub(load(x + k), m))); }
  F16 part(F16 acc, int, int64_t k, int n) const {
    return select(m_first(n), add(acc, exp_flush(sub(load_part(x + k, n), m))), acc);
  }
};
template <class T> struct FlushedProduct {  // expf(x - m) * s
  const T* x;
  F16 m, s;
  F16 operator()(int64_t k) const { return mul(exp_flush(sub(load(x + k), m)), s); }
  F16 part(int64_t k, int n) const { return mul(exp_flush(sub(load_part(x + k, n), m)), s); }
};

float exp_flush1(float x) {
  float t[16];
  store_f32(t, exp_flush(set1(x)));
  return t[0];
}
float finite(float m) { return __builtin_isinf(m) ? 0.0f : m; }

/// A row's maximum (0 for an infinite one if `bounded`) and the sum of exp(x - maximum).
struct RowPair {
  float m, s;
};
template <class T>
RowPair row_pair(const T* x, int64_t n, bool bounded) {
  constexpr int64_t kWide = WideTree::kGroup;
  const auto count = [n](int64_t k) { return n - k < kWide ? n - k : kWide; };
  float m = -__builtin_inff();
  for (int64_t k = 0; k < n; k += kWide) {
    const float top = maximum(x + k, count(k));
    m = top > m ? top : m;
  }
  if (bounded) m = finite(m);
  Counter<Sum> counter;
  for (int64_t k = 0; k < n; k += kWide) {
    const float top = n <= kWide && !bounded ? m : maximum(x + k, count(k));
    const FlushedExponential<T> step{x, set1(finite(top))};
    counter.push(wide_leaf<Sum>(step, 0, k, count(k)) * exp_flush1(top - m));
  }
  return {m, counter.total()};
}

template <class T, class O>
void wide_softmax_rows(const NormArgs& a, int64_t r0, int64_t r1) {
  for (int64_t r = r0; r < r1; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.stride;
    O* out = static_cast<O*>(a.out) + r * a.n;
    const RowPair p = row_pair(x, a.n, false);
    if (a.log) map(out, a.n, LogShift<T>{x, set1(p.m), set1(log1(p.s))});
    else map(out, a.n, FlushedProduct<T>{x, set1(p.m), set1(1.0f / p.s)});
  }
}

}  // namespace
}  // namespace samebits::SB_ISA
