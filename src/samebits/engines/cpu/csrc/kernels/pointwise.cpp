#include "kernels/pointwise.hpp"

#include "math.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr int kBlock = 512;  // elements widened at a time: stays in the L1 cache

using Unary = void (*)(const float* x, float* y, int n, const float* p);

// One loop an operation, on whole vectors of fp32: the code that computes an element is the same
// wherever it lies.
#define X(name, params)                                                                       \
  void name##_loop(const float* x, float* y, int n, [[maybe_unused]] const float* p) { \
    for (int i = 0; i < n; i += 16) store(y + i, name(load(x + i)));                          \
  }
SB_UNARY_OPS(X)
#undef X

constexpr Unary kUnary[] = {
#define X(name, params) name##_loop,
    SB_UNARY_OPS(X)
#undef X
};

template <class T>
void widen(const T* x, float* buffer, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store_f32(buffer + i, load(x + i));
  if (i < n) store_f32(buffer + i, load_part(x + i, n - i));
}
template <class T>
void narrow(const float* buffer, T* y, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, load(buffer + i));
  if (i < n) store_part(y + i, load(buffer + i), n - i);
}

template <class T>
void unary_blocks(Unary f, const T* x, T* y, int64_t n, const float* p) {
  float buffer[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    int m = n - i < kBlock ? static_cast<int>(n - i) : kBlock;
    widen(x + i, buffer, m);
    f(buffer, buffer, m, p);
    narrow(buffer, y + i, m);
  }
}

void unary(int op, int dtype, const void* x, void* y, int64_t n, const float* p) {
  Unary f = kUnary[op];
  if (dtype == 1) return unary_blocks(f, static_cast<const bf16*>(x), static_cast<bf16*>(y), n, p);
  if (dtype == 2) return unary_blocks(f, static_cast<const f16*>(x), static_cast<f16*>(y), n, p);
  const float* src = static_cast<const float*>(x);
  float* dst = static_cast<float*>(y);
  for (int64_t i = 0; i + kBlock <= n; i += kBlock) f(src + i, dst + i, kBlock, p);
  int64_t rest = n % kBlock;
  unary_blocks(f, src + (n - rest), dst + (n - rest), rest, p);
}

}  // namespace

const PointwiseKernels& pointwise_kernels();
const PointwiseKernels& pointwise_kernels() {
  static const PointwiseKernels table{unary};
  return table;
}

}  // namespace samebits::SB_ISA
