// What join.cu asks of the GPU and CUDA C++ has no name for: accesses to memory that other GPUs write
// (PTX ISA 8.0, "memory consistency model"), and roundings. One thin function an instruction.
#pragma once

#include "hopper.cuh"

// Two fp32 numbers, each with the number of the exchange that it belongs to. The 8 bytes of a number
// and its mark are written and read at once, so a number whose mark is right is there.
struct alignas(16) Packet { float a; u32 mark_a; float b; u32 mark_b; };

DEVICE void store_packet(u64 at, float a, u32 mark_a, float b, u32 mark_b) {
  asm volatile("st.volatile.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at),
               "r"(__float_as_uint(a)), "r"(mark_a), "r"(__float_as_uint(b)), "r"(mark_b)
               : "memory");
}

DEVICE Packet load_packet(u64 at) {
  u32 a, mark_a, b, mark_b;
  asm volatile("ld.volatile.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(mark_a), "=r"(b), "=r"(mark_b)
               : "l"(at)
               : "memory");
  return {__uint_as_float(a), mark_a, __uint_as_float(b), mark_b};
}

// 16 bytes, not kept in L1.
DEVICE uint4 load_shared_line(u64 at) {
  uint4 x;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(at)
               : "memory");
  return x;
}

DEVICE void store_line(u64 at, uint4 x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

DEVICE void store_half_line(u64 at, u32 x, u32 y) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(x), "r"(y) : "memory");
}

// A flag that tells another GPU of everything that this thread saw before, its block's stores in
// front of a barrier too.
DEVICE void store_flag(u64 at, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value)
               : "memory");
}

DEVICE u32 load_flag(u64 at) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// A word in the host's memory.
DEVICE void tell_host(u64 at, u32 value) {
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

DEVICE u32 load_now(const u32* at) {
  u32 value;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

DEVICE void store_now(u32* at, u32 value) {
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

DEVICE u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// ---- 16-bit numbers -----------------------------------------------------------------------------

DEVICE u32 round_pair_bf16(float low, float high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

DEVICE u32 round_pair_fp16(float low, float high) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
