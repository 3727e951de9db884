// Many rows: vectors along n, each lane's chain a product of its own. Included by gemm.cpp only.
//
// The k of one lane of lanes(16) are every sixteenth, so a product is sixteen products of depth K / 16, and the fold
// adds them up. Both operands are laid out lane by lane: x in tiles [lane][unit][row], once a unit of rows, and w in
// strips [lane][unit][column], once a task, from where it lies or from packed panels; two lanes whose sums the fold adds
// first lie side by side where registers allow. The register tile then is that of any product (Goto and van de Geijn,
// 2008): vectors of w, of x a number after the other, both read in order. Lanes lie in bit-reversed order, in which the
// fold 8-4-2-1 is a binary counter of partial sums. The tree of one chain is one lane that all of k belongs to, cut into
// passes whose accumulators wait in memory; where k is deep, a task packs both operands pass by pass.
#pragma once
#include "kernels/gemm_parts.hpp"
#include "kernels/strip_tile.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr int64_t kTileHead = 16;             // before a tile of x: the range of its numbers
constexpr int64_t kPassSteps = 256;           // of a chain
constexpr int64_t kHeldFloats = 64 << 10;     // of strips that the second-level cache holds
constexpr int64_t kStripsTogether = 4;        // of a task, which meet a tile of x one after the other
constexpr int64_t kTilesTogether = 4;         // share a lane of a strip that it does not hold
constexpr int64_t kStripUnitRows = 1024;
constexpr int kLanePasses = 16 / kStripLanes;

int64_t strip_units(const GemmArgs& g, int64_t steps) { return g.pairs ? (steps + 1) / 2 : steps; }
int64_t levels(const GemmArgs& g) { return g.chain ? 1 : __builtin_ctz(2 * kLanePasses); }  // of the fold
Cut strip_tiles(int64_t rows) { return {rows, div_up(rows, kStripRows)}; }
int64_t strip_depth(const GemmArgs& g, const GemmPlan& p) { return 16 * strip_units(g, p.steps); }
int64_t tile_floats(const GemmArgs& g, const GemmPlan& p) { return kTileHead + kStripWidth * strip_depth(g, p); }

constexpr int64_t kSlab = 16 * kPassSteps;
constexpr int64_t kSlabTile = kTileHead + kStripWidth * kSlab;

void plan_slabs(const GemmArgs& g, GemmPlan& p) {
  p.slabs = true;
  p.row_units = div_up(g.m, 4 * kStripRows);
  p.unit_rows = div_up(g.m, p.row_units);
  p.cols = kStripCols;
  p.col_blocks = div_up(g.n, p.cols);
  p.together = strip_tiles(p.unit_rows).parts;
  p.scratch_floats = p.together * (kTileFloats + kSlabTile) + kSlab * p.cols;
}

void plan_strips(const GemmArgs& g, int threads, GemmPlan& p) {
  p.strips = true;
  if (g.chain && g.k > kWholeDepth) return plan_slabs(g, p);
  const int64_t depth = max_(1, strip_depth(g, p)), all = div_up(g.n, kStripCols);
  // Enough tasks for all threads, unless a strip would be packed for few rows.
  const int64_t tasks = threads > 1 ? 4 * threads : 1;
  int64_t limit = min_(max_(kStripRows, kUnitFloats / depth), kStripUnitRows);
  limit = min_(limit, max_(4 * kStripRows, div_up(g.m, div_up(tasks, g.batch * all))));
  p.row_units = max_(1, div_up(g.m, limit));
  p.unit_rows = div_up(g.m, p.row_units);
  int64_t strips = min_(kStripsTogether, kHeldFloats / (depth * kStripCols));
  strips = max_(1, min_(strips, g.batch * p.row_units * all / tasks));
  p.cols = strips * kStripCols;
  p.col_blocks = div_up(g.n, p.cols);
  p.pieces = strip_tiles(p.unit_rows).parts;
  p.unit_floats = p.pieces * tile_floats(g, p);
  p.together = g.chain ? p.pieces : depth * kStripCols > kHeldFloats ? kTilesTogether : 1;
  p.scratch_floats = p.together * levels(g) * kTileFloats + depth * p.cols;
}

// Where the lanes of a unit of `width` words go.
struct Slots {
  float* to;
  int64_t step, lane[16];
  Slots(const GemmArgs& g, float* to, int64_t width, int64_t units)
      : to(to), step(width * (g.chain ? 16 : kStripLanes)) {
    for (int l = 0; l < 16; ++l) {
      const int at = kOrder[l];
      lane[l] = width * (g.chain ? l : at / kStripLanes * units * kStripLanes + at % kStripLanes);
    }
  }
  template <class Store>
  void put(int64_t unit, const F16* v, const Store& store) const {
    float* at = to + unit * step;
#pragma GCC unroll 16
    for (int l = 0; l < 16; ++l) store(at + lane[l], v[l]);
  }
};

template <class T>
void pack_tile(const GemmArgs& g, const GemmPlan& p, const Unit& u, int64_t tile, float* packed) {
  const Cut tiles = strip_tiles(u.rows);
  if (tile >= tiles.parts) return;
  const int64_t r0 = tiles.at(tile), units = strip_units(g, p.steps);
  const int rows = static_cast<int>(tiles.at(tile + 1) - r0);
  const T* x = static_cast<const T*>(g.x) + u.batch * g.x_batch + (u.row0 + r0) * g.x_row;
  float* to = packed + tile * tile_floats(g, p) + kTileHead;
  const Slots slots(g, to, kStripWidth, units);
  Exponents seen;
  for (int64_t s = 0, done; s < units; s += done) {
    F16 v[16];
    done = g.x_row != 1 && s + 1 < units ? 2 : 1;  // two units fill a square of 16
    if (done == 2) turned_two(x, g.x_row, g.x_col, rows, s, g.k, g.pairs, v);
    else turned(x, g.x_row, g.x_col, rows, s, g.k, g.pairs, v);
    for (int l = 0; g.pairs && l < 16; ++l) seen.see(as_int(v[l]));
    slots.put(s, v, store_lower);
    if (done == 2) slots.put(s + 1, v, store_upper);
  }
  const Range range = seen.range();
  std::memcpy(to - kTileHead, &range, sizeof range);
}

template <class T>
Range pack_strip(const GemmArgs& g, const T* w, int64_t cols, int64_t units, float* to) {
  const int64_t panels = div_up(cols, 16);
  Exponents seen;
  for (int64_t c = 0; c < panels; ++c) {
    const Slots slots(g, to + 16 * c, 16 * panels, units);
    for (int64_t s = 0; s < units; ++s) {
      F16 v[16];
      turned(w + 16 * c * g.w_row, g.w_row, g.w_col, static_cast<int>(min_(16, cols - 16 * c)), s, g.k, g.pairs, v);
      for (int l = 0; g.pairs && l < 16; ++l) seen.see(as_int(v[l]));
      slots.put(s, v, store_f32);
    }
  }
  return seen.range();
}

// The same from panels that `pack_weight` made.
template <class T>
void copy_strip(const GemmArgs& g, int64_t n0, int64_t cols, int64_t units, float* to) {
  const PackedShape shape(g.in_type, g.n, g.k);
  const int64_t panels = div_up(cols, 16);
  for (int64_t c = 0; c < panels; ++c) {
    const Slots slots(g, to + 16 * c, 16 * panels, units);
    const auto* w = reinterpret_cast<const T*>(static_cast<const char*>(g.w) + (n0 / 16 + c) * shape.panel_bytes);
    for (int64_t s = 0; s < units; ++s, w += 256) {
      F16 v[16];
      for (int l = 0; l < 16; ++l) v[l] = load(w + 16 * l);
      slots.put(s, v, store_f32);
    }
  }
}

void run_strip(const GemmArgs& g, const StripTile& t, Range x, Range w) {
#if defined(SB_ISA_avx512) && defined(SB_HAVE_dot)
  if (g.pairs) return dot_keeps_bits(x, w) ? run_dot_strip(t) : strip_run<Pair, kStripLanes>(t);
#endif
  if (g.chain) strip_run<Single<float>, 1>(t);
  else strip_run<Single<float>, kStripLanes>(t);
}

void prefetch_out(const GemmArgs& g, int64_t b, int64_t row, int64_t col, int64_t cols) {
  if (g.out_col != 1) return;
  const int64_t size = g.out_type == DType::f32 ? 4 : 2;
  const char* at = static_cast<const char*>(g.out) + size * (b * g.out_batch + row * g.out_row + col);
  for (int64_t i = 0; i < size * cols; i += 64) __builtin_prefetch(at + i, 1);
}

struct Strip {
  const float* words;
  Range range;
  int64_t n0, cols;
};

// Tiles t0 to t1 of x by a strip, from sums that an earlier slab left, and to the end. Returns where k ended.
int64_t tiles_by_strip(const GemmArgs& g, const GemmPlan& p, const Unit& u, const float* packed, const Strip& strip,
                       int64_t t0, int64_t t1, float* scratch, bool earlier = false, bool last = true) {
  const int64_t units = strip_units(g, p.steps), depth = 16 * units, panels = div_up(strip.cols, 16);
  const int64_t held_floats = levels(g) * kTileFloats;
  const int64_t lanes = g.chain ? 1 : kStripLanes;
  const int64_t all = g.chain ? g.k : depth, in_pass = g.chain ? 16 * kPassSteps : kStripLanes * units;
  const int64_t passes = g.chain ? max_(1, div_up(all, in_pass)) : kLanePasses;
  const Cut tiles = strip_tiles(u.rows);
  // Results go where nobody has read: ask for the lines early, or the sums' stores wait behind theirs.
  for (int64_t r = tiles.at(t0); last && r < tiles.at(t1); ++r) prefetch_out(g, u.batch, u.row0 + r, strip.n0, strip.cols);
  for (int64_t pass = 0; pass < passes; ++pass)
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t at = pass * in_pass, rows = tiles.at(t + 1) - tiles.at(t);
      const float* x = packed + t * tile_floats(g, p) + kTileHead;
      float* held = scratch + (t - t0) * held_floats;
      Range range;
      std::memcpy(&range, x - kTileHead, sizeof range);
      // What a pass sums up goes to the first level that is free, with those below it.
      const int level = g.chain ? 0 : __builtin_ctz(~static_cast<unsigned>(pass));
      run_strip(g, {static_cast<int>(rows), static_cast<int>(panels), x + at * kStripWidth,
                    strip.words + at * 16 * panels, min_(in_pass, all - at) / lanes, g.pairs && p.steps % 2,
                    g.chain && (pass || earlier) ? held : nullptr, held, level},
                range, strip.range);
    }
  for (int64_t t = t0; last && t < t1; ++t) {
    const float* sum = scratch + (t - t0 + 1) * held_floats - kTileFloats;
    for (int64_t r = tiles.at(t); r < tiles.at(t + 1); ++r)
      for (int64_t c = 0; c < panels; ++c, sum += 16)
        finish(g, load_f32(sum), u.batch, u.row0 + r, strip.n0 + 16 * c,
               static_cast<int>(min_(16, strip.cols - 16 * c)));
  }
  return min_(g.k, g.chain ? passes * in_pass : 16 * p.steps);
}

// A deep chain, slab by slab. Returns where k ended.
template <class T>
int64_t slabs(const GemmArgs& g, const GemmPlan& p, const Unit& u, const T* w, int64_t n0, int64_t cols,
              float* scratch) {
  GemmArgs part = g;
  GemmPlan plan = p;
  const int64_t tiles = strip_tiles(u.rows).parts;
  float *x = scratch + p.together * kTileFloats, *words = x + p.together * kSlabTile;
  for (int64_t k = 0; k < g.k; k += kSlab) {
    part.k = min_(kSlab, g.k - k);
    part.x = static_cast<const T*>(g.x) + k * g.x_col;
    plan.steps = div_up(part.k, 16);
    for (int64_t t = 0; t < tiles; ++t) pack_tile<T>(part, plan, u, t, x);
    const Range range = pack_strip(part, w + k * g.w_col, cols, plan.steps, words);
    tiles_by_strip(part, plan, u, x, {words, range, n0, cols}, 0, tiles, scratch, k > 0, k + part.k == g.k);
  }
  return g.k;
}

// Returns where k ended.
template <class T>
int64_t strips(const GemmArgs& g, const GemmPlan& p, const Unit& u, const float* packed, const T* w, int64_t n0,
               int64_t cols, float* scratch) {
  const int64_t units = strip_units(g, p.steps), count = div_up(cols, kStripCols);
  float* words = scratch + p.together * levels(g) * kTileFloats;
  Strip strip[kStripsTogether];
  for (int64_t i = 0; i < count; ++i, words += kStripCols * 16 * units) {
    const int64_t first = i * kStripCols, width = min_(kStripCols, cols - first);
    Range range{255, 0};
    if (g.panels) copy_strip<T>(g, n0 + first, width, units, words);
    else range = pack_strip(g, w + first * g.w_row, width, units, words);
    strip[i] = {words, range, n0 + first, width};
  }
  const int64_t parts = strip_tiles(u.rows).parts;
  int64_t end = 0;
  for (int64_t t = 0; t < parts; t += p.together)
    for (int64_t i = 0; i < count; ++i)
      end = tiles_by_strip(g, p, u, packed, strip[i], t, min_(parts, t + p.together), scratch);
  return end;
}

}  // namespace
}  // namespace samebits::SB_ISA
