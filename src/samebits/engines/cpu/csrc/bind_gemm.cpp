// Matrix products: threads, buffers, and the two entry points.
#include <utility>

#include "bind.hpp"
#include "buffer.hpp"
#include "product.hpp"

namespace samebits {
SB_KERNEL_TABLE(GemmKernels, gemm_kernels)

namespace {

thread_local Buffer packed_buffer, scratch_buffer;

constexpr int64_t kGroupFloats = 4 << 20;  // packed rows of x that are in flight together
constexpr int64_t kNanosecondsPerThread = 15000;

// What one core needs, roughly: bound by arithmetic, or by reading w.
int64_t cost_ns(const GemmArgs& g) {
  int64_t flops = g.batch * g.m * g.n * g.k / 64;
  int64_t reads = g.batch * g.n * g.k / 6;
  return flops > reads ? flops : reads;
}

}  // namespace

int64_t product(GemmArgs g, bool checked) {
  if (g.batch == 0 || g.m == 0 || g.n == 0) return 0;
  g.pairs = g.in_type == DType::bf16 && !g.chain && use_dot();
  if (g.n < 16 && g.m > g.n && !g.panels) {  // x * w == w * x: let the longer side be the vectors of outputs
    std::swap(g.x, g.w);
    std::swap(g.m, g.n);
    std::swap(g.x_batch, g.w_batch);
    std::swap(g.x_row, g.w_row);
    std::swap(g.x_col, g.w_col);
    std::swap(g.c_row, g.c_col);
    std::swap(g.out_row, g.out_col);
  }
  PathCheck taken, *check = nullptr;
  int64_t lost = -1;  // a task that a test takes away
  if (checked && path_mode().on.load(std::memory_order_relaxed)) {
    check = &taken;
    taken.seed = path_mode().product;
    taken.expected = path_fold(taken.seed, path_leaf(0, g.k, 16));
    const Fault fault = path_mode().take_fault();
    if (fault == Fault::dropped && g.k > 16) g.k -= 16;
    if (fault == Fault::lost_tile) lost = 0;
  }
  const GemmKernels& kernels = gemm_kernels();
  const int threads = threads_for(cost_ns(g), kNanosecondsPerThread);
  const GemmPlan p = kernels.plan(g, threads);
  const int64_t units = g.batch * p.row_units;
  int64_t group = p.unit_floats ? kGroupFloats / p.unit_floats : units;
  if (group < 1) group = 1;
  if (group > units) group = units;
  float* packed = p.unit_floats ? packed_buffer.get(group * p.unit_floats) : nullptr;
  for (int64_t first = 0; first < units; first += group) {
    const int64_t count = group < units - first ? group : units - first;
    if (p.unit_floats) {
      int wake = threads_for(count * p.unit_floats / 4, kNanosecondsPerThread);
      parallel_for(count * p.pieces, wake < threads ? wake : threads, [&](int64_t i) {
        int64_t u = i / p.pieces;
        kernels.pack(g, p, first + u, i % p.pieces, packed + u * p.unit_floats);
      });
    }
    // Units inside, columns outside: a block of w is used by all units while it is in the cache.
    const int64_t tasks = count * p.col_blocks;
    const int64_t grain = threads > 1 ? 1 + tasks / (64 * threads) : tasks;
    parallel_for((tasks + grain - 1) / grain, threads, [&](int64_t i) {
      float* scratch = scratch_buffer.get(p.scratch_floats);
      int64_t end = (i + 1) * grain < tasks ? (i + 1) * grain : tasks;
      for (int64_t t = i * grain; t < end; ++t) {
        int64_t u = t % count;
        if (t == lost && first == 0) continue;
        kernels.run(g, p, first + u, t / count, packed + u * p.unit_floats, scratch, check);
      }
    });
  }
  packed_buffer.release_if_large();
  if (!check) return 0;
  return taken.result(g.batch * g.m * g.n);
}

namespace {

// Lets other Python threads run, where that is worth its cost. Returns outputs whose path was wrong.
int64_t gemm(const GemmArgs& g) {
  if (cost_ns(g) < 2000) return product(g, true);
  nb::gil_scoped_release release;
  return product(g, true);
}

}  // namespace

void bind_gemm(nb::module_& m) {
  m.def("linear",
        [](uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t out, int64_t rows, int64_t n, int64_t k, int64_t w_row,
           int64_t w_col, int dtype, int out_dtype, bool chain) {
          need_memory(rows * n * k, {x, w});
          DType in = static_cast<DType>(dtype);
          return gemm({ptr<void>(x), ptr<void>(w), ptr<void>(bias), ptr<void>(out), 1, rows, n, k, 0, k, 1, 0, w_row, w_col,
                0, 0, 1, 0, n, 1, in, in, static_cast<DType>(out_dtype), 1.0, 1.0, chain});
        });
  m.def("gemm",
        [](uintptr_t x, uintptr_t w, uintptr_t c, uintptr_t out, int64_t batch, int64_t rows, int64_t n, int64_t k,
           int64_t xb, int64_t xr, int64_t xc, int64_t wb, int64_t wr, int64_t wc, int64_t cb, int64_t cr, int64_t cc,
           int64_t ob, int64_t orow, int64_t oc, int dtype, int c_dtype, int out_dtype, double alpha, double beta,
           bool chain) {
          need_memory(batch * rows * n * k, {x, w});
          return gemm({ptr<void>(x), ptr<void>(w), ptr<void>(c), ptr<void>(out), batch, rows, n, k, xb, xr, xc, wb, wr, wc,
                cb, cr, cc, ob, orow, oc, static_cast<DType>(dtype), static_cast<DType>(c_dtype),
                static_cast<DType>(out_dtype), alpha, beta, chain});
        });
}
}  // namespace samebits
