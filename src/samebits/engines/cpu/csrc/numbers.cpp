// Results as a GPU writes them: of all NaN one, 0x7fffffff (in 16 bits 0x7fff).
#include "bind.hpp"

namespace samebits {
namespace {

constexpr int64_t kBlock = 1 << 15, kPerThread = 1 << 20;

/// In place. A plain loop over integers, which a compiler turns into vectors.
template <class Word>
void rewrite(Word* p, int64_t n, Word infinity) {
  constexpr auto kNan = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
  for (int64_t i = 0; i < n; ++i) p[i] = (p[i] & kNan) > infinity ? kNan : p[i];
}

void chips_nan(uintptr_t at, int64_t n, int dtype) {
  need_memory(n, {at});
  parallel_for((n + kBlock - 1) / kBlock, threads_for(n, kPerThread), [&](int64_t i) {
    const int64_t first = i * kBlock, count = n - first < kBlock ? n - first : kBlock;
    switch (static_cast<DType>(dtype)) {
      case DType::f32: rewrite<uint32_t>(ptr<uint32_t>(at) + first, count, 0x7f800000u); break;
      case DType::bf16: rewrite<uint16_t>(ptr<uint16_t>(at) + first, count, 0x7f80u); break;
      case DType::f16: rewrite<uint16_t>(ptr<uint16_t>(at) + first, count, 0x7c00u); break;
    }
  });
}

}  // namespace

void bind_numbers(nb::module_& m) { m.def("chips_nan", chips_nan, NoGil()); }
}  // namespace samebits
