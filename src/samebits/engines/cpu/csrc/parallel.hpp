// Threads. Tasks are independent, so bits never depend on how many threads run them or in which order.
#pragma once
#include <cstdint>
#include <type_traits>

namespace samebits {

/// Runs body(ctx, i) for i in [0, tasks). `threads` <= 1 runs in the caller. Every task runs with
/// IEEE denormals and rounding to nearest, whatever the calling thread has set. What a task throws reaches
/// the caller, once no task runs; those that had not begun do not begin.
void parallel_run(int64_t tasks, int threads, void (*body)(void*, int64_t), void* ctx);

/// Threads that torch's pool would use now (1 in a forked child: its pool does not survive a fork).
int max_threads() noexcept;

/// Threads worth waking for `work` elementary operations.
inline int threads_for(int64_t work, int64_t per_thread) noexcept {
  int64_t useful = work / per_thread;
  int limit = max_threads();
  return useful < limit ? static_cast<int>(useful < 1 ? 1 : useful) : limit;
}

template <class F>
void parallel_for(int64_t tasks, int threads, F&& f) {
  using Body = std::remove_reference_t<F>;
  parallel_run(
      tasks, threads, [](void* ctx, int64_t i) { (*static_cast<Body*>(ctx))(i); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

/// Runs f() in the caller, as a task is run: with IEEE denormals and rounding to nearest.
template <class F>
void in_ieee_mode(F&& f) {
  parallel_for(1, 1, [&](int64_t) { f(); });
}

/// Sets or clears flushing of subnormals in the workers of the caller's pool (they inherit it from the
/// thread that starts them); returns whether any worker flushed. The calling thread is left alone.
bool set_worker_flush(bool flush);

/// Name of the pool in use, for `samebits env`: "gomp" (torch's own) or "threads" (started per call).
const char* pool_name() noexcept;

}  // namespace samebits
