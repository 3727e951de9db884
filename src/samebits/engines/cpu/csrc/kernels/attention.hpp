// Attention kernels: the arithmetic of ops/attention/reference.py, in two schedules with equal bits.
#pragma once
#include <cstdint>

#include "path.hpp"

namespace samebits {

constexpr int64_t kLeaf = 512;   // keys a leaf holds: part of the contract
constexpr int kMaxRows = 32;     // rows one task may hold

/// The visible keys of a task in order; element offset of key number i from `base`.
struct KeyView {
  const void* base;
  int64_t stride;         // used when table is null
  const int64_t* table;
  int64_t at(int64_t i) const { return table ? table[i] : i * stride; }
};

/// Query rows that share a KV head and whose visible keys are the first count[r] of one list.
struct AttentionTask {
  int rows;
  int64_t d, dv;
  const void* q[kMaxRows];
  void* out[kMaxRows];
  float* lse[kMaxRows];          // null: not asked for
  int64_t count[kMaxRows];
  const float* bias[kMaxRows];   // additive mask of the row by key position; null: none in the task
  const float* sink[kMaxRows];   // null: no sink
  const int32_t* position;       // key number -> key position, for bias; null: first + i
  int64_t first;
  KeyView k, v;
  float scale;      // x = s * scale, or with softcap tanh(s * scale) * cap
  float cap;        // 0: no softcap
  bool wide;        // probabilities stay in fp32, whatever the type of the values
  PathCheck* check; // null: paths are not checked
};

struct AttentionKernels {
  int block_rows;   // rows `block` takes at most
  int few_rows;     // rows `few` takes at most
  int64_t (*block_scratch)(int64_t d, int64_t dv);  // floats
  int64_t (*few_scratch)(int64_t d, int64_t dv);
  /// The whole of a task, rows in the lanes.
  void (*block)(int dtype, const AttentionTask& t, float* scratch);
  /// One leaf of a task, keys and then d in the lanes: writes m[rows], l[rows], o[rows][dv]. With a check,
  /// a seal follows: each row's leaf in the path, and the sum of the integer views of all before it.
  void (*few)(int dtype, const AttentionTask& t, int64_t leaf, float* partial, float* scratch);
  /// Folds the leaves that `few` wrote one after the other and stores the result.
  void (*finish)(int dtype, const AttentionTask& t, float* partials);
};

inline int64_t values_size(const AttentionTask& t) { return t.rows * (t.dv + 2); }
/// Floats of a leaf; the seal takes one a row and two for the sum.
inline int64_t partial_size(const AttentionTask& t) { return values_size(t) + (t.check ? t.rows + 2 : 0); }

}  // namespace samebits
