// The arithmetic of the attention contract: probabilities of a step, and the fold of leaves.
#pragma once
#include "tile.cuh"

// A thread holds rows r and r + 8 of its warp's 16: element [0] and [1] of what belongs to a row.
struct Leaf {
  float m[2];  // maximum of the running leaf
};

// ceil(a * max) of a step's scores of each row, over this thread's sixteen and its quad's.
template <int STEP>
DEVICE void maxima(const float (&s)[64], float a, float (&top)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float* x = s + 32 * STEP + 2 * r;  // four chains for the latency
    float t[4] = {x[0], x[1], x[4], x[5]};
#pragma unroll
    for (int j = 4; j < 16; ++j) t[j % 4] = max_nan(t[j % 4], x[j / 2 * 4 + j % 2]);
    top[r] = max_nan(max_nan(t[0], t[1]), max_nan(t[2], t[3]));
  }
#pragma unroll
  for (int lanes = 1; lanes <= 2; ++lanes) {
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = max_nan(top[r], __shfl_xor_sync(~0u, top[r], lanes));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) top[r] = ceilf(top[r] * a);
}

// The maximum raised by a step's: by how much accumulators shrink, and what exponents start from.
DEVICE void raise(Leaf& leaf, const float (&top)[2], float (&scale)[2], float (&origin)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float m = max_nan(leaf.m[r], top[r]);
    scale[r] = m == leaf.m[r] ? 1.0f : power(leaf.m[r] - m);
    leaf.m[r] = m;
    origin[r] = m == NOTHING ? 0.0f : m;
  }
}

// Scores of one step to probabilities p (A fragments of the product with v).
template <int STEP>
DEVICE void weights(const float (&s)[64], const float (&origin)[2], u32 (&p)[16], float a) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    p[i] = pack(exp2_of(s[32 * STEP + 2 * i], a, origin[i & 1]),
                exp2_of(s[32 * STEP + 2 * i + 1], a, origin[i & 1]));
  }
}

// Keys that a row does not see: a score of -inf. Limits count from the thread's first key of the block: rows
// see keys from `low` on and before `high`.
struct Seen {
  int low[2], high[2];
};

template <bool LOW>
DEVICE void mask(float (&s)[64], const Seen& seen) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * j + (i & 1), r = i >> 1;
      if (key >= seen.high[r] || (LOW && key < seen.low[r])) s[4 * j + i] = NOTHING;
    }
  }
}

template <int N>
DEVICE void rescale(float (&o)[N], const float (&by)[2]) {
#pragma unroll
  for (int i = 0; i < N; ++i) o[i] *= by[i / 2 & 1];
}

DEVICE void rescale(float (&o)[ACC], float (&l)[4], const float (&by)[2]) {
  rescale(o, by);
  rescale(l, by);
}

DEVICE void clear(float (&o)[ACC], float (&l)[4]) {
#pragma unroll
  for (int i = 0; i < ACC; ++i) o[i] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) l[i] = 0;
}

// What the leaves before the running one came to: o in shared memory (each thread's own part), l and
// the maximum in registers.
struct Total {
  float4* o;
  float l[2], m[2];
};

// Factors of total and leaf in the fold. -0 makes a side that has seen no key exactly nothing.
DEVICE void fold_factors(const Total& total, const Leaf& leaf, int r, float& old, float& now) {
  const float top = max_nan(total.m[r], leaf.m[r]);
  const float before = power(total.m[r] - top), after = power(leaf.m[r] - top);
  const bool skip = leaf.m[r] == NOTHING;
  now = skip ? -0.0f : after;
  old = total.m[r] == top ? 1.0f : before;
  old = total.m[r] == NOTHING && !skip ? -0.0f : old;
}

// Every score of a row in the leaf is -Inf: no NaN may be left of 0 * Inf.
DEVICE void clear_skipped(float (&o)[ACC], const Leaf& leaf) {
  const bool none[2] = {leaf.m[0] == NOTHING, leaf.m[1] == NOTHING};
  if (!__any_sync(~0u, none[0] || none[1])) return;
#pragma unroll
  for (int i = 0; i < ACC; ++i) o[i] = none[i / 2 & 1] ? 0.0f : o[i];
}

// Nothing has been seen.
DEVICE void clear(Total& total) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total.l[r] = 0;
    total.m[r] = NOTHING;
  }
#pragma unroll
  for (int i = 0; i < ACC / 4; ++i) total.o[128 * i] = make_float4(0, 0, 0, 0);
}

// o and l of all leaves so far, the running one included: into `total`, or into registers if it is the last.
// Without branches, so that it can run beside exponentials.
template <bool LAST>
DEVICE void fold(float (&o)[ACC], float (&l)[4], Leaf& leaf, Total& total) {
  float old[2], now[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    fold_factors(total, leaf, r, old[r], now[r]);
    l[2 * r] = __fmaf_rn(total.l[r], old[r], l[2 * r] * now[r]);
    leaf.m[r] = max_nan(total.m[r], leaf.m[r]);
    if (LAST) continue;
    total.l[r] = l[2 * r];
    total.m[r] = leaf.m[r];
  }
#pragma unroll
  for (int i = 0; i < ACC / 4; ++i) {
    const float4 before = total.o[128 * i];
    o[4 * i] = __fmaf_rn(before.x, old[0], o[4 * i] * now[0]);
    o[4 * i + 1] = __fmaf_rn(before.y, old[0], o[4 * i + 1] * now[0]);
    o[4 * i + 2] = __fmaf_rn(before.z, old[1], o[4 * i + 2] * now[1]);
    o[4 * i + 3] = __fmaf_rn(before.w, old[1], o[4 * i + 3] * now[1]);
    if (!LAST) total.o[128 * i] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
  }
}
