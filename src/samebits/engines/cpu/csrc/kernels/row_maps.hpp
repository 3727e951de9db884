// What softmaxes share: the maximum of a row, and functions of all its elements. Included by norm.cpp.
#pragma once
#include "kernels/row_tree.hpp"
#include "math.hpp"

namespace samebits::SB_ISA {
namespace {

/// The exact maximum; NaN is passed over (it reaches the result through the sum); -0 becomes +0.
template <class T>
float maximum(const T* x, int64_t n) {
  F16 a[4] = {Max::identity(), Max::identity(), Max::identity(), Max::identity()};
  int64_t k = 0;
  for (; k + 64 <= n; k += 64)
    for (int s = 0; s < 4; ++s) a[s] = vmax(load(x + k + 16 * s), a[s]);
  for (; k + 16 <= n; k += 16) a[0] = vmax(load(x + k), a[0]);
  if (k < n) {
    const int part = static_cast<int>(n - k);
    a[1] = select(m_first(part), vmax(load_part(x + k, part), a[1]), a[1]);
  }
  return Max::fold_lanes(vmax(vmax(a[0], a[1]), vmax(a[2], a[3]))) + 0.0f;
}

template <class T, class F>
void map(T* out, int64_t n, F f) {
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) store(out + k, f(k));
  if (k < n) store_part(out + k, f.part(k, static_cast<int>(n - k)), static_cast<int>(n - k));
}

template <class T> struct LogShift {  // (x - m) - log s
  const T* x;
  F16 m, s;
  F16 operator()(int64_t k) const { return sub(sub(load(x + k), m), s); }
  F16 part(int64_t k, int n) const { return sub(sub(load_part(x + k, n), m), s); }
};

float log1(float x) {
  float t[16];
  store_f32(t, log(set1(x)));
  return t[0];
}

}  // namespace
}  // namespace samebits::SB_ISA
