// Selection with ties to the lowest index, and accumulation into scattered places in a fixed order.
// Comparisons and single IEEE additions need no instruction-set variants: their bits are the same.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bind.hpp"
#include "scalar_types.hpp"

namespace samebits {
using namespace base;
namespace {

// ---- top-k -------------------------------------------------------------------------------------

// Maps a float to an integer with the order of torch.sort: -0 equals +0, every NaN equals every
// other and is larger than +Inf.
inline uint32_t ordered(float f) {
  if (f != f) return 0xffffffffu;
  if (f == 0.0f) return 0x80000000u;
  const uint32_t u = float_bits(f);
  return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

// True if none of 16 values can beat a threshold value that has a lower index. NaN never passes.
template <class T>
inline bool none_better(const T* x, float threshold, bool largest) {
  bool none = true;
  if (largest)
    for (int j = 0; j < 16; ++j) none &= to_float(x[j]) <= threshold;
  else
    for (int j = 0; j < 16; ++j) none &= to_float(x[j]) >= threshold;
  return none;
}

// The k best of n as (rank key, index) words: smaller is better, so ties go to the lowest index.
// Candidates pass a threshold into a small buffer, which is cut back to k when it is full.
template <class T>
void topk_row(const T* x, int64_t stride, int64_t n, int64_t k, bool largest, T* values,
              int64_t* indices) {
  const int64_t capacity = n <= 512 ? n : std::min(n, std::max<int64_t>(2 * k, 64));
  thread_local std::vector<uint64_t> best;
  best.clear();
  best.reserve(static_cast<size_t>(capacity));
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  float threshold_value = 0.0f;
  auto consider = [&](int64_t i) {
    uint32_t key = ordered(to_float(x[i * stride]));
    if (largest) key = ~key;
    uint64_t word = (static_cast<uint64_t>(key) << 32) | static_cast<uint64_t>(i);
    if (word >= threshold) return;
    best.push_back(word);
    if (static_cast<int64_t>(best.size()) == capacity && capacity < n && capacity > k) {
      std::nth_element(best.begin(), best.begin() + (k - 1), best.end());
      best.resize(static_cast<size_t>(k));
      threshold = best[static_cast<size_t>(k - 1)];
      threshold_value = to_float(x[static_cast<int64_t>(threshold & 0xffffffffu) * stride]);
    }
  };
  int64_t i = 0;
  for (; stride == 1 && i + 16 <= n; i += 16) {
    if (threshold != std::numeric_limits<uint64_t>::max() && none_better(x + i, threshold_value, largest))
      continue;
    for (int64_t j = i; j < i + 16; ++j) consider(j);
  }
  for (; i < n; ++i) consider(i);
  std::partial_sort(best.begin(), best.begin() + k, best.end());
  for (int64_t j = 0; j < k; ++j) {
    int64_t i = static_cast<int64_t>(best[static_cast<size_t>(j)] & 0xffffffffu);
    indices[j] = i;
    values[j] = x[i * stride];
  }
}

template <class T>
void topk_t(const T* x, int64_t rows, int64_t row_stride, int64_t stride, int64_t n, int64_t k,
            bool largest, T* values, int64_t* indices) {
  parallel_for(rows, threads_for(rows * n, 65536), [&](int64_t r) {
    topk_row(x + r * row_stride, stride, n, k, largest, values + r * k, indices + r * k);
  });
}

// ---- scatter -----------------------------------------------------------------------------------

enum class Combine : int { add = 0, mul = 1, amax = 2, amin = 3 };

template <class A>
inline A combine(Combine op, A acc, A v) {
  switch (op) {
    case Combine::add: return acc + v;
    case Combine::mul: return acc * v;
    case Combine::amax: return acc != acc || acc > v ? acc : v;
    default: return acc != acc || acc < v ? acc : v;
  }
}

inline float to_float(float v) { return v; }
inline double to_float(double v) { return v; }

template <class A, class T>
void scatter_columns(Combine op, A* dst, const int64_t* pos, const T* src, int64_t n, int64_t inner,
                     int64_t src_stride, A alpha, int64_t from, int64_t to) {
  for (int64_t i = 0; i < n; ++i) {
    if (pos[i] < 0) continue;
    A* d = dst + pos[i] * inner;
    const T* s = src + i * src_stride;
    if (op == Combine::add && alpha == A(1))
      for (int64_t j = from; j < to; ++j) d[j] = d[j] + static_cast<A>(to_float(s[j]));
    else if (op == Combine::add)
      for (int64_t j = from; j < to; ++j) d[j] = d[j] + alpha * static_cast<A>(to_float(s[j]));
    else
      for (int64_t j = from; j < to; ++j) d[j] = combine(op, d[j], static_cast<A>(to_float(s[j])));
  }
}

// dst[pos[i], :] op= alpha * src[i, :] for i ascending; threads own columns, never rows of one sum.
// Negative positions are skipped.
template <class A, class T>
void scatter_t(int op, A* dst, const int64_t* pos, const T* src, int64_t n, int64_t inner,
               int64_t src_stride, double alpha) {
  const int64_t width = 64;
  const int64_t blocks = (inner + width - 1) / width;
  parallel_for(blocks, threads_for(n * inner, 32768), [&](int64_t b) {
    scatter_columns(static_cast<Combine>(op), dst, pos, src, n, inner, src_stride,
                    static_cast<A>(alpha), b * width, std::min(inner, (b + 1) * width));
  });
}

template <class T>
void narrow_t(const float* src, T* dst, int64_t n) {
  parallel_for((n + 65535) / 65536, threads_for(n, 65536), [&](int64_t b) {
    for (int64_t i = b * 65536, e = std::min(n, i + 65536); i < e; ++i) store1(dst + i, src[i]);
  });
}

// ---- embedding bag -----------------------------------------------------------------------------

// Bag b = items [offsets[b], offsets[b+1]); sum: acc = acc + w*row, items ascending from +0.
// mode 0 sum, 1 mean, 2 max (first row wins; argmax row stored).
template <class T>
void bag_t(const T* weight, int64_t row_stride, int64_t dim, const int64_t* indices,
           const int64_t* offsets, const T* per_sample, int64_t bags, int mode, int64_t padding,
           T* out, int64_t* counts, int64_t* arg) {
  parallel_for(bags, threads_for((offsets[bags] - offsets[0] + bags) * dim, 16384), [&](int64_t b) {
    std::vector<float> acc(static_cast<size_t>(dim), 0.0f);
    int64_t count = 0;
    for (int64_t i = offsets[b]; i < offsets[b + 1]; ++i) {
      if (indices[i] == padding) continue;
      const T* row = weight + indices[i] * row_stride;
      if (mode == 2) {
        for (int64_t j = 0; j < dim; ++j) {
          float v = to_float(row[j]), a = acc[static_cast<size_t>(j)];
          if (count == 0 || (a == a && (v > a || v != v))) {
            acc[static_cast<size_t>(j)] = v;
            arg[b * dim + j] = indices[i];
          }
        }
      } else if (per_sample) {
        float w = to_float(per_sample[i]);
        for (int64_t j = 0; j < dim; ++j) acc[static_cast<size_t>(j)] += w * to_float(row[j]);
      } else {
        for (int64_t j = 0; j < dim; ++j) acc[static_cast<size_t>(j)] += to_float(row[j]);
      }
      ++count;
    }
    counts[b] = count;
    const float divisor = static_cast<float>(count);
    for (int64_t j = 0; j < dim; ++j)
      store1(out + b * dim + j,
          mode == 1 && count > 0 ? acc[static_cast<size_t>(j)] / divisor : acc[static_cast<size_t>(j)]);
  });
}

template <class F>
void by_dtype(int dtype, F&& f) {
  switch (static_cast<DType>(dtype)) {
    case DType::f32: f(static_cast<float*>(nullptr)); break;
    case DType::bf16: f(static_cast<bf16*>(nullptr)); break;
    case DType::f16: f(static_cast<f16*>(nullptr)); break;
  }
}

}  // namespace

void bind_order(nb::module_& m) {
  m.def("topk", [](int dtype, uintptr_t x, int64_t rows, int64_t row_stride, int64_t stride, int64_t n,
                   int64_t k, bool largest, uintptr_t values, uintptr_t indices) {
    by_dtype(dtype, [&]<class T>(T*) {
      topk_t(ptr<const T>(x), rows, row_stride, stride, n, k, largest, ptr<T>(values), ptr<int64_t>(indices));
    });
  }, NoGil());
  m.def("scatter", [](int op, int dtype, uintptr_t dst, uintptr_t pos, uintptr_t src, int64_t n,
                      int64_t inner, int64_t src_stride, double alpha) {
    by_dtype(dtype, [&]<class T>(T*) {
      scatter_t(op, ptr<float>(dst), ptr<const int64_t>(pos), ptr<const T>(src), n, inner, src_stride, alpha);
    });
  }, NoGil());
  m.def("scatter_f64", [](int op, uintptr_t dst, uintptr_t pos, uintptr_t src, int64_t n,
                          int64_t inner, int64_t src_stride, double alpha) {
    scatter_t(op, ptr<double>(dst), ptr<const int64_t>(pos), ptr<const double>(src), n, inner, src_stride, alpha);
  }, NoGil());
  m.def("narrow", [](int dtype, uintptr_t src, uintptr_t dst, int64_t n) {
    by_dtype(dtype, [&]<class T>(T*) { narrow_t(ptr<const float>(src), ptr<T>(dst), n); });
  }, NoGil());
  m.def("embedding_bag", [](int dtype, uintptr_t weight, int64_t row_stride, int64_t dim, uintptr_t indices,
                            uintptr_t offsets, uintptr_t per_sample, int64_t bags, int mode, int64_t padding,
                            uintptr_t out, uintptr_t counts, uintptr_t arg) {
    by_dtype(dtype, [&]<class T>(T*) {
      bag_t(ptr<const T>(weight), row_stride, dim, ptr<const int64_t>(indices), ptr<const int64_t>(offsets),
            ptr<const T>(per_sample), bags, mode, padding, ptr<T>(out), ptr<int64_t>(counts), ptr<int64_t>(arg));
    });
  }, NoGil());
}
}  // namespace samebits
