// bf16 and fp16 one at a time. Code that is compiled once uses namespace samebits::base; kernels
// get a copy in their instruction set's namespace, so that no such function is shared between them.
#pragma once
#include <cstdint>
#include <cstring>

#ifndef SB_ISA
#define SB_ISA base
#endif

namespace samebits::SB_ISA {

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

static inline float bit_float(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline uint32_t float_bits(float f) { uint32_t u; std::memcpy(&u, &f, 4); return u; }

constexpr uint32_t kNan32 = 0x7fc00000u;
constexpr uint16_t kNanBf16 = 0x7fc0u;
constexpr uint16_t kNanF16 = 0x7e00u;

static inline uint16_t to_bf16_bits(float f) {
  if (f != f) return kNanBf16;
  uint32_t u = float_bits(f);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float f16_bits_to_float(uint16_t h) {
  uint32_t sign = (h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
  if (e == 31) return bit_float(sign | 0x7f800000u | (m << 13));
  if (e != 0) return bit_float(sign | ((e + 112u) << 23) | (m << 13));
  float v = static_cast<float>(m) * 0x1p-24f;  // exact
  return bit_float(sign | float_bits(v));
}

static inline uint16_t to_f16_bits(float f) {
  if (f != f) return kNanF16;
  uint32_t u = float_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (a < 0x38800000u) {  // subnormal result: let an exact addition do the rounding
    float v = bit_float(a) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(v) - 0x3f000000u));
  }
  uint32_t r = a + 0xfffu + ((a >> 13) & 1u) - (112u << 23);
  return static_cast<uint16_t>(sign | (r >> 13));
}

// Widening is exact; storing rounds to nearest even, and a NaN becomes the canonical quiet one.
static inline float to_float(float v) { return v; }
static inline float to_float(bf16 v) { return bit_float(static_cast<uint32_t>(v.bits) << 16); }
static inline float to_float(f16 v) { return f16_bits_to_float(v.bits); }
static inline void store1(float* p, float v) { *p = v != v ? bit_float(kNan32) : v; }
static inline void store1(bf16* p, float v) { p->bits = to_bf16_bits(v); }
static inline void store1(f16* p, float v) { p->bits = to_f16_bits(v); }

}  // namespace samebits::SB_ISA
