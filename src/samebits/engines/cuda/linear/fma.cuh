// Types of the products by chains of fma: operands are widened, which is exact, and results rounded once.
// Constants: IN, OUT: 0 fp32, 1 bf16, 2 fp16.
#pragma once

using Word = unsigned short;
#if IN == 0
using In = float;
#else
using In = Word;
#endif
#if OUT == 0
using Out = float;
#else
using Out = Word;
#endif

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ float widened(Word v) {
#if IN == 1
  return __uint_as_float(static_cast<unsigned>(v) << 16);
#else
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
  return f;
#endif
}
__device__ __forceinline__ void round_to(float* p, float v) { *p = v; }
__device__ __forceinline__ void round_to(Word* p, float v) {
  Word word;
#if OUT == 1
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(word) : "f"(v));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(word) : "f"(v));
#endif
  *p = word;
}

// The epilogue before its last rounding: alpha, and a bias that has met its factor.
__device__ __forceinline__ float finished(float sum, float alpha, bool biased, float bias) {
  const float v = __fmul_rn(sum, alpha);
  return biased ? __fadd_rn(v, bias) : v;
}
