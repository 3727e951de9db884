// Types of the products by chains of fma: operands are widened, which is exact, and results rounded once.
// Constants: IN, OUT: 0 fp32, 1 bf16, 2 fp16.
#pragma once
#include "hopper.cuh"

#if IN == 0
using In = float;
#else
using In = u16;
#endif
#if OUT == 0
using Out = float;
#else
using Out = u16;
#endif

// A bf16 is the upper half of an fp32.
DEVICE float widened(float x) { return x; }
DEVICE float widened(u16 x) { return IN == 1 ? __uint_as_float((u32)x << 16) : widen_fp16(x); }

DEVICE void put(float* p, float x) { *p = x; }
DEVICE void put(u16* p, float x) { *p = OUT == 1 ? round_to_bf16(x) : round_to_fp16(x); }

// 16 bytes of operands.
struct Vector {
  u32 words[4];

  DEVICE void read(const In* from) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  }
  // A number of them, widened.
  DEVICE float at(int i) const {
    if (IN == 0) return __uint_as_float(words[i]);
    const u32 word = words[i / 2];
    if (IN == 1) return __uint_as_float(i % 2 ? word & 0xFFFF0000u : word << 16);
    return widen_fp16((u16)(word >> i % 2 * 16));
  }
};

// The epilogue before its last rounding: alpha, and a bias that has met its factor.
DEVICE float finished(float sum, float alpha, bool biased, float bias) {
  const float v = __fmul_rn(sum, alpha);
  return biased ? __fadd_rn(v, bias) : v;
}
