// Matrix products. The tree is lanes(16) over k for every output; see gemm.hpp.
//
// Loops, from the outside: task (rows of a unit x columns of a block), chunk of K, tile of rows,
// panel of columns, step of 16 k. The accumulators of a task, 16 lanes for each output, wait in the
// second-level cache between chunks; the last chunk folds and writes. x is packed once per unit, w
// once per task, or read where it lies when few rows would share the packed copy.
#include "kernels/gemm.hpp"

#include "vec.hpp"

namespace samebits::SB_ISA {
namespace {

// Register tile: kRows x kCols(rows) accumulators. Columns divide 16.
#if defined(SB_ISA_avx512)
constexpr int kRows = 6;
constexpr int cols_for(int rows) { return rows <= 3 ? 8 : 4; }
#elif defined(SB_ISA_scalar)
constexpr int kRows = 2;
constexpr int cols_for(int) { return 2; }
#else
constexpr int kRows = 3;
constexpr int cols_for(int rows) { return rows == 1 ? 4 : 2; }
#endif
constexpr int64_t kChunk = 48;          // steps: a tile of x stays in the first-level cache
constexpr int64_t kUnitRows = 132;      // accumulators and x of a unit stay in the second level
constexpr int64_t kCols = 32;            // also the width of the two vectors in across_tile
constexpr int64_t kUnitFloats = 4 << 20;
constexpr int64_t kStreamRows = 4;      // up to so many rows, w with contiguous columns is not transposed
constexpr int64_t kStreamCols = 128;
// Up to this K, turning w round costs less than folding lanes across a register (measured); less
// if w has to be transposed for it.
constexpr int64_t kShort = 768, kShortTransposed = 256;

int64_t min_(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- how a range is cut evenly into parts ----
struct Cut {
  int64_t size, parts;
  int64_t at(int64_t i) const { return size * i / parts; }
};
Cut tiles_of(int64_t rows) { return {rows, div_up(rows, kRows)}; }

struct Unit {
  int64_t batch, row0, rows;
};
Unit unit_at(const GemmArgs& g, const GemmPlan& p, int64_t unit) {
  Cut cut{g.m, p.row_units};
  int64_t i = unit % p.row_units;
  return {unit / p.row_units, cut.at(i), cut.at(i + 1) - cut.at(i)};
}

GemmPlan plan(const GemmArgs& g, int threads) {
  GemmPlan p{};
  p.steps = div_up(g.k, 16);
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
  p.scratch_floats = 16 * p.cols * (p.stream   ? p.unit_rows
                                    : p.across ? p.steps
                                               : acc_rows + (p.pack_w ? p.chunk : 0));
  return p;
}

// ---- packing ----
struct Place {  // where a row goes: first step, distance between steps
  float* at;
  int64_t step;
};

// Widens rows x [k0, k0 + 16 * steps) to fp32, missing k as +0.
template <class T>
void pack_rows(const T* src, int64_t row, int64_t col, int rows, int64_t k0, int64_t k_end, int64_t steps,
               const Place* to) {
  if (col == 1) {
    for (int r = 0; r < rows; ++r) {
      const T* s = src + r * row + k0;
      float* d = to[r].at;
      int64_t full = min_(steps, (k_end - k0) / 16);
      for (int64_t i = 0; i < full; ++i, d += to[r].step) store_f32(d, load(s + 16 * i));
      if (full < steps) store_f32(d, load_part(s + 16 * full, static_cast<int>(k_end - k0 - 16 * full)));
    }
    return;
  }
  for (int64_t i = 0; i < steps; ++i) {
    int64_t k = k0 + 16 * i;
    int valid = static_cast<int>(min_(16, k_end - k));
    F16 v[16];
    if (row == 1) {
      for (int j = 0; j < 16; ++j)
        v[j] = j >= valid ? zero() : rows == 16 ? load(src + (k + j) * col) : load_part(src + (k + j) * col, rows);
      transpose16(v);
    } else {
      for (int r = 0; r < rows; ++r) {
        float t[16] = {};
        for (int j = 0; j < valid; ++j) t[j] = to_float(src[r * row + (k + j) * col]);
        v[r] = load_f32(t);
      }
    }
    for (int r = 0; r < rows; ++r) store_f32(to[r].at + i * to[r].step, v[r]);
  }
}

template <class T>
void pack_x(const GemmArgs& g, const GemmPlan& p, int64_t unit, int64_t chunk, float* packed) {
  Unit u = unit_at(g, p, unit);
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

// ---- the end: fold, alpha, beta * c, one rounding ----
template <class T>
F16 load_c(const T* c, int64_t col, int n) {
  if (col == 1) return n == 16 ? load(c) : load_part(c, n);
  if (col == 0) return set1(to_float(*c));
  float t[16] = {};
  for (int j = 0; j < n; ++j) t[j] = to_float(c[j * col]);
  return load_f32(t);
}
template <class T>
void store_out(T* out, int64_t col, F16 v, int n) {
  if (col == 1) {
    if (n == 16) store(out, v); else store_part(out, v, n);
    return;
  }
  float t[16];
  store_f32(t, v);
  for (int j = 0; j < n; ++j) store1(out + j * col, t[j]);
}

// Columns col .. col + n - 1 of a row, from their folded accumulators.
void finish(const GemmArgs& g, F16 v, int64_t b, int64_t row, int64_t col, int n) {
  float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  if (alpha != 1.0f) v = mul(set1(alpha), v);
  if (g.c && beta != 0.0f) {
    int64_t at = b * g.c_batch + row * g.c_row + col * g.c_col;
    F16 c = g.c_type == DType::f32    ? load_c(static_cast<const float*>(g.c) + at, g.c_col, n)
            : g.c_type == DType::bf16 ? load_c(static_cast<const bf16*>(g.c) + at, g.c_col, n)
                                      : load_c(static_cast<const f16*>(g.c) + at, g.c_col, n);
    if (beta != 1.0f) c = mul(set1(beta), c);
    v = add(v, c);
  }
  int64_t at = b * g.out_batch + row * g.out_row + col * g.out_col;
  switch (g.out_type) {
    case DType::f32: store_out(static_cast<float*>(g.out) + at, g.out_col, v, n); break;
    case DType::bf16: store_out(static_cast<bf16*>(g.out) + at, g.out_col, v, n); break;
    case DType::f16: store_out(static_cast<f16*>(g.out) + at, g.out_col, v, n); break;
  }
}

void finish_row(const GemmArgs& g, const float* acc, int64_t b, int64_t row, int64_t n0, int64_t cols) {
  for (int64_t j = 0; j < cols; j += 16) {
    F16 a[16];
    for (int i = 0; i < 16; ++i) a[i] = load_f32(acc + 16 * (j + i));
    finish(g, fold16(a), b, row, n0 + j, static_cast<int>(min_(16, cols - j)));
  }
}

// ---- few rows, contiguous columns: vectors along n, one accumulator for each of the 16 lanes ----
// The same chains as in the tile, held the other way round: acc[row][lane][column]. w is read once,
// in order, and the fold needs no shuffles.
template <class T, int R, int G>
void stream_steps(const float* x, const T* w, int64_t w_row, int64_t lanes, int64_t cols, float* acc, bool first) {
  const int64_t acc_lane = kStreamCols, acc_row = 16 * acc_lane;
  for (int64_t l = 0; l < 16; ++l) {
    const T* q = w + l * w_row;
    const bool there = l < lanes;  // past K both operands are +0
    F16 xv[R][G];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int s = 0; s < G; ++s) xv[r][s] = there ? set1(x[16 * (s * R + r) + l]) : zero();
    for (int64_t j = 0; j < cols; j += 16) {
      int n = static_cast<int>(min_(16, cols - j));
      F16 wv[G];
#pragma GCC unroll 8
      for (int s = 0; s < G; ++s) {
        const T* at = q + 16 * s * w_row + j;
        wv[s] = !there ? zero() : n == 16 ? load(at) : load_part(at, n);
        if (there) __builtin_prefetch(at + 2 * w_row, 0, 3);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* to = acc + r * acc_row + l * acc_lane + j;
        F16 a = first ? zero() : load_f32(to);
#pragma GCC unroll 8
        for (int s = 0; s < G; ++s) a = fma(xv[r][s], wv[s], a);
        store_f32(to, a);
      }
    }
  }
}

template <class T, int R>
void stream(const GemmArgs& g, const GemmPlan& p, const Unit& u, const float* x, const T* w, int64_t n0, int64_t cols,
            float* acc) {
  constexpr int64_t kGroup = 4;
  int64_t full = g.k / 16, s = 0;
  for (; s + kGroup <= full; s += kGroup)
    stream_steps<T, R, kGroup>(x + 16 * s * R, w + 16 * s * g.w_col, g.w_col, 16, cols, acc, s == 0);
  for (; s < p.steps; ++s) {
    int64_t lanes = min_(16, g.k - 16 * s);
    stream_steps<T, R, 1>(x + 16 * s * R, w + 16 * s * g.w_col, g.w_col, lanes, cols, acc, s == 0);
  }
  for (int r = 0; r < R; ++r)
    for (int64_t j = 0; j < cols; j += 16) {
      F16 a[16];
      for (int l = 0; l < 16; ++l) a[l] = p.steps ? load_f32(acc + (16 * r + l) * kStreamCols + j) : zero();
      for (int width = 8; width >= 1; width /= 2)
        for (int l = 0; l < width; ++l) a[l] = add(a[l], a[l + width]);
      finish(g, a[0], u.batch, u.row0 + r, n0 + j, static_cast<int>(min_(16, cols - j)));
    }
}

// ---- short K: vectors along n, one lane after the other ----
// Turns a block of w round: [k][column], both filled up with +0.
template <class T>
void pack_across(const T* w, const GemmArgs& g, int64_t steps, int64_t cols, float* to) {
  for (int64_t s = 0; s < steps; ++s) {
    int valid = static_cast<int>(min_(16, g.k - 16 * s));
    for (int64_t j = 0; j < cols; j += 16) {
      int n = static_cast<int>(min_(16, cols - j));
      const T* at = w + j * g.w_row + 16 * s * g.w_col;
      F16 v[16];
      if (g.w_row == 1) {
        for (int k = 0; k < 16; ++k)
          v[k] = k >= valid ? zero() : n == 16 ? load(at + k * g.w_col) : load_part(at + k * g.w_col, n);
      } else {
        for (int c = 0; c < 16; ++c) {
          const T* row = at + c * g.w_row;
          if (c >= n) v[c] = zero();
          else if (g.w_col == 1) v[c] = valid == 16 ? load(row) : load_part(row, valid);
          else {
            float t[16] = {};
            for (int k = 0; k < valid; ++k) t[k] = to_float(row[k * g.w_col]);
            v[c] = load_f32(t);
          }
        }
        transpose16(v);
      }
      for (int k = 0; k < 16; ++k) store_f32(to + (16 * s + k) * kCols + j, v[k]);
    }
  }
}

// Lanes are visited in bit-reversed order, so that the fold 8-4-2-1 is a binary counter.
template <int R>
void across_tile(const GemmArgs& g, const Unit& u, int64_t row, const float* x, const float* w, int64_t steps,
                 int64_t n0, int64_t cols) {
  static constexpr uint8_t kOrder[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
  F16 held[5][R][2];
  for (unsigned i = 0; i < 16; ++i) {
    const float *xs = x + kOrder[i], *ws = w + kOrder[i] * kCols;
    F16 a[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r][0] = a[r][1] = zero();
    for (int64_t s = 0; s < steps; ++s, xs += 16 * R, ws += 16 * kCols) {
      F16 w0 = load_f32(ws), w1 = load_f32(ws + 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        F16 xv = set1(xs[16 * r]);
        a[r][0] = fma(xv, w0, a[r][0]);
        a[r][1] = fma(xv, w1, a[r][1]);
      }
    }
    int level = 0;
    for (; (i >> level) & 1u; ++level)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        for (int h = 0; h < 2; ++h) a[r][h] = add(held[level][r][h], a[r][h]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2; ++h) held[level][r][h] = a[r][h];
  }
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < 2 && 16 * h < cols; ++h)
      finish(g, held[4][r][h], u.batch, row + r, n0 + 16 * h, static_cast<int>(min_(16, cols - 16 * h)));
}

template <class T>
void across(const GemmArgs& g, const GemmPlan& p, const Unit& u, const float* packed, const T* w, int64_t n0,
            int64_t cols, float* wp) {
  pack_across(w, g, p.steps, cols, wp);
  Cut tiles = tiles_of(u.rows);
  for (int64_t t = 0; t < tiles.parts; ++t) {
    int64_t r0 = tiles.at(t), row = u.row0 + r0;
    const float* x = packed + 16 * r0 * p.steps;
    switch (tiles.at(t + 1) - r0) {
      case 1: across_tile<1>(g, u, row, x, wp, p.steps, n0, cols); break;
      case 2: across_tile<2>(g, u, row, x, wp, p.steps, n0, cols); break;
#if !defined(SB_ISA_scalar)
      case 3: across_tile<3>(g, u, row, x, wp, p.steps, n0, cols); break;
#endif
#if defined(SB_ISA_avx512)
      case 4: across_tile<4>(g, u, row, x, wp, p.steps, n0, cols); break;
      case 5: across_tile<5>(g, u, row, x, wp, p.steps, n0, cols); break;
      case 6: across_tile<6>(g, u, row, x, wp, p.steps, n0, cols); break;
#endif
    }
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
void run_typed(const GemmArgs& g, const GemmPlan& p, int64_t unit, int64_t block, const float* packed, float* scratch) {
  Unit u = unit_at(g, p, unit);
  int64_t n0 = block * p.cols, cols = min_(p.cols, g.n - n0);
  const T* w = static_cast<const T*>(g.w) + u.batch * g.w_batch + n0 * g.w_row;
  bool keep = p.chunk < p.steps;  // accumulators outlive a chunk
  int64_t acc_row = 16 * p.cols;
  float* acc = scratch;
  float* wp = scratch + acc_row * (keep ? p.unit_rows : kRows);
  if (p.unit_floats == 0) packed = static_cast<const float*>(g.x) + u.batch * g.x_batch;
  if (p.stream) {
    switch (u.rows) {
      case 1: return stream<T, 1>(g, p, u, packed, w, n0, cols, scratch);
      case 2: return stream<T, 2>(g, p, u, packed, w, n0, cols, scratch);
      case 3: return stream<T, 3>(g, p, u, packed, w, n0, cols, scratch);
      default: return stream<T, 4>(g, p, u, packed, w, n0, cols, scratch);
    }
  }
  if (p.across) return across(g, p, u, packed, w, n0, cols, scratch);
  Cut tiles = tiles_of(u.rows);
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
      if (last)
        for (int i = 0; i < rows; ++i) finish_row(g, a + i * acc_row, u.batch, u.row0 + r0 + i, n0, cols);
    }
    s0 += steps;
  } while (s0 < p.steps);
}

void run(const GemmArgs& g, const GemmPlan& p, int64_t unit, int64_t block, const float* packed, float* scratch) {
  switch (g.in_type) {
    case DType::f32: return run_typed<float>(g, p, unit, block, packed, scratch);
    case DType::bf16: return run_typed<bf16>(g, p, unit, block, packed, scratch);
    case DType::f16: return run_typed<f16>(g, p, unit, block, packed, scratch);
  }
}

}  // namespace

const GemmKernels& gemm_kernels();
const GemmKernels& gemm_kernels() {
  static const GemmKernels table{plan, pack, run};
  return table;
}

}  // namespace samebits::SB_ISA
