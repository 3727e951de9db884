// One row of attention is three kinds of chains: over d (a score), over the keys of a leaf (o and l),
// over the leaves (the fold). The chains are the contract; which of them run side by side is not:
//   block   a lane is a row: many rows share each key (prefill)
//   few     a lane is a key for the scores and a d for the values (decode)
// See ops/attention/reference.py for the contract in full.
#include "kernels/attention.hpp"

#include "math.hpp"
#include "vec.hpp"

namespace samebits::SB_ISA {
namespace {

#if defined(SB_ISA_avx512)
constexpr int RV = 2, KT = 12, DT = 12;  // row vectors, keys and values of d in a register tile
#else
constexpr int RV = 1, KT = 6, DT = 6;
#endif
constexpr int R = 16 * RV;
constexpr int64_t kSub = 128;  // keys whose probabilities and values stay in the first-level cache
constexpr int kFew = 8;
constexpr int kTile = 64;      // keys of a transposed tile in `few`
constexpr float kLog2e = 0x1.715476p+0f;
constexpr float kLn2 = 0x1.62e430p-1f;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline float infinity() { return bit_float(0x7f800000u); }

// ---- the arithmetic that both schedules share ----
/// The softcap's tanh; absolute error below 2^-23.
inline F16 capped(F16 x) {
  F16 e = exp2_flush(vmin(set1(126.0f), mul(x, set1(2.8853900817779268f))));
  return sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
}

/// 2^d for an integer d <= 0, exactly; 0 below the normal range (and for NaN).
inline F16 power(F16 d) {
  F16 e = as_float(shl<23>(add_i(round_i(d), set1_i(127))));
  return select(le(set1(-126.0f), d), e, zero());
}

inline F16 exponent(const AttentionTask& t, F16 s) {
  F16 x = mul(s, set1(t.scale));
  return t.cap == 0.0f ? x : mul(capped(x), set1(t.cap));
}
inline F16 biased(F16 x, F16 bias) { return fma(bias, set1(kLog2e), x); }

inline F16 rounded(F16 p, const float*) { return p; }
inline F16 rounded(F16 p, const bf16*) {
  I16 u = as_int(p);
  I16 odd = and_i(shr<16>(u), set1_i(1));
  I16 r = and_i(add_i(add_i(u, set1_i(0x7fff)), odd), set1_i(static_cast<int32_t>(0xffff0000u)));
  return select(is_nan(p), p, as_float(r));
}
inline F16 rounded(F16 p, const f16*) {
  f16 h[16];
  store(h, p);
  return load(h);
}

/// p = 2^(x - m): 0 below 2^-126, then one rounding to the type of the values.
template <class T>
inline F16 probability(F16 x, F16 m) {
  return rounded(exp2_flush(sub(x, m)), static_cast<const T*>(nullptr));
}

/// The running state of rows after folding the next leaf in: one rescale by an exact power of two.
struct Fold {
  M16 up;     // the next leaf has the larger maximum: the running side is rescaled
  F16 scale;
  F16 m;
  Fold(F16 m0, F16 m1) {
    up = le(m0, m1);
    m = select(up, m1, m0);
    scale = power(sub(select(up, m0, m1), m));
  }
  F16 operator()(F16 running, F16 next) const {
    return fma(select(up, running, next), scale, select(up, next, running));
  }
};

inline void fold_sink(F16 sink, F16& m, F16& l, F16& scale_o) {
  F16 x = mul(sink, set1(kLog2e));
  F16 ms = ceil(x);
  Fold fold(m, ms);
  l = fold(l, exp2_flush(sub(x, ms)));
  scale_o = select(fold.up, fold.scale, set1(1.0f));
  m = fold.m;
}

inline F16 log_sum(F16 m, F16 l) { return fma(m, set1(kLn2), log(l)); }

// ---- packing: exact copies ----

template <class T>
inline void widen_row(const T* p, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_f32(out + i, load(p + i));
  if (i < n) store_part_f32(out + i, load_part(p + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

/// Keys [k0, k0 + n) as fp32 rows: in place if they are that already, else copied to `to`.
template <class T>
inline const float* rows_of(const KeyView& view, int64_t k0, int64_t n, int64_t d, float* to,
                            int64_t& stride) {
  const T* base = static_cast<const T*>(view.base);
  if constexpr (sizeof(T) == 4) {
    if (!view.table) {
      stride = view.stride;
      return base + k0 * view.stride;
    }
  }
  for (int64_t i = 0; i < n; ++i) widen_row(base + view.at(k0 + i), d, to + i * d);
  stride = d;
  return to;
}

/// out[i * ld + j] = row j, element i for the given rows (null rows give 0).
template <class T>
inline void transpose_rows(const T* const* rows, int n, int64_t d, float* out, int64_t ld) {
  int64_t i = 0;
  if (n == 16) {
    for (; i + 16 <= d; i += 16) {
      F16 a[16];
      for (int j = 0; j < 16; ++j) a[j] = load(rows[j] + i);
      transpose16(a);
      for (int j = 0; j < 16; ++j) store_f32(out + (i + j) * ld, a[j]);
    }
  }
  for (; i < d; i += 16) {
    int w = static_cast<int>(least(16, d - i));
    F16 a[16];
    for (int j = 0; j < 16; ++j)
      a[j] = j >= n ? zero() : w == 16 ? load(rows[j] + i) : load_part(rows[j] + i, w);
    transpose16(a);
    for (int j = 0; j < w; ++j) store_f32(out + (i + j) * ld, a[j]);
  }
}

// ---- block: a lane is a row ----

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
          F16 p = probability<T>(load(at), leaf_m[u]);
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

// ---- few: a lane is a key, then a value of d ----

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
    for (int64_t j = 0; j < n[r]; j += 16) store_f32(p + j, probability<T>(load(p + j), mv));
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
}

template <class T>
void finish_rows(const AttentionTask& t, const float* partials) {
  const int64_t size = partial_size(t), dv = t.dv;
  for (int r = 0; r < t.rows; ++r) {
    const int64_t leaves = (t.count[r] + kLeaf - 1) / kLeaf;
    F16 m = set1(-infinity()), l = zero(), scale = set1(1.0f);
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      const float* p = partials + leaf * size;
      Fold fold(m, set1(p[r]));
      l = leaf == 0 ? set1(p[t.rows + r]) : fold(l, set1(p[t.rows + r]));
      m = fold.m;
    }
    if (t.sink[0] && *t.sink[r] != -infinity()) fold_sink(set1(*t.sink[r]), m, l, scale);
    F16 total = leaves == 0 ? select(eq(l, zero()), set1(1.0f), l) : l;
    T* out = static_cast<T*>(t.out[r]);
    for (int64_t i = 0; i < dv; i += 16) {
      int w = static_cast<int>(least(16, dv - i));
      F16 o = zero(), run = set1(-infinity());
      for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        const float* p = partials + leaf * size;
        Fold fold(run, set1(p[r]));
        F16 next = load_part(p + 2 * t.rows + r * dv + i, w);
        o = leaf == 0 ? next : fold(o, next);
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

void block(int dtype, const AttentionTask& t, float* scratch) {
  if (dtype == 0) block_rows<float>(t, scratch);
  else if (dtype == 1) block_rows<bf16>(t, scratch);
  else block_rows<f16>(t, scratch);
}
void few(int dtype, const AttentionTask& t, int64_t leaf, float* partial, float* scratch) {
  if (dtype == 0) few_leaf<float>(t, leaf, partial, scratch);
  else if (dtype == 1) few_leaf<bf16>(t, leaf, partial, scratch);
  else few_leaf<f16>(t, leaf, partial, scratch);
}
void finish(int dtype, const AttentionTask& t, const float* partials) {
  if (dtype == 0) finish_rows<float>(t, partials);
  else if (dtype == 1) finish_rows<bf16>(t, partials);
  else finish_rows<f16>(t, partials);
}

}  // namespace

const AttentionKernels& attention_kernels();
const AttentionKernels& attention_kernels() {
  static const AttentionKernels table{
      R, kFew, BlockScratch::size, [](int64_t d, int64_t) { return FewScratch::size(d); },
      block, few, finish};
  return table;
}

}  // namespace samebits::SB_ISA
