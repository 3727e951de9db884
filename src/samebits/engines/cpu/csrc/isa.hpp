// Which instruction set runs. All of them give the same bits; the choice is one of speed.
#pragma once

namespace samebits {

enum class Isa : int { scalar = 0, neon = 1, avx2 = 2, avx512 = 3 };

/// The instruction set in use: the best that machine and binary have, or the one forced.
Isa active_isa() noexcept;

/// Names as in SAMEBITS_CPU_ISA. Returns false if this machine or binary lacks it.
bool set_isa(const char* name) noexcept;
/// The same for calls from this thread alone, whatever the others use; "" ends it.
bool set_thread_isa(const char* name) noexcept;
bool has_isa(Isa isa) noexcept;
const char* isa_name(Isa isa) noexcept;

}  // namespace samebits

// Declares, for a kernel table `T`, one getter per compiled instruction set, and `T& name()` that
// returns the table of the active one.
#ifdef SB_HAVE_avx512
#define SB_DECLARE_avx512(T, name) namespace avx512 { const T& name(); }
#define SB_CASE_avx512(name) case Isa::avx512: return avx512::name();
#else
#define SB_DECLARE_avx512(T, name)
#define SB_CASE_avx512(name)
#endif
#ifdef SB_HAVE_avx2
#define SB_DECLARE_avx2(T, name) namespace avx2 { const T& name(); }
#define SB_CASE_avx2(name) case Isa::avx2: return avx2::name();
#else
#define SB_DECLARE_avx2(T, name)
#define SB_CASE_avx2(name)
#endif
#ifdef SB_HAVE_neon
#define SB_DECLARE_neon(T, name) namespace neon { const T& name(); }
#define SB_CASE_neon(name) case Isa::neon: return neon::name();
#else
#define SB_DECLARE_neon(T, name)
#define SB_CASE_neon(name)
#endif

/// Use inside namespace samebits, in a binding file.
#define SB_KERNEL_TABLE(T, name)             \
  SB_DECLARE_avx512(T, name)                 \
  SB_DECLARE_avx2(T, name)                   \
  SB_DECLARE_neon(T, name)                   \
  namespace scalar { const T& name(); }      \
  static inline const T& name() {            \
    switch (active_isa()) {                  \
      SB_CASE_avx512(name)                   \
      SB_CASE_avx2(name)                     \
      SB_CASE_neon(name)                     \
      default: return scalar::name();        \
    }                                        \
  }
