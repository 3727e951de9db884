#include "parallel.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace samebits {
namespace {

// Sets round-to-nearest with gradual underflow for the life of the object.
class IeeeMode {
 public:
#if defined(__x86_64__)
  IeeeMode() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~IeeeMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeMode() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    uint64_t ieee = 0;
    asm volatile("msr fpcr, %0" ::"r"(ieee));
  }
  ~IeeeMode() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_ = 0;
#endif
};

// torch ships an OpenMP runtime and its workers spin between regions. A second pool would fight
// them for the cores, so its entry points are looked up in the process instead of linking one.
struct Gomp {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*max_threads)() = nullptr;
  int (*in_parallel)() = nullptr;
  Gomp() {
    parallel = reinterpret_cast<decltype(parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    max_threads = reinterpret_cast<decltype(max_threads)>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    in_parallel = reinterpret_cast<decltype(in_parallel)>(dlsym(RTLD_DEFAULT, "omp_in_parallel"));
  }
  explicit operator bool() const { return parallel && max_threads && in_parallel; }
};

const Gomp& gomp() {
  static const Gomp g;
  return g;
}

std::atomic<bool> forked{false};
const int fork_hook = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });

struct Region {
  void (*body)(void*, int64_t);
  void* ctx;
  int64_t tasks;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;  // of the first task that failed
};

void work(void* p) {
  auto* region = static_cast<Region*>(p);
  IeeeMode ieee;
  try {
    for (int64_t i; (i = region->next.fetch_add(1, std::memory_order_relaxed)) < region->tasks;)
      region->body(region->ctx, i);
  } catch (...) {  // no memory: an exception that left a thread of the pool would end the process
    if (!region->failed.exchange(true)) region->error = std::current_exception();
    region->next.store(region->tasks, std::memory_order_relaxed);
  }
}

}  // namespace

int max_threads() noexcept {
  if (forked.load(std::memory_order_relaxed)) return 1;
  if (gomp()) return gomp().max_threads();
  static const int hardware = static_cast<int>(std::thread::hardware_concurrency());
  return hardware > 0 ? hardware : 1;
}

void parallel_run(int64_t tasks, int threads, void (*body)(void*, int64_t), void* ctx) {
  if (tasks <= 0) return;
  Region region{body, ctx, tasks};
  if (threads > tasks) threads = static_cast<int>(tasks);
  if (threads <= 1 || forked.load(std::memory_order_relaxed) || (gomp() && gomp().in_parallel())) {
    work(&region);
  } else if (gomp()) {
    gomp().parallel(work, &region, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> team;
    for (int t = 1; t < threads; ++t) team.emplace_back(work, &region);
    work(&region);
    for (auto& thread : team) thread.join();
  }
  if (region.error) std::rethrow_exception(region.error);
}

bool set_worker_flush(bool flush) {
  if (!gomp() || forked.load(std::memory_order_relaxed) || gomp().in_parallel()) return false;
  struct Request {
    bool flush;
    pthread_t caller;
    std::atomic<bool> found;
  } request{flush, pthread_self(), {false}};
  auto body = [](void* p) {
    auto* r = static_cast<Request*>(p);
    if (pthread_equal(pthread_self(), r->caller)) return;
#if defined(__x86_64__)
    constexpr unsigned bits = 0x8040;  // flush to zero, denormals are zero
    const unsigned found = _mm_getcsr();
    _mm_setcsr(r->flush ? found | bits : found & ~bits);
#elif defined(__aarch64__)
    constexpr uint64_t bits = uint64_t{1} << 24;  // FZ
    uint64_t found;
    asm volatile("mrs %0, fpcr" : "=r"(found));
    const uint64_t wanted = r->flush ? found | bits : found & ~bits;
    asm volatile("msr fpcr, %0" ::"r"(wanted));
#else
    constexpr unsigned bits = 0, found = 0;
#endif
    if (found & bits) r->found.store(true);
  };
  gomp().parallel(body, &request, static_cast<unsigned>(gomp().max_threads()), 0);
  return request.found.load();
}

const char* pool_name() noexcept { return gomp() ? "gomp" : "threads"; }

}  // namespace samebits
