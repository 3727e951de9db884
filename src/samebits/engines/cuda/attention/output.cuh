// Quotients o / l, and the way of results to memory.
#pragma once
#include "softmax.cuh"

constexpr float LARGEST = 0x1.fffffep127f;

// o / l as IEEE division rounds it, from y = fl(1 / l), l >= 1/2: two corrections of the quotient
// (Markstein 1990). |o| is 0, not finite, or inside (2^-100, 2^100), so that no remainder underflows.
DEVICE float divide(float o, float l, float y) {
  const float q = o * y;
  float better = __fmaf_rn(__fmaf_rn(-q, l, o), y, q);
  better = __fmaf_rn(__fmaf_rn(-better, l, o), y, better);
  return q != 0 && fabsf(q) <= LARGEST ? better : q;
}

DEVICE bool ordinary(float o) {
  return o == 0 || !(fabsf(o) <= LARGEST) || (fabsf(o) > 0x1p-100f && fabsf(o) < 0x1p100f);
}

// The same for any o, in double precision: two quotients of fp32 numbers, or one and the middle
// between two neighbours, are never so close that rounding twice matters.
DEVICE float divide_any(float o, float l, float y) {
  if (o == 0 || !(fabsf(o) <= LARGEST)) return o * y;
  double inverse = y;
  inverse = __fma_rn(__fma_rn(-inverse, l, 1), inverse, inverse);
  inverse = __fma_rn(__fma_rn(-inverse, l, 1), inverse, inverse);
  const double q = o * inverse;
  return (float)__fma_rn(__fma_rn(-q, l, o), inverse, q);
}

DEVICE u16* place_of(const Arguments& a, const Work& w, int row) {
  return a.out + (a.query_starts ? 0 : w.batch * a.stride_b) + w.head * a.stride_h +
         (w.query_base + row) * a.stride_t;
}

// Quotients to memory, through this warp's part of the total's place so that lines leave whole.
DEVICE void store(const Arguments& a, const Work& w, float (&o)[ACC], const float (&l)[4],
                  const float (&m)[2], u32 staging, int row) {
  const int lane = threadIdx.x & 31;
  bool usual = true;
#pragma unroll
  for (int i = 0; i < ACC; ++i) usual &= ordinary(o[i]);
  u32 packed[ACC / 2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool nothing = m[r] == NOTHING;
    const float denominator = nothing ? 1.0f : l[2 * r], y = __frcp_rn(denominator);
    if (__all_sync(~0u, usual)) {
#pragma unroll
      for (int i = 0; i < ACC / 4; ++i)
        packed[2 * i + r] = pack(divide(o[4 * i + 2 * r], denominator, y),
                                 divide(o[4 * i + 2 * r + 1], denominator, y));
    } else {
#pragma unroll
      for (int i = 0; i < ACC / 4; ++i)
        packed[2 * i + r] = pack(divide_any(o[4 * i + 2 * r], denominator, y),
                                 divide_any(o[4 * i + 2 * r + 1], denominator, y));
    }
#pragma unroll
    for (int i = 0; nothing && i < ACC / 4; ++i) packed[2 * i + r] = 0;
  }
  // Rows of 2 D bytes; the 512-byte pieces that this warp's threads own lie 2048 bytes apart.
  const auto place = [&](int r, int chunk) {
    const u32 at = r * (2 * D) + (chunk ^ (r & 7)) * 16;
    return staging + (at >> 9) * 2048 + (at & 511);
  };
  __syncwarp();
#pragma unroll
  for (int i = 0; i < ACC / 8; ++i) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     place(lane & 15, 2 * i + (lane >> 4))),
                 "r"(packed[4 * i]), "r"(packed[4 * i + 1]), "r"(packed[4 * i + 2]),
                 "r"(packed[4 * i + 3])
                 : "memory");
  }
  __syncwarp();
  constexpr int CHUNKS = D / 8;  // 16-byte pieces of a row
#pragma unroll
  for (int i = 0; i < 16 * CHUNKS / 32; ++i) {
    const int r = (32 * i + lane) / CHUNKS, chunk = (32 * i + lane) % CHUNKS;
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(place(r, chunk)));
    if (row + r < w.rows) *(uint4*)(place_of(a, w, row + r) + 8 * chunk) = x;
  }
  __syncwarp();
}

// +0 for all rows of the work.
DEVICE void store_nothing(const Arguments& a, const Work& w) {
  constexpr int CHUNKS = D / 8;
  for (int i = threadIdx.x - 128; i < ROWS * CHUNKS; i += 128 * GROUPS) {
    const int row = w.row + i / CHUNKS;
    if (row < w.rows) *(uint4*)(place_of(a, w, row) + i % CHUNKS * 8) = make_uint4(0, 0, 0, 0);
  }
}
