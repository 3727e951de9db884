#include "kernels/reduce.hpp"

#include "kernels/row_tree.hpp"
#include "math.hpp"

namespace samebits::SB_ISA {
namespace {

template <Reduce op> struct Take;  // acc <- acc joined with f(x); p is the output's parameter
#define SB_TAKE(op, J, expr) \
  template <> struct Take<Reduce::op> { \
    using Join = J; \
    static F16 take(F16 acc, F16 x, F16 p) { (void)p; return expr; } \
  };
SB_TAKE(sum, Sum, add(acc, x))
SB_TAKE(square, Sum, fma(x, x, acc))
SB_TAKE(absolute, Sum, add(acc, abs(x)))
SB_TAKE(product, Product, mul(acc, x))
SB_TAKE(maximum, Max, vmax(x, acc))  // NaN is passed over: it reaches the result by other ways
SB_TAKE(max_abs, Max, Max::join(acc, abs(x)))
SB_TAKE(min_abs, Min, Min::join(acc, abs(x)))
SB_TAKE(nonzero, Sum, select(eq(x, zero()), acc, add(acc, set1(1.0f))))
SB_TAKE(nan_sum, Sum, select(is_nan(x), acc, add(acc, x)))
SB_TAKE(exponential, Sum, add(acc, exp(sub(x, p))))
#undef SB_TAKE
template <> struct Take<Reduce::centred> {
  using Join = Sum;
  static F16 take(F16 acc, F16 x, F16 p) {
    F16 d = sub(x, p);
    return fma(d, d, acc);
  }
};

int64_t offset(const Dims& d, int64_t index) {
  if (d.count == 1) return index * d.stride[0];
  int64_t at = 0;
  for (int i = d.count - 1; i >= 0; --i) {
    at += index % d.size[i] * d.stride[i];
    index /= d.size[i];
  }
  return at;
}

template <class T, class K, int R>
struct RowStep {
  const T* x[R];
  F16 p[R];
  F16 operator()(F16 acc, int r, int64_t k) const { return K::take(acc, load(x[r] + k), p[r]); }
  F16 part(F16 acc, int r, int64_t k, int n) const {
    return select(m_first(n), K::take(acc, load_part(x[r] + k, n), p[r]), acc);
  }
};

template <class Tree, class T, class K, int R>
void rows(const ReduceArgs& a, int64_t u, int64_t k0, int64_t k1, float* out) {
  RowStep<T, K, R> step;
  for (int r = 0; r < R; ++r) {
    step.x[r] = static_cast<const T*>(a.x) + offset(a.kept, u + r);
    step.p[r] = a.param ? set1(a.param[u + r]) : zero();
  }
  Tree::template rows<typename K::Join, R>(step, k0, k1, out);
}

/// Copies `count` elements of a row from logical index k into fp32.
template <class T>
void gather(const Dims& d, const T* x, int64_t k, int64_t count, float* to) {
  const int last = d.count - 1;
  const int64_t size = d.size[last], stride = d.stride[last];
  while (count > 0) {
    const int64_t inner = k % size, run = size - inner < count ? size - inner : count;
    const T* from = x + offset(d, k);
    int64_t i = 0;
    if (stride == 1)
      for (; i + 16 <= run; i += 16) store_f32(to + i, load(from + i));
    for (; i < run; ++i) to[i] = to_float(from[i * stride]);
    k += run;
    to += run;
    count -= run;
  }
}

template <class Tree, class T, class K>
float gathered_row(const ReduceArgs& a, int64_t u, int64_t k0, int64_t k1) {
  using J = typename K::Join;
  const T* x = static_cast<const T*>(a.x) + offset(a.kept, u);
  constexpr int64_t kGroup = Tree::kGroup;
  float leaves[kGroup], value;
  RowStep<float, K, 1> step{{leaves}, {a.param ? set1(a.param[u]) : zero()}};
  Counter<J> counter;
  for (int64_t k = k0; k < k1; k += kGroup) {
    const int64_t count = k1 - k < kGroup ? k1 - k : kGroup;
    gather(a.reduced, x, k, count, leaves);
    Tree::template rows<J, 1>(step, 0, count, &value);
    counter.push(value);
  }
  return counter.total();
}

constexpr int kColumns = 128;

/// Counter of row_tree.hpp for up to kColumns outputs at once: vector v holds outputs 16 v to 16 v + 15.
template <class J, int kLevels>
struct Counters {
  float level[kLevels][kColumns];
  uint64_t count = 0;  // partial results that all vectors have taken

  void push(int v, F16 t) {
    int at = 0;
    for (uint64_t n = count; n & 1; n >>= 1) t = J::join(load_f32(level[at++] + 16 * v), t);
    store_f32(level[at] + 16 * v, t);
  }
  F16 total(int v) const {
    if (!count) return J::identity();
    int at = __builtin_ctzll(count);
    F16 t = load_f32(level[at] + 16 * v);
    for (++at; count >> at; ++at)
      if ((count >> at) & 1) t = J::join(load_f32(level[at] + 16 * v), t);
    return t;
  }
};

/// `width` neighbouring outputs.
template <class T>
struct Columns {
  const T* x;
  int64_t stride;
  int width, vectors;
  float param[kColumns];
  Columns(const ReduceArgs& a, int64_t u, int width)
      : x(static_cast<const T*>(a.x) + offset(a.kept, u)), stride(a.reduced.stride[0]), width(width),
        vectors((width + 15) / 16), param{} {
    if (a.param)
      for (int c = 0; c < width; ++c) param[c] = a.param[u + c];
  }
  template <class K>
  F16 take(F16 acc, int64_t k, int v) const {
    const T* at = x + k * stride + 16 * v;
    const int n = width - 16 * v;
    return K::take(acc, n >= 16 ? load(at) : load_part(at, n), load_f32(param + 16 * v));
  }
};

/// A leaf of NarrowTree: lane l of every column is row l of `acc`.
template <class K, class T>
void narrow_leaf(const Columns<T>& x, int64_t k, int64_t count, Counters<typename K::Join, 40>& leaves) {
  using J = typename K::Join;
  float acc[16][kColumns];
  for (auto& lane : acc)
    for (int v = 0; v < x.vectors; ++v) store_f32(lane + 16 * v, J::identity());
  for (int64_t i = 0; i < count; ++i) {
    float* lane = acc[i & 15];
    for (int v = 0; v < x.vectors; ++v)
      store_f32(lane + 16 * v, x.template take<K>(load_f32(lane + 16 * v), k + i, v));
  }
  for (int v = 0; v < x.vectors; ++v) {
    F16 t[16];
    for (int l = 0; l < 16; ++l) t[l] = load_f32(acc[l] + 16 * v);
    for (int w = 8; w >= 1; w /= 2)
      for (int l = 0; l < w; ++l) t[l] = J::join(t[l], t[l + w]);
    leaves.push(v, t[0]);
  }
}

/// A leaf of WideTree, lane by lane: neighbours that are folded first are a counter as well.
template <class K, class T>
void wide_leaf(const Columns<T>& x, int64_t k, int64_t count, Counters<typename K::Join, 40>& leaves) {
  using J = typename K::Join;
  Counters<J, 11> lanes;
  const auto width = static_cast<uint64_t>(wide_lanes(count));
  for (; lanes.count < width; ++lanes.count)
    for (int v = 0; v < x.vectors; ++v) {
      F16 t = J::identity();
      for (auto i = static_cast<int64_t>(lanes.count); i < count; i += kWideLanes) t = x.template take<K>(t, k + i, v);
      lanes.push(v, t);
    }
  for (int v = 0; v < x.vectors; ++v) leaves.push(v, lanes.total(v));
}

template <class T, class K>
void columns(const ReduceArgs& a, int64_t u, int width, int64_t k0, int64_t k1, float* out) {
  const Columns<T> x(a, u, width);
  Counters<typename K::Join, 40> leaves;
  const int64_t leaf = a.wide ? WideTree::kGroup : kLeaf;
  for (int64_t k = k0; k < k1; k += leaf, ++leaves.count) {
    const int64_t count = k1 - k < leaf ? k1 - k : leaf;
    if (a.wide) wide_leaf<K>(x, k, count, leaves);
    else narrow_leaf<K>(x, k, count, leaves);
  }
  for (int v = 0; v < x.vectors; ++v)
    store_part_f32(out + 16 * v, leaves.total(v), width - 16 * v < 16 ? width - 16 * v : 16);
}

template <class Tree, class T, class K>
void rows_or_gathered(const ReduceArgs& a, int64_t u0, int64_t u1, int64_t k0, int64_t k1, float* out) {
  if (a.reduced.count == 1 && (a.reduced.stride[0] == 1 || a.n == 1)) {
    int64_t u = u0;
    if (k1 - k0 < Tree::kGroup)
      for (; u + 4 <= u1; u += 4) rows<Tree, T, K, 4>(a, u, k0, k1, out + (u - u0));
    for (; u < u1; ++u) rows<Tree, T, K, 1>(a, u, k0, k1, out + (u - u0));
  } else {
    for (int64_t u = u0; u < u1; ++u) out[u - u0] = gathered_row<Tree, T, K>(a, u, k0, k1);
  }
}

template <class T, Reduce op>
void partial_of(const ReduceArgs& a, int64_t u0, int64_t u1, int64_t k0, int64_t k1, float* out) {
  using K = Take<op>;
  if (!a.columns) {
    if (a.wide) return rows_or_gathered<WideTree, T, K>(a, u0, u1, k0, k1, out);
    return rows_or_gathered<NarrowTree, T, K>(a, u0, u1, k0, k1, out);
  }
  const int64_t inner = a.kept.size[a.kept.count - 1];
  for (int64_t u = u0; u < u1;) {  // a block may not run over the end of the last kept axis
    int64_t width = inner - u % inner;
    if (width > kColumns) width = kColumns;
    if (width > u1 - u) width = u1 - u;
    columns<T, K>(a, u, static_cast<int>(width), k0, k1, out + (u - u0));
    u += width;
  }
}

using Partial = void (*)(const ReduceArgs&, int64_t, int64_t, int64_t, int64_t, float*);

template <class T>
Partial partial_for(Reduce op) {
  switch (op) {
    case Reduce::sum: return partial_of<T, Reduce::sum>;
    case Reduce::square: return partial_of<T, Reduce::square>;
    case Reduce::absolute: return partial_of<T, Reduce::absolute>;
    case Reduce::product: return partial_of<T, Reduce::product>;
    case Reduce::maximum: return partial_of<T, Reduce::maximum>;
    case Reduce::max_abs: return partial_of<T, Reduce::max_abs>;
    case Reduce::min_abs: return partial_of<T, Reduce::min_abs>;
    case Reduce::nonzero: return partial_of<T, Reduce::nonzero>;
    case Reduce::nan_sum: return partial_of<T, Reduce::nan_sum>;
    case Reduce::centred: return partial_of<T, Reduce::centred>;
    default: return partial_of<T, Reduce::exponential>;
  }
}

void partial(const ReduceArgs& a, int64_t u0, int64_t u1, int64_t k0, int64_t k1, float* out) {
  switch (a.in) {
    case DType::f32: return partial_for<float>(a.op)(a, u0, u1, k0, k1, out);
    case DType::bf16: return partial_for<bf16>(a.op)(a, u0, u1, k0, k1, out);
    default: return partial_for<f16>(a.op)(a, u0, u1, k0, k1, out);
  }
}

template <class J>
float fold_groups(const float* p, int64_t groups, int64_t stride) {
  if (groups == 1) return p[0];
  Counter<J> counter;
  for (int64_t g = 0; g < groups; ++g) counter.push(p[g * stride]);
  return counter.total();
}

F16 finished(const ReduceArgs& a, F16 v, F16 p) {
  switch (a.finish) {
    case Finish::divide: return div(v, set1(a.divisor));
    case Finish::divide_sqrt: return sqrt(div(v, set1(a.divisor)));
    case Finish::sqrt: return sqrt(v);
    case Finish::log_plus_param: return add(log(v), p);
    case Finish::plus_zero: return add(v, zero());  // -0 becomes +0: the sign of a maximum of zeros
    default: return v;
  }
}

template <class T>
void finish_to(const ReduceArgs& a, int64_t u0, int64_t u1, const float* partials, int64_t groups,
               int64_t stride) {
  T* out = static_cast<T*>(a.out);
  for (int64_t u = u0; u < u1; u += 16) {
    const int count = u1 - u < 16 ? static_cast<int>(u1 - u) : 16;
    float v[16] = {};
    for (int i = 0; i < count; ++i) {
      const float* p = partials + (u - u0 + i);
      switch (a.op) {
        case Reduce::product: v[i] = fold_groups<Product>(p, groups, stride); break;
        case Reduce::maximum:
        case Reduce::max_abs: v[i] = fold_groups<Max>(p, groups, stride); break;
        case Reduce::min_abs: v[i] = fold_groups<Min>(p, groups, stride); break;
        default: v[i] = fold_groups<Sum>(p, groups, stride);
      }
    }
    const F16 param = a.param ? load_part(a.param + u, count) : zero();
    store_part(out + u, finished(a, load_f32(v), param), count);
  }
}

void finish(const ReduceArgs& a, int64_t u0, int64_t u1, const float* partials, int64_t groups,
            int64_t stride) {
  switch (a.to) {
    case DType::f32: return finish_to<float>(a, u0, u1, partials, groups, stride);
    case DType::bf16: return finish_to<bf16>(a, u0, u1, partials, groups, stride);
    default: return finish_to<f16>(a, u0, u1, partials, groups, stride);
  }
}

}  // namespace

const ReduceKernels& reduce_kernels();
const ReduceKernels& reduce_kernels() {
  static const ReduceKernels table{partial, finish};
  return table;
}

}  // namespace samebits::SB_ISA
