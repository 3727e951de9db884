// What the decode kernels share: how many keys a sequence has, and the fold of its leaves.
#pragma once
#include "number.cuh"

DEVICE float quad_max(float x) {
  x = max_nan(x, __shfl_xor_sync(~0u, x, 1));
  return max_nan(x, __shfl_xor_sync(~0u, x, 2));
}

// How many keys a sequence's row sees, a window apart: as many for all, or by `counts`.
struct Lengths {
  const int* counts;  // [batch], or null
  int added, most;
  DEVICE int of(int batch) const { return counts ? max(0, min(counts[batch] + added, most)) : most; }
};

// Factors of the leaves so far and of the next one; -0 makes a side that has seen no key nothing.
DEVICE float2 fold_factors(float& total, float leaf) {
  const float top = max_nan(total, leaf);
  const float now = leaf == NOTHING ? -0.0f : power(leaf - top);
  const float old = total == NOTHING && leaf != NOTHING ? -0.0f
                    : total == top                      ? 1.0f
                                                        : power(total - top);
  total = top;
  return make_float2(old, now);
}

// o / l of a row: NaN where its maximum is NaN or infinite, +0 where it has seen no key.
DEVICE float quotient(float o, float l, float top) {
  if (top != top || top == -NOTHING) l = __int_as_float(0x7FFFFFFF);
  return top == NOTHING ? 0.0f : __fdiv_rn(o, l);
}
