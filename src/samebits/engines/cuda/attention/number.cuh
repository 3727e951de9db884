// Numbers of the attention contract: the operands' type (-D BF16 1, or 0 for fp16), a maximum that keeps
// a NaN, powers of two, the chip's 2^x.
#pragma once
#include "hopper.cuh"

#if BF16
#define TYPE "bf16"
constexpr u32 ONES = 0x3F803F80, INFINITE = 0x7F80;
#else
#define TYPE "f16"
constexpr u32 ONES = 0x3C003C00, INFINITE = 0x7C00;
#endif
WGMMA(TYPE)
MMA(TYPE)

#define NOTHING __int_as_float(0xFF800000)  // the maximum of no score

DEVICE float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// 2^n for an integer n <= 0; 0 below -126 and for NaN.
DEVICE float power(float n) {
  const float t = fmaxf(n, -127.0f) + 12582912.0f;
  return __uint_as_float((__float_as_uint(t) << 23) + 0x3F800000);
}

// 2^(s * a - m), the product not rounded, by the special function unit.
DEVICE float exp2_of(float s, float a, float m) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmaf_rn(s, a, -m)));
  return y;
}

DEVICE u32 pack(float low, float high) {
  u32 y;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
