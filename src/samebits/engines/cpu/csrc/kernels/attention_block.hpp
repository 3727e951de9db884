// Many rows that share their keys (prefill): a lane is a row.
#pragma once
#include "kernels/attention_math.hpp"

namespace samebits::SB_ISA {
namespace {

#if defined(SB_ISA_avx512)
constexpr int RV = 2, KT = 12, DT = 12;  // row vectors, keys and values of d in a register tile
#else
constexpr int RV = 1, KT = 6, DT = 6;
#endif
constexpr int R = 16 * RV;
constexpr int64_t kSub = 128;  // keys whose probabilities and values stay in the first-level cache

template <int N>
inline void score_tile(const float* k, int64_t stride, const float* qt, int64_t d, F16 (*acc)[RV]) {
  F16 a[N][RV];
  for (int j = 0; j < N; ++j)
    for (int v = 0; v < RV; ++v) a[j][v] = zero();
  const float* p[(N + 2) / 3];  // three keys an address register: p, p + stride, p + 2 stride
  for (int j = 0; j < N; j += 3) p[j / 3] = k + j * stride;
  for (int64_t i = 0; i < d; ++i) {
    F16 q[RV];
    for (int v = 0; v < RV; ++v) q[v] = load(qt + i * R + 16 * v);
    for (int j = 0; j < N; ++j) {
      F16 b = set1(p[j / 3][(j % 3) * stride]);
      for (int v = 0; v < RV; ++v) a[j][v] = fma(b, q[v], a[j][v]);
    }
    for (int j = 0; j < N; j += 3) ++p[j / 3];
  }
  for (int j = 0; j < N; ++j)
    for (int v = 0; v < RV; ++v) acc[j][v] = a[j][v];
}

/// o[i][row] chains over keys [0, n), i in [0, N). Rows at or past their count keep their value.
template <int N, bool Masked>
inline void value_tile(const float* p, const float* v, int64_t stride, int64_t n, int64_t rank,
                       const I16* count, float* o) {
  F16 a[N][RV];
  for (int i = 0; i < N; ++i)
    for (int u = 0; u < RV; ++u) a[i][u] = load(o + i * R + 16 * u);
  for (int64_t j = 0; j < n; ++j, p += R, v += stride) {
    F16 w[RV];
    for (int u = 0; u < RV; ++u) w[u] = load(p + 16 * u);
    if constexpr (Masked) {
      M16 seen[RV];
      for (int u = 0; u < RV; ++u) seen[u] = lt_i(set1_i(static_cast<int32_t>(rank + j)), count[u]);
      for (int i = 0; i < N; ++i) {
        F16 b = set1(v[i]);
        for (int u = 0; u < RV; ++u) a[i][u] = select(seen[u], fma(w[u], b, a[i][u]), a[i][u]);
      }
    } else {
      for (int i = 0; i < N; ++i) {
        F16 b = set1(v[i]);
        for (int u = 0; u < RV; ++u) a[i][u] = fma(w[u], b, a[i][u]);
      }
    }
  }
  for (int i = 0; i < N; ++i)
    for (int u = 0; u < RV; ++u) store_f32(o + i * R + 16 * u, a[i][u]);
}

template <bool Masked>
inline void value_pass(const float* p, const float* v, int64_t stride, int64_t n, int64_t rank,
                       const I16* count, int64_t dv, float* o) {
  if (n <= 0) return;
  int64_t i = 0;
  while (i < dv) {
    int64_t left = dv - i;
    float* out = o + i * R;
    if (left >= DT && left != 16) {
      value_tile<DT, Masked>(p, v + i, stride, n, rank, count, out);
      i += DT;
    } else if (DT >= 8 && left >= 8) {
      value_tile<8, Masked>(p, v + i, stride, n, rank, count, out);
      i += 8;
    } else if (left >= 4) {
      value_tile<4, Masked>(p, v + i, stride, n, rank, count, out);
      i += 4;
    } else {
      value_tile<1, Masked>(p, v + i, stride, n, rank, count, out);
      i += 1;
    }
  }
}

struct BlockScratch {
  float *qt, *s, *bias, *leaf_o, *o, *pack;
  static int64_t size(int64_t d, int64_t dv) {
    return R * (d + 2 * kLeaf + 2 * dv) + kSub * (d > dv ? d : dv);
  }
  BlockScratch(float* p, int64_t d, int64_t dv) {
    qt = p;
    s = qt + R * d;
    bias = s + R * kLeaf;
    leaf_o = bias + R * kLeaf;
    o = leaf_o + R * dv;
    pack = o + R * dv;
  }
};

inline void gather_bias(const AttentionTask& t, int64_t k0, int64_t n, float* out) {
  for (int r = 0; r < R; ++r) {
    const float* row = r < t.rows ? t.bias[r] : nullptr;
    for (int64_t j = 0; j < n; ++j)
      out[j * R + r] = row && k0 + j < t.count[r]
                           ? row[t.position ? t.position[k0 + j] : t.first + k0 + j] : 0.0f;
  }
}

/// Every row's path: the leaf over [k0, k0 + n) as far as the row sees it.
inline void extend_paths(const AttentionTask& t, int64_t k0, int64_t n, uint32_t* path) {
  for (int r = 0; r < t.rows; ++r)
    if (k0 < t.count[r]) path[r] = path_fold(path[r], path_leaf(k0, least(k0 + n, t.count[r])));
}

template <class T>
void block_rows(const AttentionTask& t, float* scratch) {
  const int64_t d = t.d, dv = t.dv;
  BlockScratch b(scratch, d, dv);
  int32_t counts[R] = {};
  int64_t longest = 0, shortest = INT64_MAX;
  for (int r = 0; r < t.rows; ++r) {
    counts[r] = static_cast<int32_t>(t.count[r]);
    longest = t.count[r] > longest ? t.count[r] : longest;
    shortest = least(shortest, t.count[r]);
  }
  I16 count[RV];
  F16 m[RV], l[RV];
  for (int u = 0; u < RV; ++u) {
    count[u] = load_i(counts + 16 * u);
    m[u] = set1(-infinity());
    l[u] = zero();
    int n = t.rows - 16 * u;
    transpose_rows(reinterpret_cast<const T* const*>(t.q) + 16 * u, n < 0 ? 0 : n, d, b.qt + 16 * u, R);
  }
  for (int64_t i = 0; i < R * dv; i += 16) store_f32(b.o + i, zero());

  uint32_t path[R];
  if (t.check)
    for (uint32_t& p : path) p = t.check->seed;

  for (int64_t k0 = 0; k0 < longest; k0 += kLeaf) {
    const int64_t n = least(kLeaf, longest - k0);
    const int64_t full = shortest <= k0 ? 0 : least(n, shortest - k0);  // keys that all rows see
    if (t.bias[0]) gather_bias(t, k0, n, b.bias);

    F16 top[RV];
    for (int u = 0; u < RV; ++u) top[u] = set1(-infinity());
    auto finish_scores = [&](int64_t j, const F16* acc) {
      for (int u = 0; u < RV; ++u) {
        F16 x = exponent(t, acc[u]);
        if (t.bias[0]) x = biased(x, load(b.bias + j * R + 16 * u));
        store_f32(b.s + j * R + 16 * u, x);
        F16 larger = vmax(x, top[u]);
        top[u] = j < full ? larger
                          : select(lt_i(set1_i(static_cast<int32_t>(k0 + j)), count[u]), larger, top[u]);
      }
    };
    for (int64_t j0 = 0; j0 < n; j0 += kSub - kSub % KT) {
      int64_t end = least(n, j0 + kSub - kSub % KT), stride;
      const float* k = rows_of<T>(t.k, k0 + j0, end - j0, d, b.pack, stride);
      int64_t j = j0;
      F16 acc[KT][RV];
      for (; j + KT <= end; j += KT) {
        score_tile<KT>(k + (j - j0) * stride, stride, b.qt, d, acc);
        for (int i = 0; i < KT; ++i) finish_scores(j + i, acc[i]);
      }
      for (; j + 4 <= end; j += 4) {
        score_tile<4>(k + (j - j0) * stride, stride, b.qt, d, acc);
        for (int i = 0; i < 4; ++i) finish_scores(j + i, acc[i]);
      }
      for (; j < end; ++j) {
        score_tile<1>(k + (j - j0) * stride, stride, b.qt, d, acc);
        finish_scores(j, acc[0]);
      }
    }

    F16 leaf_m[RV], leaf_l[RV];
    for (int u = 0; u < RV; ++u) {
      leaf_m[u] = ceil(top[u]);
      leaf_l[u] = zero();
    }
    for (int64_t i = 0; i < R * dv; i += 16) store_f32(b.leaf_o + i, zero());
    for (int64_t j0 = 0; j0 < n; j0 += kSub) {
      const int64_t end = least(n, j0 + kSub), mid = full < j0 ? j0 : least(full, end);
      for (int64_t j = j0; j < end; ++j)
        for (int u = 0; u < RV; ++u) {
          float* at = b.s + j * R + 16 * u;
          F16 p = probability<T>(load(at), leaf_m[u], t.wide);
          F16 sum = add(leaf_l[u], p);
          leaf_l[u] = j < mid ? sum
                              : select(lt_i(set1_i(static_cast<int32_t>(k0 + j)), count[u]), sum, leaf_l[u]);
          store_f32(at, p);
        }
      int64_t stride;
      const float* v = rows_of<T>(t.v, k0 + j0, end - j0, dv, b.pack, stride);
      value_pass<false>(b.s + j0 * R, v, stride, mid - j0, k0 + j0, count, dv, b.leaf_o);
      value_pass<true>(b.s + mid * R, v + (mid - j0) * stride, stride, end - mid, k0 + mid, count, dv, b.leaf_o);
    }

    if (t.check) extend_paths(t, k0, n, path);
    for (int u = 0; u < RV; ++u) {
      Fold fold(m[u], leaf_m[u]);
      M16 seen = lt_i(set1_i(static_cast<int32_t>(k0)), count[u]);
      auto step = [&](F16 old, F16 next) {
        return select(seen, k0 == 0 ? next : fold(old, next), old);
      };
      l[u] = step(l[u], leaf_l[u]);
      m[u] = select(seen, fold.m, m[u]);
      for (int64_t i = 0; i < dv; ++i) {
        float* o = b.o + i * R + 16 * u;
        store_f32(o, step(load(o), load(b.leaf_o + i * R + 16 * u)));
      }
    }
  }

  if (t.check) report_paths(t, path);
  for (int u = 0; 16 * u < t.rows; ++u) {
    F16 scale = set1(1.0f);
    M16 empty = eq_i(count[u], set1_i(0));
    if (t.sink[0]) {
      float sinks[16] = {};
      for (int r = 0; r < 16 && 16 * u + r < t.rows; ++r) sinks[r] = *t.sink[16 * u + r];
      F16 sink = load(sinks);
      M16 none = eq(sink, set1(-infinity()));
      F16 m1 = m[u], l1 = l[u];
      fold_sink(sink, m1, l1, scale);
      m[u] = select(none, m[u], m1);
      l[u] = select(none, l[u], l1);
      scale = select(none, set1(1.0f), scale);
    }
    F16 total = select(eq(l[u], zero()), select(empty, set1(1.0f), l[u]), l[u]);
    for (int64_t i = 0; i < dv; i += 16) {
      int w = static_cast<int>(least(16, dv - i));
      F16 a[16];
      for (int j = 0; j < 16; ++j)
        a[j] = j < w ? div(mul(load(b.o + (i + j) * R + 16 * u), scale), total) : zero();
      transpose16(a);
      for (int r = 0; r < 16 && 16 * u + r < t.rows; ++r) {
        T* out = static_cast<T*>(t.out[16 * u + r]) + i;
        w == 16 ? store(out, a[r]) : store_part(out, a[r], w);
      }
    }
    if (t.lse[0]) {
      float lse[16];
      store(lse, log_sum(m[u], l[u]));
      for (int r = 0; r < 16 && 16 * u + r < t.rows; ++r) *t.lse[16 * u + r] = lse[r];
    }
  }
}

}  // namespace
}  // namespace samebits::SB_ISA
