// The row tree, for every reduction along a row: leaves of 1024 consecutive elements; sixteen lanes
// inside a leaf (lane = index mod 16), each from the identity upwards; lanes folded 8-4-2-1; leaves
// folded pairwise like a binary counter. Nothing else decides bits, so which leaves or rows run
// together, in which thread, and where the reduced axis lies in memory are free.
//
// WideTree is the tree that GPUs have: leaves of 8192, 1024 lanes, neighbouring lanes folded first.
#pragma once
#include "vec.hpp"

namespace samebits::SB_ISA {

constexpr int64_t kLeaf = 1024;

// What joins two partial results: sums, products, and the two extrema (NaN wins).
struct Sum {
  static F16 identity() { return zero(); }
  static F16 join(F16 a, F16 b) { return add(a, b); }
  static float join(float a, float b) { return a + b; }
  static float fold_lanes(F16 v) { return fold(v); }
};

template <class J>
static inline float fold_lanes_by(F16 v) {
  float t[32] = {};
  for (int w = 8; w >= 1; w /= 2) {
    store_f32(t, v);
    v = J::join(v, load_f32(t + w));
  }
  store_f32(t, v);
  return t[0];
}

struct Product {
  static F16 identity() { return set1(1.0f); }
  static F16 join(F16 a, F16 b) { return mul(a, b); }
  static float join(float a, float b) { return a * b; }
  static float fold_lanes(F16 v) { return fold_lanes_by<Product>(v); }
};

struct Max {
  static F16 identity() { return set1(-__builtin_inff()); }
  static F16 join(F16 a, F16 b) { return select(is_nan(a), a, vmax(a, b)); }
  static float join(float a, float b) { return a != a || a > b ? a : b; }
  static float fold_lanes(F16 v) { return fold_lanes_by<Max>(v); }
};

struct Min {
  static F16 identity() { return set1(__builtin_inff()); }
  static F16 join(F16 a, F16 b) { return select(is_nan(a), a, vmin(a, b)); }
  static float join(float a, float b) { return a != a || a < b ? a : b; }
  static float fold_lanes(F16 v) { return fold_lanes_by<Min>(v); }
};

/// Folds leaves as they come: a finished leaf carries up while its level is occupied. An aligned
/// group of 2^j leaves is a subtree, so groups may be folded apart and pushed as if they were leaves.
template <class J>
struct Counter {
  float level[40];
  uint64_t count = 0;

  void push(float v) {
    int l = 0;
    for (uint64_t c = count; c & 1; c >>= 1) v = J::join(level[l++], v);
    level[l] = v;
    ++count;
  }
  float total() const {
    if (count == 0) {
      float t[16];
      store_f32(t, J::identity());
      return t[0];
    }
    int l = __builtin_ctzll(count);
    float acc = level[l];
    for (++l; count >> l; ++l)
      if ((count >> l) & 1) acc = J::join(level[l], acc);
    return acc;
  }
};

/// S whole leaves of one row side by side, which hides the latency of the additions.
template <class J, int S, class Step>
static inline void whole_leaves(const Step& step, int64_t k, Counter<J>& counter) {
  F16 a[S];
  for (int s = 0; s < S; ++s) a[s] = J::identity();
  for (int64_t i = k; i < k + kLeaf; i += 16)
    for (int s = 0; s < S; ++s) a[s] = step(a[s], 0, i + s * kLeaf);
  for (int s = 0; s < S; ++s) counter.push(J::fold_lanes(a[s]));
}

/// Reduces elements [k0, k1) of R rows; k0 is a multiple of the leaf. `step(acc, row, k)` takes the
/// sixteen elements at k into acc, `step.part(acc, row, k, count)` the first `count` of them.
template <class J, int R, class Step>
static inline void reduce_rows(const Step& step, int64_t k0, int64_t k1, float* out) {
  Counter<J> counter[R];
  int64_t k = k0;
  if constexpr (R == 1) {
    for (; k + 4 * kLeaf <= k1; k += 4 * kLeaf) whole_leaves<J, 4>(step, k, counter[0]);
    if (k + 3 * kLeaf <= k1) {
      whole_leaves<J, 3>(step, k, counter[0]);
      k += 3 * kLeaf;
    } else if (k + 2 * kLeaf <= k1) {
      whole_leaves<J, 2>(step, k, counter[0]);
      k += 2 * kLeaf;
    }
  }
  for (; k < k1; k += kLeaf) {
    const int64_t end = k1 < k + kLeaf ? k1 : k + kLeaf;
    F16 a[R];
    for (int r = 0; r < R; ++r) a[r] = J::identity();
    int64_t i = k;
    for (; i + 16 <= end; i += 16)
      for (int r = 0; r < R; ++r) a[r] = step(a[r], r, i);
    if (i < end)
      for (int r = 0; r < R; ++r) a[r] = step.part(a[r], r, i, static_cast<int>(end - i));
    for (int r = 0; r < R; ++r) counter[r].push(J::fold_lanes(a[r]));
  }
  for (int r = 0; r < R; ++r) out[r] = counter[r].total();
}

constexpr int64_t kWideLanes = 1024;
/// Lanes that are folded of a leaf of `count` elements. Those without an element hold the identity, which changes
/// nothing.
static inline int64_t wide_lanes(int64_t count) {
  int64_t width = 16;
  while (width < count && width < kWideLanes) width *= 2;
  return width;
}

/// Elements [k, k + count) of a row, at most a leaf, along the wide tree.
template <class J, class Step>
static inline float wide_leaf(const Step& step, int row, int64_t k, int64_t count) {
  constexpr int64_t kLanes = kWideLanes;
  float lanes[2][kLanes];
  int64_t width = wide_lanes(count);
  for (int64_t v = 0; v < width; v += 64) {
    F16 a[4] = {J::identity(), J::identity(), J::identity(), J::identity()};
    for (int64_t c = v; c < count; c += kLanes)
      for (int u = 0; u < 4; ++u) {
        const int64_t at = c + 16 * u;
        if (at + 16 <= count) a[u] = step(a[u], row, k + at);
        else if (at < count) a[u] = step.part(a[u], row, k + at, static_cast<int>(count - at));
      }
    for (int u = 0; u < 4; ++u) store_f32(lanes[0] + v + 16 * u, a[u]);
  }
  const float* from = lanes[0];
  for (float* to = lanes[1]; width > 1; from = to, to = lanes[to == lanes[1] ? 0 : 1]) {
    width /= 2;
    for (int64_t i = 0; i < width; ++i) to[i] = J::join(from[2 * i], from[2 * i + 1]);
  }
  return *from;
}

struct NarrowTree {
  static constexpr int64_t kGroup = 4 * kLeaf;  // whole leaves that are a subtree
  template <class J, int R, class Step>
  static void rows(const Step& step, int64_t k0, int64_t k1, float* out) { reduce_rows<J, R>(step, k0, k1, out); }
};

struct WideTree {
  static constexpr int64_t kGroup = 8192;
  /// As reduce_rows.
  template <class J, int R, class Step>
  static void rows(const Step& step, int64_t k0, int64_t k1, float* out) {
    for (int r = 0; r < R; ++r) {
      Counter<J> counter;
      for (int64_t k = k0; k < k1; k += kGroup)
        counter.push(wide_leaf<J>(step, r, k, k1 - k < kGroup ? k1 - k : kGroup));
      out[r] = counter.total();
    }
  }
};

}  // namespace samebits::SB_ISA
