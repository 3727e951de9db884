#include "kernels/norm.hpp"

#include <stdlib.h>

#include "kernels/row_maps.hpp"
#include "kernels/row_tree.hpp"
#include "kernels/wide_softmax.hpp"
#include "math.hpp"
#include "vec64.hpp"

namespace samebits::SB_ISA {
namespace {

// ---- softmax ----

/// Sum of exp(x - m) along a row, keeping the terms in p unless that is null.
template <class T>
struct Exponential {
  const T* x;
  float* p;
  F16 m;
  F16 operator()(F16 acc, int, int64_t k) const {
    F16 e = exp(sub(load(x + k), m));
    if (p) store_f32(p + k, e);
    return add(acc, e);
  }
  F16 part(F16 acc, int, int64_t k, int n) const {
    F16 e = exp(sub(load_part(x + k, n), m));
    if (p) store_part_f32(p + k, e, n);
    return select(m_first(n), add(acc, e), acc);
  }
};

template <class T> struct Quotient {  // p / s
  const T* p;
  F16 s;
  F16 operator()(int64_t k) const { return div(load(p + k), s); }
  F16 part(int64_t k, int n) const { return div(load_part(p + k, n), s); }
};
template <class T> struct ExpQuotient {  // exp(x - m) / s
  const T* x;
  F16 m, s;
  F16 operator()(int64_t k) const { return div(exp(sub(load(x + k), m)), s); }
  F16 part(int64_t k, int n) const { return div(exp(sub(load_part(x + k, n), m)), s); }
};
// fp32 results hold the exponentials until they are divided; 16-bit results need a place for them.
float* place_for_terms(float* out, float*) { return out; }
template <class O>
float* place_for_terms(O*, float* scratch) { return scratch; }
constexpr int64_t kStack = 4096;

template <class T, class O>
void softmax_row(const T* x, O* out, int64_t n, float* scratch) {
  const float m = maximum(x, n);
  float* p = place_for_terms(out, scratch);
  float sum;
  reduce_rows<Sum, 1>(Exponential<T>{x, p, set1(m)}, 0, n, &sum);
  if (p) map(out, n, Quotient<float>{p, set1(sum)});
  else map(out, n, ExpQuotient<T>{x, set1(m), set1(sum)});  // no memory: compute them twice
}

template <class T>
float log_of_sum(const T* x, int64_t n, float m) {
  float sum;
  reduce_rows<Sum, 1>(Exponential<T>{x, nullptr, set1(m)}, 0, n, &sum);
  return log1(sum);
}

template <class T, class O>
void softmax_rows(const NormArgs& a, int64_t r0, int64_t r1) {
  if (a.wide) return wide_softmax_rows<T, O>(a, r0, r1);
  const T* x = static_cast<const T*>(a.x);
  O* out = static_cast<O*>(a.out);
  if (a.log) {
    for (int64_t r = r0; r < r1; ++r) {
      const T* row = x + r * a.stride;
      const float m = maximum(row, a.n), l = log_of_sum(row, a.n, m);
      map(out + r * a.n, a.n, LogShift<T>{row, set1(m), set1(l)});
    }
    return;
  }
  float on_stack[kStack];
  const bool fits = a.n <= kStack || sizeof(O) == sizeof(float);
  float* scratch = fits ? on_stack : static_cast<float*>(::malloc(sizeof(float) * static_cast<size_t>(a.n)));
  for (int64_t r = r0; r < r1; ++r) softmax_row(x + r * a.stride, out + r * a.n, a.n, scratch);
  if (!fits) ::free(scratch);
}

template <class T, class O>
void softmax_apply_to(const SoftmaxApplyArgs& a, int64_t outer, int64_t k0, int64_t k1) {
  const T* x = static_cast<const T*>(a.x) + outer * a.n * a.inner;
  O* out = static_cast<O*>(a.out) + outer * a.n * a.inner;
  const float *m = a.m + outer * a.inner, *s = a.s + outer * a.inner;
  if (a.inner == 1) {
    if (a.log) map(out + k0, k1 - k0, LogShift<T>{x + k0, set1(*m), set1(log1(*s))});
    else map(out + k0, k1 - k0, ExpQuotient<T>{x + k0, set1(*m), set1(*s)});
    return;
  }
  for (int64_t c = 0; c < a.inner; c += 16) {
    const int part = a.inner - c < 16 ? static_cast<int>(a.inner - c) : 16;
    const F16 mc = load_part(m + c, part), sc = load_part(s + c, part), lc = a.log ? log(sc) : sc;
    for (int64_t k = k0; k < k1; ++k) {
      const int64_t at = k * a.inner + c;
      const F16 d = sub(part == 16 ? load(x + at) : load_part(x + at, part), mc);
      const F16 y = a.log ? sub(d, lc) : div(exp(d), sc);
      if (part == 16) store(out + at, y);
      else store_part(out + at, y, part);
    }
  }
}

template <class T, class O>
void token_logprob_rows(const NormArgs& a, int64_t r0, int64_t r1) {
  for (int64_t r = r0; r < r1; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.stride;
    if (a.wide) {
      const RowPair p = row_pair(x, a.n, !a.ids);
      const float l = log1(p.s);
      store1(static_cast<O*>(a.out) + r, a.ids ? to_float(x[a.ids[r]]) - p.m - l : l + p.m);
      continue;
    }
    const float m = maximum(x, a.n);
    store1(static_cast<O*>(a.out) + r, to_float(x[a.ids[r]]) - m - log_of_sum(x, a.n, m));
  }
}

// ---- normalisation ----

template <class T, int R>
struct Squares {  // sum of (x - mean)^2; `centred` false: of x^2
  const T* x;
  int64_t stride;
  F16 mean[R];
  bool centred;
  F16 take(F16 acc, F16 v, int r) const {
    if (centred) v = sub(v, mean[r]);
    return fma(v, v, acc);
  }
  F16 operator()(F16 acc, int r, int64_t k) const { return take(acc, load(x + r * stride + k), r); }
  F16 part(F16 acc, int r, int64_t k, int n) const {
    return select(m_first(n), take(acc, load_part(x + r * stride + k, n), r), acc);
  }
};

template <class T>
struct Total {
  const T* x;
  int64_t stride;
  F16 operator()(F16 acc, int r, int64_t k) const { return add(acc, load(x + r * stride + k)); }
  F16 part(F16 acc, int r, int64_t k, int n) const { return add(acc, load_part(x + r * stride + k, n)); }
};

/// t = (x - mean) * rstd, then t * w + b as one fma, or t * w, or t + b.
template <class T, class W, bool centred>
struct Affine {
  const T* x;
  const W *w, *b;
  F16 mean, rstd;
  F16 finish(F16 v, F16 wk, F16 bk) const {
    const F16 t = mul(centred ? sub(v, mean) : v, rstd);
    if (w) return b ? fma(t, wk, bk) : mul(t, wk);
    return b ? add(t, bk) : t;
  }
  F16 operator()(int64_t k) const {
    return finish(load(x + k), w ? load(w + k) : zero(), b ? load(b + k) : zero());
  }
  F16 part(int64_t k, int n) const {
    return finish(load_part(x + k, n), w ? load_part(w + k, n) : zero(), b ? load_part(b + k, n) : zero());
  }
};

template <class Tree, class T, class W, int R, bool centred>
void norm_rows(const NormArgs& a, int64_t r0) {
  const T* x = static_cast<const T*>(a.x) + r0 * a.stride;
  T* out = static_cast<T*>(a.out) + r0 * a.n;
  const float n = static_cast<float>(a.n);
  float mean[R] = {}, square[R];
  Squares<T, R> squares{x, a.stride, {}, centred};
  if constexpr (centred) {
    Tree::template rows<Sum, R>(Total<T>{x, a.stride}, 0, a.n, mean);
    for (int r = 0; r < R; ++r) squares.mean[r] = set1(mean[r] /= n);
  }
  Tree::template rows<Sum, R>(squares, 0, a.n, square);
  for (int r = 0; r < R; ++r) {
    const float rstd = 1.0f / __builtin_sqrtf(square[r] / n + a.eps);
    if (a.mean) store1(a.mean + r0 + r, mean[r]);
    if (a.rstd) store1(a.rstd + r0 + r, rstd);
    map(out + r * a.n, a.n,
        Affine<T, W, centred>{x + r * a.stride, static_cast<const W*>(a.weight),
                              static_cast<const W*>(a.bias), set1(mean[r]), set1(rstd)});
  }
}

template <class T, class W, bool centred>
void norm_block(const NormArgs& a, int64_t r0, int64_t r1) {
  int64_t r = r0;
  if (a.wide) {
    for (; r < r1; ++r) norm_rows<WideTree, T, W, 1, centred>(a, r);
    return;
  }
  for (; r + 4 <= r1; r += 4) norm_rows<NarrowTree, T, W, 4, centred>(a, r);
  for (; r < r1; ++r) norm_rows<NarrowTree, T, W, 1, centred>(a, r);
}

template <bool centred>
void norm(const NormArgs& a, int64_t r0, int64_t r1) {
  switch (a.in) {
    case DType::f32: return norm_block<float, float, centred>(a, r0, r1);
    case DType::bf16:
      return a.same_type ? norm_block<bf16, bf16, centred>(a, r0, r1) : norm_block<bf16, float, centred>(a, r0, r1);
    default:
      return a.same_type ? norm_block<f16, f16, centred>(a, r0, r1) : norm_block<f16, float, centred>(a, r0, r1);
  }
}

struct ReciprocalDeviation {
  const float* var;
  F16 eps;
  F16 of(F16 v) const { return div(set1(1.0f), sqrt(add(v, eps))); }
  F16 operator()(int64_t k) const { return of(load(var + k)); }
  F16 part(int64_t k, int n) const { return of(load_part(var + k, n)); }
};
void reciprocal_deviation(const float* var, float* out, int64_t n, float eps) {
  map(out, n, ReciprocalDeviation{var, set1(eps)});
}

template <class T>
struct ChannelAffine {  // the same formula with everything per element (one position per channel)
  const T* x;
  const float *mean, *rstd, *w, *b;
  F16 finish(F16 v, F16 m, F16 r, F16 wk, F16 bk) const {
    const F16 t = mul(sub(v, m), r);
    if (w) return b ? fma(t, wk, bk) : mul(t, wk);
    return b ? add(t, bk) : t;
  }
  F16 operator()(int64_t k) const { return part(k, 16); }
  F16 part(int64_t k, int n) const {
    return finish(load_part(x + k, n), load_part(mean + k, n), load_part(rstd + k, n),
                  w ? load_part(w + k, n) : zero(), b ? load_part(b + k, n) : zero());
  }
};

template <class T>
struct PlaneAffine {  // everything but x is one number
  const T* x;
  F16 mean, rstd, w, b;
  bool has_w, has_b;
  F16 finish(F16 v) const {
    const F16 t = mul(sub(v, mean), rstd);
    if (has_w) return has_b ? fma(t, w, b) : mul(t, w);
    return has_b ? add(t, b) : t;
  }
  F16 operator()(int64_t k) const { return finish(load(x + k)); }
  F16 part(int64_t k, int n) const { return finish(load_part(x + k, n)); }
};

template <class T>
void affine_to(const AffineArgs& a, int64_t c0, int64_t c1) {
  const T* x = static_cast<const T*>(a.x);
  T* out = static_cast<T*>(a.out);
  const int64_t per_group = a.groups ? a.channels / a.groups : 0;
  if (a.space == 1) {
    for (int64_t at = c0; at < c1;) {  // runs of channels that share a batch and a group
      const int64_t c = at % a.channels, period = a.groups ? per_group : a.channels;
      int64_t run = period - c % period;
      if (run > c1 - at) run = c1 - at;
      const float *w = a.weight ? a.weight + c : nullptr, *b = a.bias ? a.bias + c : nullptr;
      if (a.groups) {
        const int64_t g = at / per_group;
        map(out + at, run, Affine<T, float, true>{x + at, w, b, set1(a.mean[g]), set1(a.rstd[g])});
      } else {
        map(out + at, run, ChannelAffine<T>{x + at, a.mean + c, a.rstd + c, w, b});
      }
      at += run;
    }
    return;
  }
  for (int64_t at = c0; at < c1; ++at) {
    const int64_t c = at % a.channels, g = a.groups ? at / per_group : c;
    map(out + at * a.space, a.space,
        PlaneAffine<T>{x + at * a.space, set1(a.mean[g]), set1(a.rstd[g]),
                       a.weight ? set1(a.weight[c]) : zero(), a.bias ? set1(a.bias[c]) : zero(),
                       a.weight != nullptr, a.bias != nullptr});
  }
}

// ---- running sums and products: one binary64 chain per line, from 0 or 1, rounded when stored ----

template <class T, class O, class J>
void scan_to(const ScanArgs& a, int64_t u0, int64_t u1) {
  const T* x = static_cast<const T*>(a.x);
  O* out = static_cast<O*>(a.out);
  const int64_t length = a.n * a.inner;
  if (a.inner > 1) {
    for (int64_t u = u0; u < u1;) {
      const int64_t c = u % a.inner, at = u / a.inner * length + c;
      const int64_t left = a.inner - c < u1 - u ? a.inner - c : u1 - u;
      const int part = left < 16 ? static_cast<int>(left) : 16;
      D16 acc = J::start();
      for (int64_t k = 0; k < a.n; ++k) {
        const int64_t i = at + k * a.inner;
        acc = J::join(acc, widen(part == 16 ? load(x + i) : load_part(x + i, part)));
        if (part == 16) store(out + i, narrow(acc));
        else store_part(out + i, narrow(acc), part);
      }
      u += part;
    }
    return;
  }
  constexpr int kLines = 8;
  int64_t u = u0;
  for (; u + kLines <= u1; u += kLines) {  // independent chains side by side
    double acc[kLines];
    for (int l = 0; l < kLines; ++l) acc[l] = J::start1();
    for (int64_t k = 0; k < a.n; ++k)
      for (int l = 0; l < kLines; ++l) {
        const int64_t i = (u + l) * length + k;
        store1(out + i, static_cast<float>(acc[l] = J::join(acc[l], to_float(x[i]))));
      }
  }
  for (; u < u1; ++u) {
    double acc = J::start1();
    for (int64_t i = u * length; i < (u + 1) * length; ++i)
      store1(out + i, static_cast<float>(acc = J::join(acc, to_float(x[i]))));
  }
}

struct RunningSum {
  static D16 start() { return set1_d(0.0); }
  static double start1() { return 0.0; }
  static D16 join(D16 a, D16 b) { return add(a, b); }
  static double join(double a, float b) { return a + static_cast<double>(b); }
};
struct RunningProduct {
  static D16 start() { return set1_d(1.0); }
  static double start1() { return 1.0; }
  static D16 join(D16 a, D16 b) { return mul(a, b); }
  static double join(double a, float b) { return a * static_cast<double>(b); }
};

template <class T, class O>
void scan_kind(const ScanArgs& a, int64_t u0, int64_t u1) {
  if (a.product) scan_to<T, O, RunningProduct>(a, u0, u1);
  else scan_to<T, O, RunningSum>(a, u0, u1);
}

// ---- dispatch on types: the result has the type of x, or is fp32 ----

#define SB_BY_TYPES(fn, ...)                                                                  \
  switch (a.in) {                                                                             \
    case DType::f32: return fn<float, float>(__VA_ARGS__);                                    \
    case DType::bf16:                                                                         \
      return a.to == DType::f32 ? fn<bf16, float>(__VA_ARGS__) : fn<bf16, bf16>(__VA_ARGS__); \
    default:                                                                                  \
      return a.to == DType::f32 ? fn<f16, float>(__VA_ARGS__) : fn<f16, f16>(__VA_ARGS__);    \
  }

void softmax(const NormArgs& a, int64_t r0, int64_t r1) { SB_BY_TYPES(softmax_rows, a, r0, r1) }
void softmax_apply(const SoftmaxApplyArgs& a, int64_t outer, int64_t k0, int64_t k1) {
  SB_BY_TYPES(softmax_apply_to, a, outer, k0, k1)
}
void token_logprob(const NormArgs& a, int64_t r0, int64_t r1) { SB_BY_TYPES(token_logprob_rows, a, r0, r1) }
void scan(const ScanArgs& a, int64_t u0, int64_t u1) { SB_BY_TYPES(scan_kind, a, u0, u1) }
#undef SB_BY_TYPES

void affine(const AffineArgs& a, int64_t c0, int64_t c1) {
  switch (a.type) {
    case DType::f32: return affine_to<float>(a, c0, c1);
    case DType::bf16: return affine_to<bf16>(a, c0, c1);
    default: return affine_to<f16>(a, c0, c1);
  }
}

}  // namespace

const NormKernels& norm_kernels();
const NormKernels& norm_kernels() {
  static const NormKernels table{softmax, softmax_apply, token_logprob, norm<false>, norm<true>,
                                 reciprocal_deviation, affine, scan};
  return table;
}

}  // namespace samebits::SB_ISA
