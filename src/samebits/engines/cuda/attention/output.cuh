// Quotients o / l, and the way of results to memory.
#pragma once
#include "softmax.cuh"

constexpr float LARGEST = 0x1.fffffep127f;

// o / l as IEEE division rounds it, from y = fl(1 / l), l >= 1/2: two corrections of the quotient
// (Markstein 1990). |o| is 0 or inside (2^-100, 2^100), so that no remainder underflows; the remainder's
// sign keeps that of a zero.
DEVICE float divide(float o, float l, float y) {
  float q = o * y;
  q = __fmaf_rn(-__fmaf_rn(q, l, -o), y, q);
  return __fmaf_rn(-__fmaf_rn(q, l, -o), y, q);
}

// Whether `divide` takes all of o.
DEVICE bool ordinary(const float (&o)[ACC]) {
  float most[2] = {0, 0};
  u32 least[2] = {~0u, ~0u};  // twice the magnitude's word, less 1: zeros do not count
#pragma unroll
  for (int i = 0; i < ACC; ++i) {
    most[i & 1] = max_nan(most[i & 1], fabsf(o[i]));
    least[i & 1] = min(least[i & 1], 2 * __float_as_uint(o[i]) - 1);
  }
  return max_nan(most[0], most[1]) < 0x1p100f && min(least[0], least[1]) >= 2 * ((127u - 100) << 23);
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

constexpr float LOG[9] = {0x1.147dd0p-4f,  -0x1.de2584p-4f, 0x1.e6cda8p-4f,  -0x1.fc24b4p-4f, 0x1.233aacp-3f,
                          -0x1.555c52p-3f, 0x1.99a47ep-3f,  -0x1.000006p-2f, 0x1.555548p-2f};

// Natural logarithm of a normal positive number, or NaN (contract/functions.py).
DEVICE float log_of(float x) {
  const int word = __float_as_int(x), n = (word - 0x3F3504F3) >> 23;
  const float f = __int_as_float(word - (n << 23)) - 1.0f, e = n, z = f * f;
  float y = LOG[0];
#pragma unroll
  for (int i = 1; i < 9; ++i) y = __fmaf_rn(y, f, LOG[i]);
  y = __fmaf_rn(y * f, z, e * 0x1.7f7d1cp-20f);
  y = __fmaf_rn(z, -0.5f, y);
  return x == x ? __fmaf_rn(e, 0x1.62e400p-1f, f + y) : x;
}

DEVICE float logsumexp(float m, float l) {
  const float y = __fmaf_rn(m, 0x1.62e430p-1f, log_of(l));
  return m == NOTHING ? NOTHING : y == y ? y : __int_as_float(0x7FFFFFFF);
}

constexpr float EXP2[7] = {0x1.417a70p-13f, 0x1.5f0948p-10f, 0x1.3b2dd2p-7f, 0x1.c6af7ap-5f,
                           0x1.ebfbdcp-3f,  0x1.62e430p-1f,  1.0f};

// 2^x for -1 < x <= 0 (contract/functions.py).
DEVICE float exp2_of_fraction(float x) {
  const float z = x + 12582912.0f, f = x - (z - 12582912.0f);
  float y = EXP2[0];
#pragma unroll
  for (int i = 1; i < 7; ++i) y = __fmaf_rn(y, f, EXP2[i]);
  return y * __uint_as_float((__float_as_uint(z) << 23) + 0x3F800000);
}

// A sink's logit folded in after all leaves: it has a weight and no value. Gives what o is multiplied by.
DEVICE float fold_sink(float logit, float& m, float& l) {
  const float x = logit * 0x1.715476p+0f, own = ceilf(x), top = max_nan(m, own);
  if (x == NOTHING) return 1.0f;
  const float by = m == top ? 1.0f : power(m - top);
  l = __fmaf_rn(l, by, exp2_of_fraction(x - own) * power(own - top));
  m = top;
  return by;
}

DEVICE float* lse_of(const Arguments& a, const Work& w, int row) {
  return a.lse + (a.query_starts ? 0 : w.batch * a.lse_stride_b) + w.head * a.lse_stride_h +
         (w.query_base + row) * a.lse_stride_t;
}

// Quotients to memory, through this warp's part of the total's place so that lines leave whole.
DEVICE void store(const Arguments& a, const Work& w, float (&o)[ACC], float (&l)[4], float (&m)[2],
                  u32 staging, int row) {
  const int lane = threadIdx.x & 31;
  if (a.sinks) {
    const float logit = a.sinks[w.head];
    const float by[2] = {fold_sink(logit, m[0], l[0]), fold_sink(logit, m[1], l[2])};
    rescale(o, by);
  }
  if (a.lse && lane % 4 == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own = row + lane / 4 + 8 * r;
      if (own < w.rows) *lse_of(a, w, own) = logsumexp(m[r], l[2 * r]);
    }
  }
  const bool usual = __all_sync(~0u, ordinary(o));
  u32 packed[ACC / 2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool nothing = m[r] == NOTHING;
    const float denominator = nothing ? 1.0f : l[2 * r], y = __frcp_rn(denominator);
    if (usual) {
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

// +0 for all rows of the work, which see no key.
DEVICE void store_nothing(const Arguments& a, const Work& w) {
  float m = NOTHING, l = 0;
  if (a.sinks && a.lse) fold_sink(a.sinks[w.head], m, l);
  constexpr int CHUNKS = D / 8;
  for (int i = threadIdx.x - 128; i < ROWS * CHUNKS; i += 128 * GROUPS) {
    const int row = w.row + i / CHUNKS;
    if (row >= w.rows) continue;
    *(uint4*)(place_of(a, w, row) + i % CHUNKS * 8) = make_uint4(0, 0, 0, 0);
    if (a.lse && i % CHUNKS == 0) *lse_of(a, w, row) = logsumexp(m, l);
  }
}
