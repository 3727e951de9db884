// Softmax and normalisations of rows, and running sums and products.
#pragma once
#include <cstdint>

#include "types.hpp"

namespace samebits {

/// Rows of n contiguous elements, `stride` apart in x and n apart in out.
struct NormArgs {
  const void* x;
  void* out;
  const void* weight;  // n elements each, or null; of type `in` if `same_type`, else fp32
  const void* bias;
  float* mean;         // one per row, or null: where layer_norm puts its statistics
  float* rstd;
  const int64_t* ids;  // token_logprob: one column per row; null: logsumexp (of the wide tree)
  int64_t rows, n, stride;
  float eps;
  DType in, to;
  bool same_type, log;
  bool wide;           // the tree: see row_tree.hpp
};

/// x[outer, n, inner] contiguous, m and s[outer, inner]: the last pass of a softmax along n.
struct SoftmaxApplyArgs {
  const void* x;
  void* out;
  const float *m, *s;
  int64_t outer, n, inner;
  DType in, to;
  bool log;
};

/// x[batch, channels, space] contiguous. Statistics: one per channel, or one per (batch, group).
struct AffineArgs {
  const void* x;
  void* out;
  const float *mean, *rstd, *weight, *bias;  // weight and bias: one per channel, or null
  int64_t channels, space, groups;           // groups = 0: statistics per channel
  DType type;
};

/// x[outer, n, inner] contiguous; out likewise.
struct ScanArgs {
  const void* x;
  void* out;
  int64_t n, inner;
  DType in, to;
  bool product;
};

struct NormKernels {
  void (*softmax)(const NormArgs& a, int64_t r0, int64_t r1);
  void (*softmax_apply)(const SoftmaxApplyArgs& a, int64_t outer, int64_t k0, int64_t k1);
  void (*token_logprob)(const NormArgs& a, int64_t r0, int64_t r1);
  void (*rms_norm)(const NormArgs& a, int64_t r0, int64_t r1);
  void (*layer_norm)(const NormArgs& a, int64_t r0, int64_t r1);
  /// out = 1 / sqrt(var + eps), elementwise.
  void (*reciprocal_deviation)(const float* var, float* out, int64_t n, float eps);
  /// Channels [c0, c1) of all batches, counted through: c = batch * channels + channel.
  void (*affine)(const AffineArgs& a, int64_t c0, int64_t c1);
  /// Lines [u0, u1), counted through: u = outer * inner + position.
  void (*scan)(const ScanArgs& a, int64_t u0, int64_t u1);
};
}  // namespace samebits
