// out[b, m, n] = round(alpha * acc + beta * c[b, m, n]),  acc over k of x[b, m, k] * w[b, n, k] along the tree
// lanes(16), or along one chain, k ascending from +0.
#pragma once
#include <cstdint>

#include "path.hpp"
#include "types.hpp"

namespace samebits {

/// The deepest k of which x and w are laid out whole (gemm_strips.hpp): what a thread packs stays below 10 MiB.
constexpr int64_t kWholeDepth = 1 << 16;

/// One problem. Strides count elements and may be anything, 0 included.
struct GemmArgs {
  const void *x, *w, *c;  // c may be null
  void* out;
  int64_t batch, m, n, k;
  int64_t x_batch, x_row, x_col;
  int64_t w_batch, w_row, w_col;  // row: n, col: k
  int64_t c_batch, c_row, c_col;
  int64_t out_batch, out_row, out_col;
  DType in_type, c_type, out_type;
  double alpha, beta;  // rounded to fp32 by the task, whose rounding mode is known; beta == 0: c is not read
  bool chain;          // the tree: one chain, else lanes(16)
  bool panels = false;  // w is not a matrix but panels (packed.hpp) of fp32 or fp16
  bool pairs = false;  // of bf16, for many rows: two steps a word, as vdpbf16ps takes them
};

/// The schedule: how the problem is cut. None of it changes a bit.
struct GemmPlan {
  int64_t steps;       // vectors of 16 along K
  int64_t chunk;       // steps that are accumulated before another block of w is touched
  int64_t unit_rows;   // rows of x that share the blocks of w
  int64_t row_units;   // units a batch item
  int64_t cols;        // columns of a task, a multiple of 16
  int64_t col_blocks;  // tasks a unit
  int64_t unit_floats;     // packed x of one unit (0: x is read where it lies)
  int64_t scratch_floats;  // what a task needs: accumulators, packed w
  int64_t pieces;    // in which x of a unit is packed
  int64_t together;  // strips: tiles that take a lane one after the other
  bool pack_w;
  bool across;  // short K: w turned round, vectors along n
  bool strips;  // many rows, or a chain: w in strips, vectors along n
  bool few;     // a chain of few rows: nothing is packed
  bool slabs;   // a deep chain: x and w are packed by the task, a slab of k at a time
  bool stream;  // few rows and contiguous columns of w: vectors along n
};

struct GemmKernels {
  GemmPlan (*plan)(const GemmArgs&, int threads);
  /// Packs piece `piece` of x of unit `unit`, a chunk of k or a tile.
  void (*pack)(const GemmArgs&, const GemmPlan&, int64_t unit, int64_t piece, float* packed);
  /// Computes column block `block` of unit `unit`. With a check, every tile reports the path that it took.
  void (*run)(const GemmArgs&, const GemmPlan&, int64_t unit, int64_t block, const float* packed, float* scratch,
              PathCheck* check);
};

}  // namespace samebits
