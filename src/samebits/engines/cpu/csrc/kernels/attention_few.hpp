// Few rows (decode): a lane is a key for the scores, then a value of d.
#pragma once
#include "kernels/attention_math.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr int kFew = 8;
constexpr int kTile = 64;  // keys of a transposed tile

struct FewScratch {
  float *q, *kt, *p;
  static int64_t size(int64_t d) { return kFew * (d + kLeaf) + kTile * d; }
  FewScratch(float* at, int64_t d) : q(at), kt(at + kFew * d), p(kt + kTile * d) {}
};

/// Scores of N rows against 16 V keys of a transposed tile.
template <int N, int V>
inline void few_scores(const float* q, const float* kt, int64_t d, float* s) {
  F16 a[N][V];
  for (int r = 0; r < N; ++r)
    for (int v = 0; v < V; ++v) a[r][v] = zero();
  for (int64_t i = 0; i < d; ++i) {
    F16 k[V];
    for (int v = 0; v < V; ++v) k[v] = load(kt + i * kTile + 16 * v);
    for (int r = 0; r < N; ++r) {
      F16 b = set1(q[r * d + i]);
      for (int v = 0; v < V; ++v) a[r][v] = fma(b, k[v], a[r][v]);
    }
  }
  for (int r = 0; r < N; ++r)
    for (int v = 0; v < V; ++v) store_f32(s + r * kLeaf + 16 * v, a[r][v]);
}

template <int N>
inline void few_tile(const float* q, const float* kt, int64_t d, float* s, int64_t width) {
  if (width > 32) few_scores<N, 4>(q, kt, d, s);
  else if (width > 16) few_scores<N, 2>(q, kt, d, s);
  else few_scores<N, 1>(q, kt, d, s);
}

/// o[r] chains over n keys for N rows and V vectors of d; the first pass sums l as well.
template <class T, int N, int V, bool Sum>
inline void few_values(const KeyView& view, int64_t k0, int64_t n, int64_t at, int width,
                       const float* p, float* o, int64_t dv, float* l) {
  F16 a[N][V];
  float sum[N];
  for (int r = 0; r < N; ++r) {
    sum[r] = 0.0f;
    for (int v = 0; v < V; ++v) a[r][v] = zero();
  }
  const T* base = static_cast<const T*>(view.base) + at;
  for (int64_t j = 0; j < n; ++j) {
    const T* row = base + view.at(k0 + j);
    F16 x[V];
    for (int v = 0; v < V; ++v) x[v] = width == 16 ? load(row + 16 * v) : load_part(row, width);
    for (int r = 0; r < N; ++r) {
      float w = p[r * kLeaf + j];
      if constexpr (Sum) sum[r] = sum[r] + w;
      F16 b = set1(w);
      for (int v = 0; v < V; ++v) a[r][v] = fma(b, x[v], a[r][v]);
    }
  }
  for (int r = 0; r < N; ++r) {
    for (int v = 0; v < V; ++v)
      width == 16 ? store_f32(o + r * dv + at + 16 * v, a[r][v]) : store_part_f32(o + r * dv + at, a[r][v], width);
    if constexpr (Sum) l[r] = sum[r];
  }
}

template <class T, int N>
inline void few_pass(const KeyView& view, int64_t k0, int64_t n, const float* p, float* o, int64_t dv,
                     float* l) {
  int64_t i = 0;
  for (; i + 64 <= dv; i += 64) {
    if (i == 0) few_values<T, N, 4, true>(view, k0, n, i, 16, p, o, dv, l);
    else few_values<T, N, 4, false>(view, k0, n, i, 16, p, o, dv, l);
  }
  for (; i < dv; i += 16) {
    int width = static_cast<int>(least(16, dv - i));
    if (i == 0) few_values<T, N, 1, true>(view, k0, n, i, width, p, o, dv, l);
    else few_values<T, N, 1, false>(view, k0, n, i, width, p, o, dv, l);
  }
}

/// What a leaf leaves beside its values: see AttentionKernels::few.
struct Seal {
  float *words, *sum;
  Seal(const AttentionTask& t, float* partial) : words(partial + values_size(t)), sum(words + t.rows) {}
  void close(const AttentionTask& t, const float* partial, int64_t k0, const int64_t* n) {
    for (int r = 0; r < t.rows; ++r) {
      uint32_t leaf = path_leaf(k0, k0 + n[r]);
      __builtin_memcpy(words + r, &leaf, 4);
    }
    int64_t total = view_sum(partial, values_size(t));
    __builtin_memcpy(sum, &total, 8);
  }
  uint32_t leaf(int r) const {
    uint32_t word;
    __builtin_memcpy(&word, words + r, 4);
    return word;
  }
  /// Whether the values are those that were sealed. A seal holds for one fold: nothing may be folded twice.
  bool open(const AttentionTask& t, const float* partial) {
    int64_t total;
    __builtin_memcpy(&total, sum, 8);
    bool good = total == view_sum(partial, values_size(t));
    total = ~total;
    __builtin_memcpy(sum, &total, 8);
    return good;
  }
};

template <class T>
void few_leaf(const AttentionTask& t, int64_t leaf, float* partial, float* scratch) {
  const int64_t d = t.d, dv = t.dv, k0 = leaf * kLeaf;
  const int rows = t.rows;
  FewScratch b(scratch, d);
  int64_t n[kFew], longest = 0;
  for (int r = 0; r < rows; ++r) {
    n[r] = least(kLeaf, t.count[r] - k0);
    if (n[r] < 0) n[r] = 0;
    longest = n[r] > longest ? n[r] : longest;
    widen_row(static_cast<const T*>(t.q[r]), d, b.q + r * d);
  }
  const T* base = static_cast<const T*>(t.k.base);
  for (int64_t j = 0; j < longest; j += kTile) {
    const int64_t width = least(kTile, longest - j);
    for (int64_t i = 0; i < width; i += 16) {
      const T* key[16];
      int keys = static_cast<int>(least(16, width - i));
      for (int c = 0; c < keys; ++c) key[c] = base + t.k.at(k0 + j + i + c);
      transpose_rows(key, keys, d, b.kt + i, kTile);
    }
    for (int r = 0; r < rows; r += 4) {
      const float* q = b.q + r * d;
      float* s = b.p + r * kLeaf + j;
      switch (rows - r) {
        case 1: few_tile<1>(q, b.kt, d, s, width); break;
        case 2: few_tile<2>(q, b.kt, d, s, width); break;
        case 3: few_tile<3>(q, b.kt, d, s, width); break;
        default: few_tile<4>(q, b.kt, d, s, width); break;
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    float* p = b.p + r * kLeaf;
    F16 top = set1(-infinity());
    for (int64_t j = 0; j < n[r]; j += 16) {
      int w = static_cast<int>(least(16, n[r] - j));
      F16 x = exponent(t, load(p + j));
      if (t.bias[0]) {
        float bias[16] = {};
        for (int c = 0; c < w; ++c)
          bias[c] = t.bias[r][t.position ? t.position[k0 + j + c] : t.first + k0 + j + c];
        x = biased(x, load(bias));
      }
      store_f32(p + j, x);
      top = select(m_first(w), vmax(x, top), top);
    }
    float lane[16];
    store_f32(lane, top);
    float m = lane[0];
    for (int i = 1; i < 16; ++i) m = lane[i] > m ? lane[i] : m;
    F16 mv = ceil(set1(m));
    for (int64_t j = 0; j < n[r]; j += 16) store_f32(p + j, probability<T>(load(p + j), mv, t.wide));
    store_f32(lane, mv);
    partial[r] = lane[0];
  }
  float* l = partial + rows;
  float* o = partial + 2 * rows;
  for (int r = 0; r < rows;) {
    int same = 1;
    while (same < 4 && r + same < rows && n[r + same] == n[r]) ++same;
    const float* p = b.p + r * kLeaf;
    switch (same) {
      case 4: few_pass<T, 4>(t.v, k0, n[r], p, o + r * dv, dv, l + r); break;
      case 3: few_pass<T, 3>(t.v, k0, n[r], p, o + r * dv, dv, l + r); break;
      case 2: few_pass<T, 2>(t.v, k0, n[r], p, o + r * dv, dv, l + r); break;
      default: few_pass<T, 1>(t.v, k0, n[r], p, o + r * dv, dv, l + r); break;
    }
    r += same;
  }
  if (t.check) Seal(t, partial).close(t, partial, k0, n);
}

inline int64_t leaves_of(const AttentionTask& t, int r) {
  const int64_t all = (t.count[r] + kLeaf - 1) / kLeaf;
  return t.check && all > 1 && t.check->fault == Fault::dropped ? all - 1 : all;
}
/// The leaf that a fold takes at its i-th step: the i-th, unless a test wants another order.
inline int64_t taken(const AttentionTask& t, int64_t i, int64_t leaves) {
  return t.check && leaves > 1 && i < 2 && t.check->fault == Fault::swapped ? 1 - i : i;
}

/// Paths and sums of the leaves that are about to be folded.
inline void check_leaves(const AttentionTask& t, float* partials, int64_t most) {
  const int64_t size = partial_size(t);
  uint32_t path[kFew];
  bool sums = true;
  for (int64_t i = 0; i < most; ++i) sums &= Seal(t, partials + i * size).open(t, partials + i * size);
  for (int r = 0; r < t.rows; ++r) {
    const int64_t leaves = leaves_of(t, r);
    path[r] = t.check->seed;
    for (int64_t i = 0; i < leaves; ++i)
      path[r] = path_fold(path[r], Seal(t, partials + taken(t, i, leaves) * size).leaf(r));
  }
  report_paths(t, path, sums);
}

template <class T>
void finish_rows(const AttentionTask& t, float* partials) {
  const int64_t size = partial_size(t), dv = t.dv;
  if (t.check) {
    int64_t most = 0;
    for (int r = 0; r < t.rows; ++r) most = leaves_of(t, r) > most ? leaves_of(t, r) : most;
    check_leaves(t, partials, most);
  }
  for (int r = 0; r < t.rows; ++r) {
    const int64_t leaves = leaves_of(t, r);
    F16 m = set1(-infinity()), l = zero(), scale = set1(1.0f);
    for (int64_t i = 0; i < leaves; ++i) {
      const float* p = partials + taken(t, i, leaves) * size;
      Fold fold(m, set1(p[r]));
      l = i == 0 ? set1(p[t.rows + r]) : fold(l, set1(p[t.rows + r]));
      m = fold.m;
    }
    if (t.sink[0] && *t.sink[r] != -infinity()) fold_sink(set1(*t.sink[r]), m, l, scale);
    F16 total = leaves == 0 ? select(eq(l, zero()), set1(1.0f), l) : l;
    T* out = static_cast<T*>(t.out[r]);
    for (int64_t i = 0; i < dv; i += 16) {
      int w = static_cast<int>(least(16, dv - i));
      F16 o = zero(), run = set1(-infinity());
      for (int64_t j = 0; j < leaves; ++j) {
        const float* p = partials + taken(t, j, leaves) * size;
        Fold fold(run, set1(p[r]));
        F16 next = load_part(p + 2 * t.rows + r * dv + i, w);
        o = j == 0 ? next : fold(o, next);
        run = fold.m;
      }
      store_part(out + i, div(mul(o, scale), total), w);
    }
    if (t.lse[0]) {
      float lse[16];
      store(lse, log_sum(m, l));
      *t.lse[r] = lse[0];
    }
  }
}

}  // namespace
}  // namespace samebits::SB_ISA
