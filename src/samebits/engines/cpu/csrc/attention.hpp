// The attention driver: cuts a call into tasks and gives each a schedule. No arithmetic happens here.
#pragma once
#include <cstdint>

#include "kernels/attention.hpp"

namespace samebits {

struct Strides {
  int64_t batch = 0, head = 0, row = 0;  // elements
};

enum class MaskKind : int { none = 0, boolean = 1, additive = 2 };

/// Dense, varlen (cu_q and cu_k) or paged (block_table and kv_len) attention. The last dimension of
/// q, k, v, out and mask is contiguous.
struct AttentionCall {
  int dtype = 0;
  bool wide = false;  // probabilities are not rounded to the type of the values
  const char *q = nullptr, *k = nullptr, *v = nullptr;
  char* out = nullptr;
  float* lse = nullptr;
  int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, d = 0, dv = 0;
  Strides qs, ks, vs, os, ls;
  float scale = 1.0f, cap = 0.0f;
  bool causal = false;
  int64_t window = 0;                    // 0: none
  int64_t q_start = 0;
  const int64_t* q_starts = nullptr;     // per sequence, instead of q_start
  MaskKind mask_kind = MaskKind::none;
  const char* mask = nullptr;
  Strides ms;
  float masked_at = 0.0f;                // additive values at or below this mask the key
  const float* sinks = nullptr;
  const int64_t *cu_q = nullptr, *cu_k = nullptr;
  const int64_t *block_table = nullptr, *kv_lens = nullptr;
  int64_t table_stride = 0, page = 0;
  PathCheck* check = nullptr;
};

/// Returns how many rows took another path than the contract's; 0 where `check` is null.
int64_t attention(const AttentionKernels& kernels, const AttentionCall& call);

}  // namespace samebits
