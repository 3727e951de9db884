#include "isa.hpp"

#include <atomic>
#include <cstring>
#include <initializer_list>

namespace samebits {
namespace {

constexpr const char* kNames[] = {"scalar", "neon", "avx2", "avx512"};

Isa best() noexcept {
  for (Isa isa : {Isa::avx512, Isa::avx2, Isa::neon})
    if (has_isa(isa)) return isa;
  return Isa::scalar;
}

std::atomic<int>& current() noexcept {
  static std::atomic<int> isa{static_cast<int>(best())};
  return isa;
}

thread_local int here = -1;  // what this thread uses instead; -1: nothing

int numbered(const char* name) noexcept {
  for (int i = 0; i < 4; ++i)
    if (std::strcmp(name, kNames[i]) == 0 && has_isa(static_cast<Isa>(i))) return i;
  return -1;
}

}  // namespace

bool has_isa(Isa isa) noexcept {
  switch (isa) {
    case Isa::scalar:
      return true;
#ifdef SB_HAVE_avx512
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("fma");
#endif
#ifdef SB_HAVE_avx2
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
#ifdef SB_HAVE_neon
    case Isa::neon:
      return true;
#endif
    default:
      return false;
  }
}

const char* isa_name(Isa isa) noexcept { return kNames[static_cast<int>(isa)]; }

Isa active_isa() noexcept {
  return static_cast<Isa>(here >= 0 ? here : current().load(std::memory_order_relaxed));
}

bool set_isa(const char* name) noexcept {
  const int isa = numbered(name);
  if (isa >= 0) current().store(isa, std::memory_order_relaxed);
  return isa >= 0;
}

bool set_thread_isa(const char* name) noexcept {
  here = *name ? numbered(name) : -1;
  return !*name || here >= 0;
}

}  // namespace samebits
