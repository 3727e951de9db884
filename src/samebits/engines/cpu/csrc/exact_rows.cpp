// Rows with exact sums, at the price of floating point: see ziv.hpp. Rows that many threads share are cut into
// segments; where cannot show in a result.
#include "exact_rows.hpp"

#include <atomic>
#include <vector>

#include "bind.hpp"
#include "kernels/exact_rows.hpp"
#include "ziv.hpp"

namespace samebits {
SB_KERNEL_TABLE(ExactRowKernels, exact_row_kernels)

namespace {

constexpr int64_t kSegment = 1 << 16;  // elements of a row that one task takes
constexpr int64_t kSmallSegment = 1 << 12;  // if there are fewer rows than threads

/// How rows are shared: tasks are `group` rows, or one of a row's `segments` of `length` elements.
struct Shares {
  int threads;
  int64_t segments, length, group;

  Shares(int64_t rows, int64_t n, int64_t work_of_a_thread) {
    threads = threads_for(rows * n, work_of_a_thread);
    length = rows < 2 * threads ? kSmallSegment : kSegment;
    segments = n > kSegment || (threads > 1 && rows < 2 * threads) ? div_up(n, length) : 1;
    if (segments < 1) segments = 1;
    if (segments == 1) length = n;
    group = segments > 1 || rows < 4 * threads ? 1 : div_up(rows, 16 * threads);
  }
};

void add(BoundedSum& total, BoundedSum part) { total = {total.sum + part.sum, total.error + part.error}; }

/// With what adding up the parts of a row has lost; magnitude: of the parts, added up.
double with_joins(double error, double magnitude, int64_t parts) {
  return parts > 1 ? error + error_bound(magnitude, 0, parts) : error;
}

/// The sum of a row (or of the squares of x - u) without rounding; all elements are finite.
float fixed_row(DType type, const void* x, int64_t n, bool squares, DType out_type, float u = 0) {
  FixedSum sum;
  for (int64_t i = 0; i < n; ++i) {
    const float v = element(type, x, i) - u;
    sum.add_product(v, squares ? v : 1.0f);
  }
  return sum.value(out_type);
}

/// What the first sum leaves open: in fp64 alone, which is exact for terms that are multiples of a large unit, or
/// without rounding, which is counted.
float settled(DType type, const void* x, int64_t n, bool squares, DType out_type, std::atomic<int64_t>& again) {
  const WideSum w = exact_row_kernels().wide(type, x, n, squares);
  const double unit = unit_of(type, w.smallest), e = error_bound(w.magnitude, squares ? unit * unit : unit, w.depth);
  float result;
  if (certain(w.sum, e, out_type, result)) return result;
  ++again;
  return fixed_row(type, x, n, squares, out_type);
}

/// S of a row, or Q of x - u.
float row_sum(DType type, const void* x, int64_t n, bool squares, float u) {
  const ExactRowKernels& kernels = exact_row_kernels();
  BoundedSum total{0, 0};
  double magnitude = 0;
  for (int64_t i = 0; i < n; i += kSegment) {
    const int64_t count = n - i < kSegment ? n - i : kSegment;
    const void* at = advance(x, type, i);
    const BoundedSum part = squares ? kernels.squares(type, at, count, u) : kernels.sum(type, at, count);
    add(total, part);
    magnitude += std::fabs(part.sum);
  }
  float result;
  if (certain(total.sum, with_joins(total.error, magnitude, div_up(n, kSegment)), DType::f32, result)) return result;
  std::atomic<int64_t> again{0};
  return u == 0 ? settled(type, x, n, squares, DType::f32, again) : fixed_row(type, x, n, squares, DType::f32, u);
}

}  // namespace

int64_t exact_rows(const void* x, int64_t rows, int64_t row, int64_t n, RowValue value, void* out, DType in_type,
                   DType out_type) {
  if (rows == 0) return 0;
  const ExactRowKernels& kernels = exact_row_kernels();
  const Shares s(rows, n, 1 << 17);
  const bool squares = value == RowValue::squares || value == RowValue::norm;
  const bool direct = value == RowValue::sum || value == RowValue::squares;
  const DType sum_type = direct ? out_type : DType::f32;
  const float length = static_cast<float>(n);
  std::atomic<int64_t> again{0};
  const auto finish = [&](int64_t r, BoundedSum total, double magnitude) {
    float result;
    if (!certain(total.sum, with_joins(total.error, magnitude, s.segments), sum_type, result))
      result = settled(in_type, advance(x, in_type, r * row), n, squares, sum_type, again);
    if (value == RowValue::mean) result /= length;
    if (value == RowValue::norm) result = std::sqrt(result);
    put(out_type, out, r, result);
  };
  const auto part = [&](int64_t r, int64_t start) {
    const int64_t count = n - start < s.length ? n - start : s.length;
    const void* at = advance(x, in_type, r * row + start);
    return squares ? kernels.squares(in_type, at, count, 0) : kernels.sum(in_type, at, count);
  };
  if (s.segments == 1) {
    parallel_for(div_up(rows, s.group), s.threads, [&](int64_t i) {
      for (int64_t r = i * s.group; r < (i + 1) * s.group && r < rows; ++r) finish(r, part(r, 0), 0);
    });
    return again;
  }
  std::vector<BoundedSum> parts(static_cast<size_t>(rows * s.segments));
  parallel_for(rows * s.segments, s.threads, [&](int64_t i) {
    parts[static_cast<size_t>(i)] = part(i / s.segments, i % s.segments * s.length);
  });
  parallel_for(rows, 1, [&](int64_t r) {
    BoundedSum total{0, 0};
    double magnitude = 0;
    for (int64_t i = r * s.segments; i < (r + 1) * s.segments; ++i) {
      add(total, parts[static_cast<size_t>(i)]);
      magnitude += std::fabs(parts[static_cast<size_t>(i)].sum);
    }
    finish(r, total, magnitude);
  });
  return again;
}

void exact_norm(const void* x, int64_t rows, int64_t row, int64_t n, const void* w, const void* b, float eps,
                bool centred, void* out, DType type) {
  const ExactRowKernels& kernels = exact_row_kernels();
  const int threads = threads_for(rows * n, 1 << 15);
  const int64_t group = div_up(rows, 16 * threads);
  parallel_for(div_up(rows, group), threads, [&](int64_t i) {
    const float length = static_cast<float>(n);
    for (int64_t r = i * group; r < (i + 1) * group && r < rows; ++r) {
      const void* at = advance(x, type, r * row);
      const float u = centred ? row_sum(type, at, n, false, 0) / length : 0.0f;
      const float q = row_sum(type, at, n, true, u);
      kernels.normalise(type, at, n, u, 1.0f / std::sqrt(q / length + eps), w, b, advance(out, type, r * n));
    }
  });
}

void exact_softmax(ExactSoftmax kind, const void* x, int64_t rows, int64_t row, int64_t n, void* out, DType in_type,
                   DType out_type) {
  if (rows == 0) return;
  const ExactRowKernels& kernels = exact_row_kernels();
  const Shares s(rows, n, 1 << 13);
  const bool in_place = kind == ExactSoftmax::softmax && out_type == DType::f32;  // where exponentials are kept
  const auto count = [&](int64_t segment) {
    return n - segment * s.length < s.length ? n - segment * s.length : s.length;
  };
  const auto top_of = [&](float m) { return kind == ExactSoftmax::logsumexp && std::isinf(m) ? 0.0f : m; };
  const auto total_of = [&](const BoundedSum* parts, const float* e) {
    BoundedSum total{0, 0};
    for (int64_t i = 0; i < s.segments; ++i) add(total, parts[i]);
    float result;
    const bool known = certain(total.sum, with_joins(total.error, total.sum, s.segments), DType::f32, result);
    return known ? result : fixed_row(DType::f32, e, n, false, DType::f32);
  };
  // A segment of a row from what is known of the row: its maximum m and the sum of its exponentials e.
  const auto finish = [&](int64_t r, int64_t segment, float m, float sum, const float* e) {
    const int64_t start = segment * s.length;
    if (kind == ExactSoftmax::logsumexp) {
      if (segment == 0) put(out_type, out, r, kernels.log(sum) + m);
    } else if (kind == ExactSoftmax::softmax) {
      kernels.quotients(out_type, e + start, count(segment), sum, advance(out, out_type, r * n + start));
    } else {
      kernels.shifted(in_type, advance(x, in_type, r * row + start), count(segment), m, kernels.log(sum), out_type,
                      advance(out, out_type, r * n + start));
    }
  };
  if (s.segments == 1) {
    parallel_for(div_up(rows, s.group), s.threads, [&](int64_t i) {
      std::vector<float> kept(in_place ? 0 : static_cast<size_t>(n));
      for (int64_t r = i * s.group; r < (i + 1) * s.group && r < rows; ++r) {
        const void* at = advance(x, in_type, r * row);
        float* e = in_place ? static_cast<float*>(out) + r * n : kept.data();
        const float m = top_of(kernels.maximum(in_type, at, n));
        const BoundedSum total = kernels.exponentials(in_type, at, n, m, e);
        finish(r, 0, m, total_of(&total, e), e);
      }
    });
    return;
  }
  std::vector<float> kept(in_place ? 0 : static_cast<size_t>(n)), tops(static_cast<size_t>(s.segments));
  std::vector<BoundedSum> parts(static_cast<size_t>(s.segments));
  for (int64_t r = 0; r < rows; ++r) {
    const auto at = [&](int64_t segment) { return advance(x, in_type, r * row + segment * s.length); };
    float* e = in_place ? static_cast<float*>(out) + r * n : kept.data();
    parallel_for(s.segments, s.threads, [&](int64_t i) {
      tops[static_cast<size_t>(i)] = kernels.maximum(in_type, at(i), count(i));
    });
    float m = tops[0], sum = 0;
    in_ieee_mode([&] {
      for (float t : tops) m = t > m ? t : m;
      m = top_of(m);
    });
    parallel_for(s.segments, s.threads, [&](int64_t i) {
      parts[static_cast<size_t>(i)] = kernels.exponentials(in_type, at(i), count(i), m, e + i * s.length);
    });
    in_ieee_mode([&] { sum = total_of(parts.data(), e); });
    parallel_for(s.segments, s.threads, [&](int64_t i) { finish(r, i, m, sum, e); });
  }
}

int64_t exact_columns(const void* x, int64_t terms, int64_t stride, int64_t n, void* out, DType in_type,
                      DType out_type) {
  constexpr int64_t kPiece = 4096;
  std::atomic<int64_t> again{0};
  parallel_for(div_up(n, kPiece), threads_for(terms * n, 1 << 15), [&](int64_t piece) {
    uint8_t open[kPiece];
    const int64_t first = piece * kPiece, count = n - first < kPiece ? n - first : kPiece;
    exact_row_kernels().columns(in_type, advance(x, in_type, first), terms, stride, count, out_type,
                                advance(out, out_type, first), open);
    for (int64_t i = 0; i < count; ++i) {
      if (!open[i]) continue;
      FixedSum fixed;
      double special = 0;
      for (int64_t t = 0; t < terms; ++t) {
        const float v = element(in_type, x, t * stride + first + i);
        special += v;
        if (std::isfinite(v)) fixed.add_value(v);
      }
      put(out_type, out, first + i, std::isfinite(special) ? fixed.value(out_type) : static_cast<float>(special));
      ++again;
    }
  });
  return again;
}

void bind_exact_rows(nb::module_& m) {
  m.def("exact_rows", [](uintptr_t x, int64_t rows, int64_t row, int64_t n, int value, uintptr_t out, int dtype,
                         int out_dtype) {
    need_memory(rows * n, {x});
    nb::gil_scoped_release release;
    return exact_rows(ptr<void>(x), rows, row, n, static_cast<RowValue>(value), ptr<void>(out),
                      static_cast<DType>(dtype), static_cast<DType>(out_dtype));
  });
  m.def("exact_norm", [](uintptr_t x, int64_t rows, int64_t row, int64_t n, uintptr_t w, uintptr_t b, double eps,
                         bool centred, uintptr_t out, int dtype) {
    need_memory(rows * n, {x});
    nb::gil_scoped_release release;
    if (rows * n > 0)
      exact_norm(ptr<void>(x), rows, row, n, ptr<void>(w), ptr<void>(b), static_cast<float>(eps), centred,
                 ptr<void>(out), static_cast<DType>(dtype));
  });
  m.def("exact_softmax", [](int kind, uintptr_t x, int64_t rows, int64_t row, int64_t n, uintptr_t out, int dtype,
                            int out_dtype) {
    need_memory(rows * n, {x});
    nb::gil_scoped_release release;
    exact_softmax(static_cast<ExactSoftmax>(kind), ptr<void>(x), rows, row, n, ptr<void>(out),
                  static_cast<DType>(dtype), static_cast<DType>(out_dtype));
  });
  m.def("exact_columns", [](uintptr_t x, int64_t terms, int64_t stride, int64_t n, uintptr_t out, int dtype,
                            int out_dtype) {
    need_memory(terms * n, {x});
    nb::gil_scoped_release release;
    return exact_columns(ptr<void>(x), terms, stride, n, ptr<void>(out), static_cast<DType>(dtype),
                         static_cast<DType>(out_dtype));
  });
}

}  // namespace samebits
