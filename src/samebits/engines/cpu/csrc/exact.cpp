// Exact results at the price of fp64: Ziv's strategy, applied to sums.
//
// A sum in fp64 is a number y and a bound e of its error. If y - e and y + e round to the same
// number of the result's type, that number is the correctly rounded exact sum (rounding is
// monotone). If not, or if the exact sum lies on a boundary, the terms are added again into a fixed-
// point number that holds every bit. So how the work was cut cannot show in a result.
#include "exact.hpp"

#include <atomic>
#include <memory>
#include <vector>

#include "bind.hpp"
#include "fixed_sum.hpp"
#include "kernels/exact.hpp"

namespace samebits {
SB_KERNEL_TABLE(ExactKernels, exact_kernels)

namespace {

constexpr int64_t kRows = 64, kColumns = 64, kChunk = 512;  // of a task, and of k between two folds
constexpr int64_t kStreamRows = 4, kStreamChunk = 2048;
constexpr int64_t kSegment = 1 << 16;  // elements of a row that one task sums
constexpr double kUnit = 0x1p-53;
constexpr double kSlack = 1.01;  // for the roundings of the bounds themselves, second order included

int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

double nan_value() { return base::bit_float(base::kNan32); }

float element(DType type, const void* x, int64_t i) {
  switch (type) {
    case DType::f32: return static_cast<const float*>(x)[i];
    case DType::bf16: return base::to_float(static_cast<const base::bf16*>(x)[i]);
    default: return base::to_float(static_cast<const base::f16*>(x)[i]);
  }
}

void put(DType type, void* out, int64_t i, float v) {
  switch (type) {
    case DType::f32: return base::store1(static_cast<float*>(out) + i, v);
    case DType::bf16: return base::store1(static_cast<base::bf16*>(out) + i, v);
    case DType::f16: return base::store1(static_cast<base::f16*>(out) + i, v);
  }
}

const char* advance(const void* x, DType type, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(type);
}

/// A unit that divides all numbers of a type whose magnitude is at least `smallest`, or 0.
double unit_of(DType type, double smallest) {
  if (std::isinf(smallest)) return smallest;  // no such number
  const int fraction = type == DType::f32 ? 23 : type == DType::bf16 ? 7 : 10;
  return std::ldexp(1.0, std::ilogb(smallest) - fraction);
}

/// A bound of the error of a sum of terms in fp64.
/// magnitude: at least the sum of their magnitudes; unit: divides all of them; depth: additions that a
/// term goes through.
double error_bound(double magnitude, double unit, int64_t depth) {
  magnitude *= kSlack;
  if (magnitude < 0x1p53 * unit) return 0;  // every partial sum is a multiple of unit with at most 53 bits
  return static_cast<double>(depth) * kUnit * kSlack * magnitude;
}

/// Whether every number within e of y rounds to one number, which is put into `result`.
bool certain(double y, double e, DType type, float& result) {
  if (e == 0 || !std::isfinite(y)) {
    result = y != y ? static_cast<float>(nan_value()) : rounded(y, type);
    return true;
  }
  e = e * kSlack + 0x1p-52 * std::fabs(y);  // y - e and y + e are rounded, too
  result = rounded(y + e, type);
  return base::float_bits(rounded(y - e, type)) == base::float_bits(result);
}

/// y + c, and the error of that addition added to e.
double with_term(double y, float c, double& e) {
  const double d = c, s = y + d, t = s - y;
  if (std::isfinite(s)) e += std::fabs((y - (s - t)) + (d - t));  // Knuth's TwoSum: exact
  return s;
}

/// One result without rounding; all terms are finite.
float fixed(const ExactProduct& p, const void* x, const void* w, const float* c) {
  FixedSum sum;
  for (int64_t k = 0; k < p.k; ++k) sum.add_product(element(p.in_type, x, k), element(p.in_type, w, k));
  if (c) sum.add_value(*c);
  return sum.value(p.out_type);
}

/// The sum of a row (or of its squares) without rounding; all elements are finite.
float fixed_row(DType type, const void* x, int64_t n, bool squares, DType out_type, float u = 0) {
  FixedSum sum;
  for (int64_t i = 0; i < n; ++i) {
    const float v = element(type, x, i) - u;
    sum.add_product(v, squares ? v : 1.0f);
  }
  return sum.value(out_type);
}

/// S (or Q) of a row, u taken from its elements first.
float row_sum(DType type, const void* x, int64_t n, bool squares, float u) {
  const ExactKernels& kernels = exact_kernels();
  const RowSum s = u == 0 ? kernels.sum(type, x, n, squares) : kernels.deviations(type, x, n, u);
  float result;
  return certain(s.sum, error_bound(s.magnitude, 0, n / 32 + 40), DType::f32, result)
             ? result
             : fixed_row(type, x, n, squares, DType::f32, u);
}

/// Memory of a thread, kept between calls.
struct Scratch {
  std::vector<double> x, w, acc;
  std::vector<RowFacts> x_facts, w_facts;
};

thread_local Scratch scratch;

struct Task {
  int64_t batch, m0, rows, n0, columns;
};

/// Rounds the sums of a task; returns how many had to be summed again.
int64_t finish(const ExactProduct& p, const Task& t, const Scratch& s, int64_t depth) {
  int64_t again = 0;
  const char* x = advance(p.x, p.in_type, t.batch * p.x_batch + t.m0 * p.x_row);
  const char* w = advance(p.w, p.in_type, t.batch * p.w_batch + t.n0 * p.w_row);
  std::vector<double> w_norm(static_cast<size_t>(t.columns)), w_unit(static_cast<size_t>(t.columns));
  for (int64_t c = 0; c < t.columns; ++c) {
    const RowFacts& f = s.w_facts[static_cast<size_t>(c)];
    w_norm[static_cast<size_t>(c)] = std::sqrt(f.squares);
    w_unit[static_cast<size_t>(c)] = unit_of(p.in_type, f.smallest);
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    const RowFacts& f = s.x_facts[static_cast<size_t>(r)];
    const double norm = std::sqrt(f.squares), unit = unit_of(p.in_type, f.smallest);
    for (int64_t c = 0; c < t.columns; ++c) {
      const auto j = static_cast<size_t>(c);
      // Cauchy and Schwarz: the magnitudes of the products sum up to at most |x| |w|.
      double e = error_bound(norm * w_norm[j], unit * w_unit[j], depth);
      double y = s.acc[static_cast<size_t>(r * t.columns + c)];
      const float* term =
          p.c ? p.c + t.batch * p.c_batch + (t.m0 + r) * p.c_row + (t.n0 + c) * p.c_col : nullptr;
      const int64_t at = t.batch * p.out_batch + (t.m0 + r) * p.out_row + (t.n0 + c) * p.out_col;
      if (p.bound) {  // a sum that is not finite is what it is
        static_cast<double*>(p.out)[at] = y;
        p.bound[at] = std::isfinite(y) ? e : 0;
        continue;
      }
      if (term) y = with_term(y, *term, e);
      float result;
      if (!certain(y, e, p.out_type, result)) {
        result = fixed(p, advance(x, p.in_type, r * p.x_row), advance(w, p.in_type, c * p.w_row), term);
        ++again;
      }
      put(p.out_type, p.out, at, result);
    }
  }
  return again;
}

int64_t run(const ExactProduct& p, const Task& t) {
  const ExactKernels& kernels = exact_kernels();
  const bool stream = t.rows <= kStreamRows;
  const int64_t chunk = stream ? kStreamChunk : kChunk;
  Scratch& s = scratch;
  s.x.resize(static_cast<size_t>(t.rows * chunk));
  if (!stream) s.w.resize(static_cast<size_t>(t.columns * chunk));
  s.acc.assign(static_cast<size_t>(t.rows * t.columns), 0.0);
  s.x_facts.assign(static_cast<size_t>(t.rows), {0, INFINITY});
  s.w_facts.assign(static_cast<size_t>(t.columns), {0, INFINITY});
  for (int64_t k0 = 0; k0 < p.k; k0 += chunk) {
    const int64_t k = p.k - k0 < chunk ? p.k - k0 : chunk, padded = div_up(k, 16) * 16;
    const char* x = advance(p.x, p.in_type, t.batch * p.x_batch + t.m0 * p.x_row + k0);
    const char* w = advance(p.w, p.in_type, t.batch * p.w_batch + t.n0 * p.w_row + k0);
    kernels.pack(p.in_type, x, p.x_row, t.rows, k, s.x.data(), padded, s.x_facts.data());
    if (stream) {
      kernels.stream(p.in_type, s.x.data(), t.rows, padded, w, p.w_row, t.columns, k, s.acc.data(),
                     s.w_facts.data());
    } else {
      kernels.pack(p.in_type, w, p.w_row, t.columns, k, s.w.data(), padded, s.w_facts.data());
      kernels.multiply(s.x.data(), t.rows, s.w.data(), t.columns, padded, s.acc.data());
    }
  }
  const int64_t depth = (p.k < chunk ? p.k : chunk) / kernels.lanes + 32 + div_up(p.k, chunk);
  return finish(p, t, s, depth);
}

}  // namespace

int64_t exact_product(const ExactProduct& p) {
  if (p.batch * p.m * p.n == 0) return 0;
  const int threads = threads_for(p.batch * p.m * p.n * p.k, 1 << 17);
  const int64_t row_blocks = div_up(p.m, kRows), rows = div_up(p.m, row_blocks);
  const int64_t columns = p.batch * row_blocks * div_up(p.n, kColumns) < 2 * threads ? 16 : kColumns;
  const int64_t column_blocks = div_up(p.n, columns);
  std::atomic<int64_t> again{0};
  parallel_for(p.batch * row_blocks * column_blocks, threads, [&](int64_t i) {
    const int64_t column = i % column_blocks, rest = i / column_blocks;
    Task t{rest / row_blocks, rest % row_blocks * rows, rows, column * columns, columns};
    if (t.m0 >= p.m) return;
    if (t.rows > p.m - t.m0) t.rows = p.m - t.m0;
    if (t.columns > p.n - t.n0) t.columns = p.n - t.n0;
    again += run(p, t);
  });
  return again;
}

void exact_product_plain(const ExactProduct& p, int threads) {
  parallel_for(p.batch * p.m, threads, [&](int64_t i) {
    const int64_t b = i / p.m, m = i % p.m;
    const char* x = advance(p.x, p.in_type, b * p.x_batch + m * p.x_row);
    for (int64_t n = 0; n < p.n; ++n) {
      const char* w = advance(p.w, p.in_type, b * p.w_batch + n * p.w_row);
      const float* c = p.c ? p.c + b * p.c_batch + m * p.c_row + n * p.c_col : nullptr;
      double special = c ? *c : 0.0;  // not finite if a term is not
      for (int64_t k = 0; k < p.k; ++k)
        special += static_cast<double>(element(p.in_type, x, k)) * element(p.in_type, w, k);
      const float result = std::isfinite(special) ? fixed(p, x, w, c) : static_cast<float>(special);
      put(p.out_type, p.out, b * p.out_batch + m * p.out_row + n * p.out_col, result);
    }
  });
}

int64_t exact_rows(const void* x, int64_t rows, int64_t row, int64_t n, bool squares, void* out, DType in_type,
                   DType out_type) {
  if (rows == 0) return 0;
  const ExactKernels& kernels = exact_kernels();
  const int64_t segments = n > kSegment ? div_up(n, kSegment) : 1;
  const int threads = threads_for(rows * n, 1 << 17);
  const int64_t group = segments > 1 || rows < 4 * threads ? 1 : div_up(rows, 16 * threads);  // rows of a task
  std::vector<RowSum> parts(static_cast<size_t>(rows * segments));
  parallel_for(div_up(rows, group) * segments, threads, [&](int64_t i) {
    const int64_t segment = i % segments, first = i / segments * group, start = segment * kSegment;
    const int64_t length = segments == 1 ? n : n - start < kSegment ? n - start : kSegment;
    for (int64_t r = first; r < first + group && r < rows; ++r)
      parts[static_cast<size_t>(r * segments + segment)] =
          kernels.sum(in_type, advance(x, in_type, r * row + start), length, squares);
  });
  const int64_t depth = (n < kSegment ? n : kSegment) / 32 + 40 + segments;
  std::atomic<int64_t> again{0};
  parallel_for(div_up(rows, group), threads, [&](int64_t i) {
    for (int64_t r = i * group; r < (i + 1) * group && r < rows; ++r) {
      RowSum total{0, 0};
      for (int64_t s = 0; s < segments; ++s) {
        total.sum += parts[static_cast<size_t>(r * segments + s)].sum;
        total.magnitude += parts[static_cast<size_t>(r * segments + s)].magnitude;
      }
      const void* at = advance(x, in_type, r * row);
      float result;
      if (!certain(total.sum, error_bound(total.magnitude, 0, depth), out_type, result)) {
        const double unit = unit_of(in_type, kernels.smallest(in_type, at, n));
        const double e = error_bound(total.magnitude, squares ? unit * unit : unit, depth);
        if (!certain(total.sum, e, out_type, result)) {
          result = fixed_row(in_type, at, n, squares, out_type);
          ++again;
        }
      }
      put(out_type, out, r, result);
    }
  });
  return again;
}

void exact_norm(const void* x, int64_t rows, int64_t row, int64_t n, const void* w, const void* b, float eps,
                bool centred, void* out, DType type) {
  const ExactKernels& kernels = exact_kernels();
  const int threads = threads_for(rows * n, 1 << 16);
  const int64_t group = div_up(rows, 16 * threads);
  parallel_for(div_up(rows, group), threads, [&](int64_t i) {
    const float length = static_cast<float>(n);
    for (int64_t r = i * group; r < (i + 1) * group && r < rows; ++r) {
      const void* at = advance(x, type, r * row);
      const float u = centred ? row_sum(type, at, n, false, 0) / length : 0.0f;
      const float q = row_sum(type, at, n, true, u);
      void* to = static_cast<char*>(out) + r * n * size_of(type);
      kernels.normalise(type, at, n, u, 1.0f / std::sqrt(q / length + eps), w, b, to);
    }
  });
}

int64_t exact_columns(const void* x, int64_t terms, int64_t stride, int64_t n, void* out, DType in_type, DType out_type) {
  constexpr int64_t kPiece = 4096;
  std::atomic<int64_t> again{0};
  parallel_for(div_up(n, kPiece), threads_for(terms * n, 1 << 14), [&](int64_t piece) {
    double sum[kPiece], lost[kPiece];
    const int64_t first = piece * kPiece, count = n - first < kPiece ? n - first : kPiece;
    for (int64_t i = 0; i < count; ++i) sum[i] = lost[i] = 0;
    for (int64_t t = 0; t < terms; ++t)
      for (int64_t i = 0; i < count; ++i) {
        const double d = element(in_type, x, t * stride + first + i), s = sum[i] + d, v = s - sum[i];
        lost[i] += std::fabs((sum[i] - (s - v)) + (d - v));  // Knuth's TwoSum: exact
        sum[i] = s;
      }
    for (int64_t i = 0; i < count; ++i) {
      float result;
      if (!certain(sum[i], lost[i], out_type, result)) {
        FixedSum fixed;
        for (int64_t t = 0; t < terms; ++t) fixed.add_value(element(in_type, x, t * stride + first + i));
        result = fixed.value(out_type);
        ++again;
      }
      put(out_type, out, first + i, result);
    }
  });
  return again;
}

void exact_join(const double* y, const double* e, int64_t parts, int64_t n, void* out, DType out_type, uint8_t* open) {
  constexpr int64_t kPiece = 4096;
  parallel_for(div_up(n, kPiece), threads_for(parts * n, 1 << 14), [&](int64_t piece) {
    const int64_t end = (piece + 1) * kPiece < n ? (piece + 1) * kPiece : n;
    for (int64_t i = piece * kPiece; i < end; ++i) {
      double sum = 0, error = 0;
      for (int64_t p = 0; p < parts; ++p) {
        const double d = y[p * n + i], s = sum + d, v = s - sum;
        error += e[p * n + i] * kSlack;
        if (std::isfinite(s)) error += std::fabs((sum - (s - v)) + (d - v));  // Knuth's TwoSum: exact
        sum = s;
      }
      float result;
      open[i] = !certain(sum, error, out_type, result);
      put(out_type, out, i, result);
    }
  });
}

void exact_limbs(const ExactProduct& p, const int64_t* m, const int64_t* n, int64_t count, int64_t* limbs) {
  parallel_for(count, threads_for(count * p.k, 1 << 14), [&](int64_t i) {
    FixedSum sum;
    for (int64_t k = 0; k < p.k; ++k)
      sum.add_product(element(p.in_type, p.x, m[i] * p.x_row + k), element(p.in_type, p.w, n[i] * p.w_row + k));
    const int64_t* from = sum.limbs();
    for (int l = 0; l < FixedSum::kLimbs; ++l) limbs[i * FixedSum::kLimbs + l] = from[l];
  });
}

void exact_value(const int64_t* limbs, const float* term, int64_t count, void* out, DType out_type) {
  for (int64_t i = 0; i < count; ++i) {
    FixedSum sum;
    sum.add(limbs + i * FixedSum::kLimbs);
    if (term) sum.add_value(term[i]);
    put(out_type, out, i, sum.value(out_type));
  }
}

void bind_exact(nb::module_& m) {
  const auto problem = [](uintptr_t x, uintptr_t w, uintptr_t c, uintptr_t out, int64_t batch, int64_t rows, int64_t n,
                          int64_t k, int64_t xb, int64_t xr, int64_t wb, int64_t wr, int64_t cb, int64_t cr, int64_t cc,
                          int64_t ob, int64_t orow, int64_t oc, int dtype, int out_dtype) {
    need_memory(batch * rows * n * k, {x, w});
    return ExactProduct{ptr<void>(x), ptr<void>(w), ptr<const float>(c), ptr<void>(out), batch, rows, n, k, xb, xr, wb,
                        wr, cb, cr, cc, ob, orow, oc, static_cast<DType>(dtype), static_cast<DType>(out_dtype), nullptr};
  };
  m.def("exact_product", [problem](uintptr_t x, uintptr_t w, uintptr_t c, uintptr_t out, int64_t batch, int64_t rows,
                                   int64_t n, int64_t k, int64_t xb, int64_t xr, int64_t wb, int64_t wr, int64_t cb,
                                   int64_t cr, int64_t cc, int64_t ob, int64_t orow, int64_t oc, int dtype,
                                   int out_dtype, bool plain) -> int64_t {
    const ExactProduct p = problem(x, w, c, out, batch, rows, n, k, xb, xr, wb, wr, cb, cr, cc, ob, orow, oc, dtype,
                                   out_dtype);
    nb::gil_scoped_release release;
    if (!plain) return exact_product(p);
    exact_product_plain(p, threads_for(batch * rows * n * k, 1 << 14));
    return batch * rows * n;
  });
  m.def("exact_rows", [](uintptr_t x, int64_t rows, int64_t row, int64_t n, bool squares, uintptr_t out, int dtype,
                         int out_dtype) {
    need_memory(rows * n, {x});
    nb::gil_scoped_release release;
    return exact_rows(ptr<void>(x), rows, row, n, squares, ptr<void>(out), static_cast<DType>(dtype),
                      static_cast<DType>(out_dtype));
  });
  m.def("exact_partial", [](uintptr_t x, uintptr_t w, uintptr_t y, uintptr_t bound, int64_t rows, int64_t n, int64_t k,
                            int64_t xr, int64_t wr, int dtype) {
    need_memory(rows * n * k, {x, w});
    nb::gil_scoped_release release;
    const DType type = static_cast<DType>(dtype);
    exact_product({ptr<void>(x), ptr<void>(w), nullptr, ptr<void>(y), 1, rows, n, k, 0, xr, 0, wr, 0, 0, 0, 0, n, 1, type,
                   type, ptr<double>(bound)});
  });
  m.def("exact_join", [](uintptr_t y, uintptr_t e, int64_t parts, int64_t n, uintptr_t out, int out_dtype, uintptr_t open) {
    need_memory(parts * n, {y, e});
    nb::gil_scoped_release release;
    exact_join(ptr<const double>(y), ptr<const double>(e), parts, n, ptr<void>(out), static_cast<DType>(out_dtype),
               ptr<uint8_t>(open));
  });
  m.def("exact_limbs", [](uintptr_t x, uintptr_t w, int64_t k, int64_t xr, int64_t wr, int dtype, uintptr_t rows,
                          uintptr_t columns, int64_t count, uintptr_t limbs) {
    need_memory(count * k, {x, w});
    nb::gil_scoped_release release;
    const DType type = static_cast<DType>(dtype);
    exact_limbs({ptr<void>(x), ptr<void>(w), nullptr, nullptr, 1, 0, 0, k, 0, xr, 0, wr, 0, 0, 0, 0, 0, 0, type, type,
                 nullptr},
                ptr<const int64_t>(rows), ptr<const int64_t>(columns), count, ptr<int64_t>(limbs));
  });
  m.def("exact_value", [](uintptr_t limbs, uintptr_t term, int64_t count, uintptr_t out, int out_dtype) {
    exact_value(ptr<const int64_t>(limbs), ptr<const float>(term), count, ptr<void>(out), static_cast<DType>(out_dtype));
  });
  m.attr("EXACT_LIMBS") = FixedSum::kLimbs;
  m.def("exact_norm", [](uintptr_t x, int64_t rows, int64_t row, int64_t n, uintptr_t w, uintptr_t b, double eps,
                         bool centred, uintptr_t out, int dtype) {
    need_memory(rows * n, {x});
    nb::gil_scoped_release release;
    if (rows * n > 0)
      exact_norm(ptr<void>(x), rows, row, n, ptr<void>(w), ptr<void>(b), static_cast<float>(eps), centred,
                 ptr<void>(out), static_cast<DType>(dtype));
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
