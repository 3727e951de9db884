// Values that are not finite.
//
// A key that a row does not see has p = 0, but 0 * Inf is NaN: in a block that some row sees only in
// part, the tensor core must not meet such a value. If there is one (padding that nobody cleared, a
// broken model), the rows that do see it get p * v by an ordinary fma, which makes their
// accumulators Inf or NaN for good, and then it is set to zero.
#pragma once
#include "softmax.cuh"

DEVICE bool finite(u32 half) { return (half & INFINITE) != INFINITE; }

DEVICE float widen(u32 half) {
#if BF16
  return __uint_as_float(half << 16);
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"((u16)half));
  return y;
#endif
}

// x = y if `here`, opaque: else the compiler would keep p in memory to index it.
DEVICE void take_if(u32& x, u32 y, bool here) {
  asm("{\n.reg .pred here;\nsetp.ne.u32 here, %2, 0;\n@here mov.b32 %0, %1;\n}"
      : "+r"(x)
      : "r"(y), "r"((u32)here));
}

// Both warpgroups come here at the same step. Limits in `seen` count from the step's first key.
DEVICE void take_infinite(float (&o)[ACC], const u32 (&p)[16], u32 v, const Seen& seen) {
  const int lane = threadIdx.x & 31;
  for (int key = 0; key < 64; ++key) {
    u32 pair0 = 0, pair1 = 0;  // two keys' p of either row, in the lane of the quad that holds them
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      take_if(pair0, p[2 * i], i == key / 8);
      take_if(pair1, p[2 * i + 1], i == key / 8);
    }
    const int from = (lane & ~3) | (key / 2 & 3), shift = key % 2 * 16;
    const float p0 = widen(__shfl_sync(~0u, pair0, from) >> shift & 0xFFFF);
    const float p1 = widen(__shfl_sync(~0u, pair1, from) >> shift & 0xFFFF);
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const u32 x = load_shared(v + j / 8 * CHUNK + key * 128 + ((j ^ key) & 7) * 16 + lane % 4 * 4);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const u32 half = x >> 16 * e & 0xFFFF;
        if (finite(half)) continue;
        if (key >= seen.low[0] && key < seen.high[0]) o[4 * j + e] = __fmaf_rn(p0, widen(half), o[4 * j + e]);
        if (key >= seen.low[1] && key < seen.high[1]) o[4 * j + 2 + e] = __fmaf_rn(p1, widen(half), o[4 * j + 2 + e]);
      }
    }
  }
  group_sync(TOGETHER, 128 * GROUPS);
  for (int i = threadIdx.x - 128; i < 64 * D / 2; i += 128 * GROUPS) {
    const u32 at = v + i / 2048 * CHUNK + i % 2048 * 4;
    u32 x = load_shared(at);
    x &= (finite(x & 0xFFFF) ? 0xFFFF : 0) | (finite(x >> 16) ? 0xFFFF0000 : 0);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
  }
  fence_async();
  group_sync(TOGETHER, 128 * GROUPS);
}
