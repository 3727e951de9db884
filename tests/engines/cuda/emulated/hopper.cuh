// The instructions and the words of CUDA C++ that fma.cu and few.cu use, as C++ on threads of a CPU. Copies arrive
// when they are waited for and not before, or at once: as `eager` says.
#pragma once

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using std::max;
using std::min;

#define DEVICE inline
#define __global__
#define __shared__
#define __restrict__
#define __align__(n)
#define __launch_bounds__(...)

struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct Index { u32 x; };
inline thread_local Index blockIdx, threadIdx;

constexpr u32 SHARED = 227 << 10;

alignas(16) unsigned char memory[SHARED];
inline std::barrier<>* block;
inline std::vector<std::unique_ptr<std::barrier<>>> warp;
inline bool eager;

inline float __uint_as_float(u32 x) {
  float y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
template <class T>
inline T __ldcg(const T* from) {
  return *from;
}
inline u32 __float_as_uint(float x) {
  u32 y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }

inline float widen_fp16(u16 x) {
  _Float16 y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
inline u16 round_to_fp16(float x) {
  const _Float16 y = static_cast<_Float16>(x);
  u16 word;
  std::memcpy(&word, &y, sizeof word);
  return word;
}
inline u16 round_to_bf16(float x) {  // of a number that is not NaN
  u32 word;
  std::memcpy(&word, &x, sizeof word);
  return (word + 0x7FFF + (word >> 16 & 1)) >> 16;
}

// ---- mbarriers ------------------------------------------------------------------------------------
struct Barrier { u32 count, pending, phase; };
inline std::map<u32, Barrier> barriers;
inline std::mutex guard;

inline void barrier_init(u32 bar, u32 arrivals) {
  const std::lock_guard lock(guard);
  barriers[bar] = {arrivals, arrivals, 0};
}
inline void barrier_arrive(u32 bar) {
  const std::lock_guard lock(guard);
  Barrier& at = barriers.at(bar);
  if (--at.pending == 0) at.pending = at.count, ++at.phase;
}
inline bool barrier_test(u32 bar, u32 parity) {
  std::this_thread::yield();
  const std::lock_guard lock(guard);
  return barriers.at(bar).phase % 2 != parity;
}

// ---- copies of a thread's own ---------------------------------------------------------------------
struct Copy {
  u32 to, bytes;
  const void* from;
  void arrive() const {
    std::memset(memory + to, 0, 16);
    if (bytes) std::memcpy(memory + to, from, bytes);
  }
};
struct Group {
  std::vector<Copy> copies;
  u32 bar = 0;  // that it arrives on, if any
  void arrive() const {
    for (const Copy& copy : copies) copy.arrive();
    if (bar) barrier_arrive(bar);
  }
};
inline thread_local std::deque<Group> groups;
inline thread_local Group open_group;

inline u32 shared_address(const void* p) { return static_cast<const unsigned char*>(p) - memory; }
inline void copy_front(u32 to, const void* from, u32 bytes) {
  const Copy copy{to, bytes, from};
  if (eager) copy.arrive();
  else open_group.copies.push_back(copy);
}
inline void copies_commit() { groups.push_back(std::move(open_group)), open_group = {}; }
template <int PENDING>
inline void copies_wait() {
  for (; groups.size() > PENDING; groups.pop_front()) groups.front().arrive();
}
inline void copies_arrive(u32 bar) {
  if (eager) return barrier_arrive(bar);
  open_group.bar = bar;
  copies_commit();
}
// Who waits for others has copies that come meanwhile, one after another.
inline void barrier_wait(u32 bar, u32 parity) {
  while (!barrier_test(bar, parity))
    if (!groups.empty()) groups.front().arrive(), groups.pop_front();
}
inline void await_predecessor() {}
inline void admit_successor() {}
inline void block_wait() { block->arrive_and_wait(); }
inline void warp_wait() {
  warp[threadIdx.x / 32]->arrive_and_wait();
  std::this_thread::yield();
}
template <class T>
inline void touch(T&&) {}
