// Products with packed weights: threads, buffers, and the choice of the instruction.
#include <atomic>
#include <vector>

#include "bind.hpp"
#include "buffer.hpp"
#include "kernels/packed.hpp"
#include "product.hpp"

namespace samebits {
SB_KERNEL_TABLE(PackedKernels, packed_kernels)

namespace {

constexpr int64_t kGroupBytes = 16 << 20;  // packed rows of x that are in flight together
constexpr int64_t kBlockRows = 96;         // rows that a task takes through its panels
constexpr int64_t kNanosecondsPerThread = 15000;

thread_local Buffer x_buffer;

std::atomic<bool> dot_wanted{true};

bool has_dot() {
#ifdef SB_HAVE_dot
  static const bool has = __builtin_cpu_supports("avx512bf16") && has_isa(Isa::avx512) && avx512::dot_is_two_steps();
  return has;
#else
  return false;
#endif
}
}  // namespace

bool use_dot() { return dot_wanted.load(std::memory_order_relaxed) && active_isa() == Isa::avx512 && has_dot(); }

namespace {

void pack(GemmArgs g, void* to, Range* ranges) {
  const PackedKernels& kernels = packed_kernels();
  const PackedShape shape(g.in_type, g.n, g.k);
  parallel_for(shape.panels, threads_for(g.n * g.k, 1 << 16), [&](int64_t i) {
    ranges[i] = kernels.pack_w(g, i, static_cast<char*>(to) + i * shape.panel_bytes);
  });
}

int64_t cost_ns(const GemmArgs& g) {
  int64_t arithmetic = g.m * g.n * g.k / 96, reads = g.n * g.k / 8;
  return arithmetic > reads ? arithmetic : reads;
}

void compute(GemmArgs g, const Range* ranges) {
  if (g.m == 0 || g.n == 0) return;
  const PackedKernels& kernels = packed_kernels();
  if (g.m >= kernels.many && g.in_type != DType::bf16 && g.k <= kWholeDepth) {
    g.panels = true;
    product(g, false);
    return;
  }
  const PackedShape shape(g.in_type, g.n, g.k);
  const bool dot = g.in_type == DType::bf16 && use_dot();
  const int threads = threads_for(cost_ns(g), kNanosecondsPerThread);
  const int64_t row_floats = shape.units * 16, pairs = (shape.panels + 1) / 2;
  const int64_t tiles = (g.m + kernels.rows - 1) / kernels.rows;
  auto first_row = [&](int64_t tile) { return g.m * tile / tiles; };  // of heights that differ by one at most
  int64_t together = row_floats ? kGroupBytes / (4 * row_floats * kernels.rows) : tiles;
  together = together < 1 ? 1 : together < tiles ? together : tiles;
  std::vector<Range> of_tile(static_cast<size_t>(together));
  for (int64_t t0 = 0; t0 < tiles; t0 += together) {
    const int64_t count = together < tiles - t0 ? together : tiles - t0, r0 = first_row(t0);
    float* packed = x_buffer.get((first_row(t0 + count) - r0) * row_floats + 1);
    parallel_for(count, threads_for(count * kernels.rows * g.k / 4, kNanosecondsPerThread), [&](int64_t i) {
      int64_t row = first_row(t0 + i);
      of_tile[static_cast<size_t>(i)] =
          kernels.pack_x(g, row, first_row(t0 + i + 1) - row, packed + (row - r0) * row_floats);
    });
    // Blocks of rows inside, panels outside: two panels are used by all rows while they are in a cache.
    const int64_t in_block = kBlockRows / kernels.rows, blocks = (count + in_block - 1) / in_block;
    parallel_for(pairs * blocks, threads, [&](int64_t task) {
      const int64_t panel = task / blocks * 2, first = task % blocks * in_block;
      const int64_t end = first + in_block < count ? first + in_block : count;
      const int64_t panels = panel + 2 <= shape.panels ? 2 : 1, next = panel + 4 <= shape.panels ? panel + 2 : panel;
      Range range = ranges[panel];
      if (panels == 2) {
        if (ranges[panel + 1].low < range.low) range.low = ranges[panel + 1].low;
        if (ranges[panel + 1].high > range.high) range.high = ranges[panel + 1].high;
      }
      const char* w = static_cast<const char*>(g.w);
      for (int64_t i = first; i < end; ++i) {
        const int64_t row = first_row(t0 + i), rows = first_row(t0 + i + 1) - row;
        const PackedTile tile{&g, packed + (row - r0) * row_floats, row, rows, w + panel * shape.panel_bytes,
                              w + next * shape.panel_bytes, panel, panels};
#ifdef SB_HAVE_dot
        if (dot && dot_keeps_bits(of_tile[static_cast<size_t>(i)], range)) {
          avx512::run_dot(tile);
          continue;
        }
#endif
        kernels.run(tile);
      }
    });
  }
  x_buffer.release_if_large();
}

}  // namespace

void bind_packed(nb::module_& m) {
  m.def("packed_size", [](int64_t n, int64_t k, int dtype) {
    const PackedShape shape(static_cast<DType>(dtype), n, k);
    return std::vector<int64_t>{shape.panels * shape.panel_bytes, shape.panels * static_cast<int64_t>(sizeof(Range))};
  });
  m.def(
      "pack_weight",
      [](uintptr_t w, int64_t n, int64_t k, int64_t w_row, int64_t w_col, int dtype, uintptr_t to, uintptr_t ranges) {
        need_memory(n * k, {w, to});
        GemmArgs g{};
        g.w = ptr<void>(w), g.n = n, g.k = k, g.w_row = w_row, g.w_col = w_col, g.in_type = static_cast<DType>(dtype);
        pack(g, ptr<void>(to), ptr<Range>(ranges));
      },
      NoGil());
  m.def("linear_packed",
        [](uintptr_t x, int64_t x_row, uintptr_t packed, uintptr_t ranges, uintptr_t bias, uintptr_t out, int64_t rows,
           int64_t n, int64_t k, int dtype, int out_dtype) {
          need_memory(rows * n * k, {x, packed});
          DType in = static_cast<DType>(dtype);
          const GemmArgs g{ptr<void>(x), ptr<void>(packed), ptr<void>(bias), ptr<void>(out), 1, rows, n, k, 0, x_row, 1,
                           0, 0, 0, 0, 0, 1, 0, n, 1, in, in, static_cast<DType>(out_dtype), 1.0, 1.0};
          if (cost_ns(g) < 2000) return compute(g, ptr<Range>(ranges));
          nb::gil_scoped_release release;
          compute(g, ptr<Range>(ranges));
        });
  m.def("has_dot", [] { return has_dot(); });
  m.def("set_dot", [](bool use) { return dot_wanted.exchange(use); });
}
}  // namespace samebits
