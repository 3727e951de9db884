// The instructions and the words of CUDA C++ that join.cu uses, as C++ on threads of a CPU. Stores of
// lines reach memory late and in any order, as between GPUs: before a flag only those that its thread
// made or met at a barrier.
#pragma once

#include <algorithm>
#include <mutex>
#include <random>
#include <vector>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define DEVICE inline
#define __global__
#define __launch_bounds__(x)

struct uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

struct Index { u32 x; };
inline thread_local Index blockIdx, threadIdx, gridDim;

// Stores on their way.
struct Stores {
  struct Store { u64 at; u32 words[4]; int count; };
  std::vector<Store> under_way;
  void arrive(std::mt19937& chance, bool all = true) {
    std::shuffle(under_way.begin(), under_way.end(), chance);
    for (size_t keep = all ? 0 : under_way.size() / 2; under_way.size() > keep; under_way.pop_back())
      std::memcpy((void*)under_way.back().at, under_way.back().words, under_way.back().count * 4);
  }
};
inline thread_local Stores stores;
inline thread_local std::mt19937 chance;
inline void pause_sometimes(u32 one_in, u32 microseconds) {
  if (chance() % one_in == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance() % microseconds));
}

struct Block {
  explicit Block(int threads) : barrier(threads) {}
  std::barrier<> barrier;
  std::atomic<bool> all{true};
  std::mutex door;
  Stores met;  // of threads that came to a barrier
};
inline thread_local Block* block;

inline void __syncthreads() {
  {
    const std::lock_guard<std::mutex> inside(block->door);
    auto& met = block->met.under_way;
    met.insert(met.end(), stores.under_way.begin(), stores.under_way.end());
    stores.under_way.clear();
  }
  block->barrier.arrive_and_wait();
}
// A thread or its block is through, or says so by a flag.
inline void release() {
  stores.arrive(chance), stores.under_way.clear();
  const std::lock_guard<std::mutex> inside(block->door);
  block->met.arrive(chance);
}
inline bool __syncthreads_and(bool mine) {
  if (!mine) block->all = false;
  __syncthreads();
  const bool all = block->all;
  __syncthreads();
  block->all = true;
  __syncthreads();
  return all;
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline u32 atomicAdd(u32* at, u32 x) { return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST); }
inline void await_predecessor() {}
inline void admit_successor() {}

template <class To, class From>
To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline u32 __float_as_uint(float x) { return bits<u32>(x); }
inline float __uint_as_float(u32 x) { return bits<float>(x); }
inline float __fadd_rn(float x, float y) { return x + y; }

// Each number is written with its mark at once, and nothing is ordered between two numbers.
struct alignas(16) Packet { float a; u32 mark_a; float b; u32 mark_b; };
inline void store_packet(u64 at, float a, u32 mark_a, float b, u32 mark_b) {
  __atomic_store_n((u64*)(at + 8), (u64)mark_b << 32 | bits<u32>(b), __ATOMIC_RELAXED);
  if (threadIdx.x % 4 == 0) std::this_thread::yield();
  __atomic_store_n((u64*)at, (u64)mark_a << 32 | bits<u32>(a), __ATOMIC_RELAXED);
}
inline Packet load_packet(u64 at) {
  pause_sometimes(32, 8000);
  const u64 a = __atomic_load_n((u64*)at, __ATOMIC_RELAXED);
  const u64 b = __atomic_load_n((u64*)(at + 8), __ATOMIC_RELAXED);
  return {bits<float>((u32)a), (u32)(a >> 32), bits<float>((u32)b), (u32)(b >> 32)};
}

inline uint4 load_shared_line(u64 at) {
  uint4 x;
  std::memcpy(&x, (void*)at, sizeof x);
  return x;
}
inline void store_late(Stores::Store x) {
  stores.under_way.push_back(x);
  if (chance() % 16 == 0) stores.arrive(chance, false);
}
inline void store_line(u64 at, uint4 x) { store_late({at, {x.x, x.y, x.z, x.w}, 4}); }
inline void store_half_line(u64 at, u32 x, u32 y) { store_late({at, {x, y}, 2}); }
inline void store_flag(u64 at, u32 x) {
  release();
  __atomic_store_n((u32*)at, x, __ATOMIC_RELEASE);
}
inline u32 load_flag(u64 at) {
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  return __atomic_load_n((u32*)at, __ATOMIC_ACQUIRE);
}
inline void tell_host(u64 at, u32 x) { __atomic_store_n((u32*)at, x, __ATOMIC_SEQ_CST); }
inline u32 load_now(const u32* at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
inline void store_now(u32* at, u32 x) { __atomic_store_n(at, x, __ATOMIC_SEQ_CST); }
inline u64 nanoseconds() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

inline u32 round_bf16(float x) {
  const u32 u = bits<u32>(x);
  return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline u32 round_pair_bf16(float low, float high) { return round_bf16(low) | round_bf16(high) << 16; }
