// Exact products at the price of fp64: see ziv.hpp. How the work was cut cannot show in a result.
#include "exact.hpp"

#include <atomic>
#include <memory>
#include <vector>

#include "bind.hpp"
#include "kernels/exact.hpp"
#include "ziv.hpp"

namespace samebits {
SB_KERNEL_TABLE(ExactKernels, exact_kernels)

namespace {

constexpr int64_t kRows = 64, kColumns = 64, kChunk = 512;  // of a task, and of k between two folds
constexpr int64_t kStreamRows = 4, kStreamChunk = 2048;

/// One result without rounding; all terms are finite.
float fixed(const ExactProduct& p, const void* x, const void* w, const float* c) {
  FixedSum sum;
  for (int64_t k = 0; k < p.k; ++k) sum.add_product(element(p.in_type, x, k), element(p.in_type, w, k));
  if (c) sum.add_value(*c);
  return sum.value(p.out_type);
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
  in_ieee_mode([&] {
    for (int64_t i = 0; i < count; ++i) {
      FixedSum sum;
      sum.add(limbs + i * FixedSum::kLimbs);
      if (term) sum.add_value(term[i]);
      put(out_type, out, i, sum.value(out_type));
    }
  });
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
}

}  // namespace samebits
