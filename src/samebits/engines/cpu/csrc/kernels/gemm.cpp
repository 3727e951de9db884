// Matrix products. The tree is lanes(16) over k for every output, or a chain; see gemm.hpp.
//
// Loops, from the outside: task (rows of a unit x columns of a block), chunk of K, tile of rows,
// panel of columns, step of 16 k. The accumulators of a task, 16 lanes for each output, wait in the
// second-level cache between chunks; the last chunk folds and writes. x is packed once per unit, w
// once per task, or read where it lies when few rows would share the packed copy.
// Few rows against contiguous columns, and short K, have schedules of their own (gemm_columns.hpp); many rows have one
// that keeps less in the caches, and so has the tree of one chain (gemm_strips.hpp; of few rows gemm_chain.hpp).
#include "kernels/gemm_chain.hpp"
#include "kernels/gemm_columns.hpp"
#include "kernels/gemm_strips.hpp"

namespace samebits::SB_ISA {
namespace {

GemmPlan plan(const GemmArgs& g, int threads) {
  GemmPlan p{};
  p.steps = div_up(g.k, 16);
  if (g.chain && g.m <= kChainRows) {
    plan_chain(g, p);
    return p;
  }
  const bool many = g.m >= (g.pairs ? kManyRowsPairs : kManyRows) && g.k > kStripDepth && g.k <= kWholeDepth;
  if (g.chain || g.panels || many) {
    plan_strips(g, threads, p);
    return p;
  }
  int64_t row_limit = max_(kRows, min_(kUnitRows, kUnitFloats / max_(1, 16 * p.steps)));
  p.row_units = max_(1, div_up(g.m, row_limit));
  p.unit_rows = div_up(g.m, p.row_units);
  int64_t tiles = div_up(p.unit_rows, kRows);
  p.stream = g.m <= kStreamRows && g.w_row == 1 && g.w_col != 1;
  p.across = g.n > 16 && g.k > 0 && !p.stream &&
             (g.w_col != 1 ? g.k <= kShort : g.k <= kShortTransposed && g.m >= 32);
  p.pack_w = g.w_col != 1 || tiles >= (g.in_type == DType::f32 ? 6 : 4);
  int64_t chunks = p.stream || (tiles == 1 && !p.pack_w) ? 1 : max_(1, div_up(p.steps, kChunk));
  p.chunk = max_(1, div_up(p.steps, chunks));
  if (p.stream) p.cols = kStreamCols;
  else if (p.across) p.cols = kCols;
  else p.cols = g.batch * p.row_units * div_up(g.n, kCols) < 2 * threads ? 16 : kCols;
  p.col_blocks = div_up(g.n, p.cols);
  bool in_place = g.m == 1 && g.in_type == DType::f32 && g.x_col == 1 && g.k % 16 == 0;
  p.unit_floats = in_place ? 0 : p.unit_rows * p.steps * 16;
  int64_t acc_rows = p.chunk >= p.steps ? kRows : p.unit_rows;
  p.pieces = p.steps ? div_up(p.steps, p.chunk) : 0;
  p.scratch_floats = 16 * p.cols * (p.stream   ? p.unit_rows
                                    : p.across ? p.steps
                                               : acc_rows + (p.pack_w ? p.chunk : 0));
  return p;
}

// ---- the register tile ----
// A block of w: column n starts at base + n / panel_cols * panel + n % panel_cols * row.
template <class W>
struct Block {
  const W* base;
  int64_t panel, row, step;
  int64_t cols;
  int64_t steps;  // of this chunk
  int tail;       // elements of the last step (16 when the block is padded)
  const W* next;  // where reading goes on after the last panel
};

template <class W, int R>
void row_tile(const float* x, const Block<W>& w, float* acc, int64_t acc_row, bool first) {
  constexpr int C = cols_for(R);
  for (int64_t n = 0; n < w.cols; n += C) {
    const W* q[C];
    for (int j = 0; j < C; ++j) {
      int64_t col = min_(n + j, w.cols - 1);
      q[j] = w.base + col / C * w.panel + col % C * w.row;
    }
    F16 a[R][C];
    float* at = acc + 16 * n;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) a[i][j] = first ? zero() : load_f32(at + i * acc_row + 16 * j);
    // Rows of w are short for a hardware prefetcher: ask for the next panel while this one is used.
    const W* ahead = n + C < w.cols ? q[0] + w.panel : w.next;
    const float* xs = x;
    int64_t full = w.tail == 16 ? w.steps : w.steps - 1, o = 0;
    for (int64_t s = 0; s < full; ++s, o += w.step, xs += 16 * R) {
      F16 xv[R];
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) xv[i] = load_f32(xs + 16 * i);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        F16 wv = load(q[j] + o);
        __builtin_prefetch(ahead + j * w.row + o, 0, 3);
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) a[i][j] = fma(xv[i], wv, a[i][j]);
      }
    }
    if (full < w.steps) {
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        F16 wv = load_part(q[j] + o, w.tail);
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) a[i][j] = fma(load_f32(xs + 16 * i), wv, a[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) store_f32(at + i * acc_row + 16 * j, a[i][j]);
  }
}

template <class W>
void row_tile_of(int rows, const float* x, const Block<W>& w, float* acc, int64_t acc_row, bool first) {
  switch (rows) {
    case 1: return row_tile<W, 1>(x, w, acc, acc_row, first);
    case 2: return row_tile<W, 2>(x, w, acc, acc_row, first);
#if !defined(SB_ISA_scalar)
    case 3: return row_tile<W, 3>(x, w, acc, acc_row, first);
#endif
#if defined(SB_ISA_avx512)
    case 4: return row_tile<W, 4>(x, w, acc, acc_row, first);
    case 5: return row_tile<W, 5>(x, w, acc, acc_row, first);
    case 6: return row_tile<W, 6>(x, w, acc, acc_row, first);
#endif
  }
}

// ---- packing ----
template <class T>
void pack_x(const GemmArgs& g, const GemmPlan& p, int64_t unit, int64_t chunk, float* packed) {
  Unit u = unit_at(g, p, unit);
  if (p.strips) return pack_tile<T>(g, p, u, chunk, packed);
  int64_t s0 = chunk * p.chunk, steps = min_(p.chunk, p.steps - s0);
  float* base = packed + 16 * s0 * u.rows;
  Cut tiles = p.stream ? Cut{u.rows, 1} : tiles_of(u.rows);
  int64_t t = 0;
  for (int64_t r0 = 0; r0 < u.rows; r0 += 16) {
    int rows = static_cast<int>(min_(16, u.rows - r0));
    Place to[16];
    for (int r = 0; r < rows; ++r) {
      while (tiles.at(t + 1) <= r0 + r) ++t;
      int64_t first = tiles.at(t), size = tiles.at(t + 1) - first;
      to[r] = {base + 16 * (first * steps + (r0 + r - first)), 16 * size};
    }
    const T* src = static_cast<const T*>(g.x) + u.batch * g.x_batch + (u.row0 + r0) * g.x_row;
    pack_rows(src, g.x_row, g.x_col, rows, 16 * s0, g.k, steps, to);
  }
}

void pack(const GemmArgs& g, const GemmPlan& p, int64_t unit, int64_t chunk, float* packed) {
  switch (g.in_type) {
    case DType::f32: return pack_x<float>(g, p, unit, chunk, packed);
    case DType::bf16: return pack_x<bf16>(g, p, unit, chunk, packed);
    case DType::f16: return pack_x<f16>(g, p, unit, chunk, packed);
  }
}

// ---- a task ----
template <class T>
void pack_w(const T* w, const GemmArgs& g, int64_t cols, int64_t s0, int64_t steps, int panel_cols, float* to) {
  for (int64_t n0 = 0; n0 < cols; n0 += 16) {
    int n = static_cast<int>(min_(16, cols - n0));
    Place place[16];
    for (int j = 0; j < n; ++j) {
      int64_t panel = (n0 + j) / panel_cols, in_panel = (n0 + j) % panel_cols;
      place[j] = {to + 16 * (panel * panel_cols * steps + in_panel), 16 * panel_cols};
    }
    pack_rows(w + n0 * g.w_row, g.w_row, g.w_col, n, 16 * s0, g.k, steps, place);
  }
}

template <class T>
int64_t stream_rows(const GemmArgs& g, const GemmPlan& p, const Unit& u, const float* x, const T* w, int64_t n0,
                    int64_t cols, float* acc) {
  switch (u.rows) {
    case 1: return stream<T, 1>(g, p, u, x, w, n0, cols, acc);
    case 2: return stream<T, 2>(g, p, u, x, w, n0, cols, acc);
    case 3: return stream<T, 3>(g, p, u, x, w, n0, cols, acc);
    default: return stream<T, 4>(g, p, u, x, w, n0, cols, acc);
  }
}

template <class T>
void run_typed(const GemmArgs& g, const GemmPlan& p, int64_t unit, int64_t block, const float* packed, float* scratch,
               PathCheck* check) {
  Unit u = unit_at(g, p, unit);
  int64_t n0 = block * p.cols, cols = min_(p.cols, g.n - n0);
  const T* w = static_cast<const T*>(g.w) + u.batch * g.w_batch + n0 * g.w_row;
  bool keep = p.chunk < p.steps;  // accumulators outlive a chunk
  int64_t acc_row = 16 * p.cols;
  float* acc = scratch;
  float* wp = scratch + acc_row * (keep ? p.unit_rows : kRows);
  if (p.unit_floats == 0) packed = static_cast<const float*>(g.x) + u.batch * g.x_batch;
  Cut tiles = tiles_of(u.rows);
  PathChain paths[kUnitRows];
  const bool whole = p.stream || p.across || p.strips || p.few;  // one piece of code walks all of k
  if (whole) tiles = {u.rows, 1};
  if (check)
    for (int64_t t = 0; t < tiles.parts; ++t) paths[t].start(check->seed, 16);
  if (whole) {
    int64_t end = p.stream   ? stream_rows(g, p, u, packed, w, n0, cols, scratch)
                  : p.across ? across(g, p, u, packed, w, n0, cols, scratch)
                  : p.few    ? chain(g, u.batch, w, n0, cols)
                  : p.slabs  ? slabs(g, p, u, w, n0, cols, scratch)
                             : strips(g, p, u, packed, w, n0, cols, scratch);
    if (check) {
      paths[0].extend(0, end);
      check->report(paths[0].digest() == check->expected, u.rows * cols);
    }
    return;
  }
  int64_t s0 = 0;
  do {
    int64_t steps = min_(p.chunk, p.steps - s0);
    bool last = s0 + steps >= p.steps;
    // Tiles of different height have panels of different width, so a packed block has one layout
    // for each width in use; heights differ by one at most.
    int packed_for = 0;
    for (int64_t t = 0; t < tiles.parts; ++t) {
      int64_t r0 = tiles.at(t);
      int rows = static_cast<int>(tiles.at(t + 1) - r0), c = cols_for(rows);
      const float* x = packed + 16 * (s0 * u.rows + r0 * steps);
      float* a = keep ? acc + r0 * acc_row : acc;
      if (p.pack_w) {
        if (packed_for != c) pack_w(w, g, cols, s0, steps, packed_for = c, wp);
        Block<float> b{wp, 16 * c * steps, 16, 16 * c, cols, steps, 16, wp};
        row_tile_of(rows, x, b, a, acc_row, s0 == 0);
      } else {
        int tail = last && g.k % 16 ? static_cast<int>(g.k % 16) : 16;
        Block<T> b{w + 16 * s0, c * g.w_row, g.w_row, 16, cols, steps, tail,
                   last ? w + p.cols * g.w_row : w + 16 * (s0 + steps)};
        row_tile_of(rows, x, b, a, acc_row, s0 == 0);
      }
      if (check) {
        paths[t].extend(16 * s0, min_(g.k, 16 * (s0 + steps)));
        if (last) check->report(paths[t].digest() == check->expected, rows * cols);
      }
      if (last)
        for (int i = 0; i < rows; ++i) finish_row(g, a + i * acc_row, u.batch, u.row0 + r0 + i, n0, cols);
    }
    s0 += steps;
  } while (s0 < p.steps);
}

void run(const GemmArgs& g, const GemmPlan& p, int64_t unit, int64_t block, const float* packed, float* scratch,
         PathCheck* check) {
  switch (g.in_type) {
    case DType::f32: return run_typed<float>(g, p, unit, block, packed, scratch, check);
    case DType::bf16: return run_typed<bf16>(g, p, unit, block, packed, scratch, check);
    case DType::f16: return run_typed<f16>(g, p, unit, block, packed, scratch, check);
  }
}

}  // namespace

const GemmKernels& gemm_kernels();
const GemmKernels& gemm_kernels() {
  static const GemmKernels table{plan, pack, run};
  return table;
}

}  // namespace samebits::SB_ISA
