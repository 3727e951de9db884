// A 16 by 16 transposition in registers. It moves values and computes nothing.
#pragma once
#include "vec.hpp"

namespace samebits::SB_ISA {

#if defined(SB_ISA_avx512)
/// a[i] lane j becomes a[j] lane i.
static inline void transpose16(F16* a) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(a[i].v, a[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(a[i].v, a[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4)  // 4x4 blocks: part p of a[i + c] holds column 4p + c
    for (int c = 0; c < 2; ++c) {
      a[i + 2 * c].v = _mm512_shuffle_ps(t[i + c], t[i + c + 2], 0x44);
      a[i + 2 * c + 1].v = _mm512_shuffle_ps(t[i + c], t[i + c + 2], 0xee);
    }
  for (int c = 0; c < 4; ++c) {  // transpose the 4x4 grid of 128-bit parts
    __m512 p = _mm512_shuffle_f32x4(a[c].v, a[c + 4].v, 0x88);       // parts 0 2 | 0 2
    __m512 q = _mm512_shuffle_f32x4(a[c].v, a[c + 4].v, 0xdd);       // parts 1 3 | 1 3
    __m512 r = _mm512_shuffle_f32x4(a[c + 8].v, a[c + 12].v, 0x88);
    __m512 s = _mm512_shuffle_f32x4(a[c + 8].v, a[c + 12].v, 0xdd);
    t[c] = _mm512_shuffle_f32x4(p, r, 0x88);
    t[c + 8] = _mm512_shuffle_f32x4(p, r, 0xdd);
    t[c + 4] = _mm512_shuffle_f32x4(q, s, 0x88);
    t[c + 12] = _mm512_shuffle_f32x4(q, s, 0xdd);
  }
  for (int i = 0; i < 16; ++i) a[i].v = t[i];
}
#elif defined(SB_ISA_avx2)
static inline void transpose8(__m256* a) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int c = 0; c < 2; ++c) {
      u[i + 2 * c] = _mm256_shuffle_ps(t[i + c], t[i + c + 2], 0x44);
      u[i + 2 * c + 1] = _mm256_shuffle_ps(t[i + c], t[i + c + 2], 0xee);
    }
  for (int c = 0; c < 4; ++c) {
    a[c] = _mm256_permute2f128_ps(u[c], u[c + 4], 0x20);
    a[c + 4] = _mm256_permute2f128_ps(u[c], u[c + 4], 0x31);
  }
}
/// a[i] lane j becomes a[j] lane i.
static inline void transpose16(F16* a) {
  __m256 q[4][8];  // quadrants: top left, top right, bottom left, bottom right
  for (int i = 0; i < 8; ++i) {
    q[0][i] = a[i].lo;
    q[1][i] = a[i].hi;
    q[2][i] = a[i + 8].lo;
    q[3][i] = a[i + 8].hi;
  }
  for (auto& part : q) transpose8(part);
  for (int i = 0; i < 8; ++i) {
    a[i] = F16{q[0][i], q[2][i]};
    a[i + 8] = F16{q[1][i], q[3][i]};
  }
}
#else
/// a[i] lane j becomes a[j] lane i.
static inline void transpose16(F16* a) {
  float rows[16][16], row[16];
  for (int i = 0; i < 16; ++i) store_f32(rows[i], a[i]);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) row[j] = rows[j][i];
    a[i] = load_f32(row);
  }
}
#endif

}  // namespace samebits::SB_ISA
