#include "kernels/pointwise.hpp"

#include "activations.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr int kBlock = 512;  // elements widened at a time: stays in the L1 cache

using Unary = void (*)(const float* x, float* y, int n, const float* p);
using Binary = void (*)(const float* a, const float* b, float* y, int n, const float* p);

// One loop an operation, on whole vectors of fp32: the code that computes an element is the same
// wherever it lies, and for every storage type.
#define SB_PARAMS_0
#define SB_PARAMS_1 , p[0]
#define SB_PARAMS_2 , p[0], p[1]
#define SB_PARAMS_3 , p[0], p[1], p[2]
#define X(name, params)                                                                   \
  void name##_loop(const float* x, float* y, int n, [[maybe_unused]] const float* p) {    \
    for (int i = 0; i < n; i += 16) store(y + i, name(load(x + i) SB_PARAMS_##params));   \
  }
SB_UNARY_OPS(X)
#undef X
#define X(name, params)                                                                           \
  void name##_loop2(const float* a, const float* b, float* y, int n, [[maybe_unused]] const float* p) { \
    for (int i = 0; i < n; i += 16) store(y + i, name(load(a + i), load(b + i) SB_PARAMS_##params)); \
  }
SB_BINARY_OPS(X)
#undef X

constexpr Unary kUnary[] = {
#define X(name, params) name##_loop,
    SB_UNARY_OPS(X)
#undef X
};
constexpr Binary kBinary[] = {
#define X(name, params) name##_loop2,
    SB_BINARY_OPS(X)
#undef X
};

template <class T>
void to_buffer(const T* x, float* buffer, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store_f32(buffer + i, load(x + i));
  if (i < n) store_f32(buffer + i, load_part(x + i, n - i));
}
template <class T>
void from_buffer(const float* buffer, T* y, int n) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, load(buffer + i));
  if (i < n) store_part(y + i, load(buffer + i), n - i);
}
/// Rounds a buffer to T in place.
template <class T>
void round_buffer(float* buffer, int n) {
  T t[kBlock];
  for (int i = 0; i < n; i += 16) store(t + i, load(buffer + i));
  for (int i = 0; i < n; i += 16) store_f32(buffer + i, load(t + i));
}
int block(int64_t left) { return left < kBlock ? static_cast<int>(left) : kBlock; }

template <class T>
void unary_blocks(Unary f, const T* x, T* y, int64_t n, const float* p) {
  float buffer[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    int m = block(n - i);
    to_buffer(x + i, buffer, m);
    f(buffer, buffer, m, p);
    from_buffer(buffer, y + i, m);
  }
}
template <class T>
void binary_blocks(Binary f, const T* a, const T* b, T* y, int64_t n, const float* p) {
  float u[kBlock], v[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    int m = block(n - i);
    to_buffer(a + i, u, m);
    to_buffer(b + i, v, m);
    f(u, v, u, m, p);
    from_buffer(u, y + i, m);
  }
}
template <class T>
void gated_blocks(Unary f, const T* gate, const T* up, T* y, int64_t n) {
  float u[kBlock], v[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    int m = block(n - i);
    to_buffer(gate + i, u, m);
    to_buffer(up + i, v, m);
    f(u, u, m, nullptr);
    round_buffer<T>(u, m);
    mul_loop2(u, v, u, m, nullptr);
    from_buffer(u, y + i, m);
  }
}

template <class T> const T* as(const void* p) { return static_cast<const T*>(p); }
template <class T> T* as(void* p) { return static_cast<T*>(p); }
#define SB_BY_DTYPE(call)                  \
  switch (dtype) {                         \
    case 1: { using T = bf16; call; break; } \
    case 2: { using T = f16; call; break; }  \
    default: { using T = float; call; }      \
  }

void unary(int op, int dtype, const void* x, void* y, int64_t n, const float* p) {
  Unary f = kUnary[op];
  int64_t whole = 0;
  if (dtype == 0)  // no buffer needed; each vector is read before it is written
    for (; whole + kBlock <= n; whole += kBlock) f(as<float>(x) + whole, as<float>(y) + whole, kBlock, p);
  SB_BY_DTYPE(unary_blocks(f, as<T>(x) + whole, as<T>(y) + whole, n - whole, p))
}
void binary(int op, int dtype, const void* a, const void* b, void* y, int64_t n, const float* p) {
  Binary f = kBinary[op];
  int64_t whole = 0;
  if (dtype == 0)
    for (; whole + kBlock <= n; whole += kBlock)
      f(as<float>(a) + whole, as<float>(b) + whole, as<float>(y) + whole, kBlock, p);
  SB_BY_DTYPE(binary_blocks(f, as<T>(a) + whole, as<T>(b) + whole, as<T>(y) + whole, n - whole, p))
}
void gated(int op, int dtype, const void* gate, const void* up, void* y, int64_t n) {
  Unary f = kUnary[op];
  SB_BY_DTYPE(gated_blocks(f, as<T>(gate), as<T>(up), as<T>(y), n))
}

/// One element pair: (a cos - b sin, b cos' + a sin'), every product and sum rounded to T.
template <class T>
void rotary_rows(const Rotary& j, int64_t begin, int64_t end) {
  const int64_t half = j.d / 2, apart = j.interleaved ? 1 : half, stride = j.interleaved ? 2 : 1;
  auto rounded = [](float v) { T t; store1(&t, v); return to_float(t); };
  for (int64_t row = begin; row < end; ++row) {
    int64_t rest = row, cos_at = 0, sin_at = 0;
    for (int k = kRotaryDims - 1; k >= 0; --k) {
      int64_t i = rest % j.size[k];
      rest /= j.size[k];
      cos_at += i * j.cos_stride[k];
      sin_at += i * j.sin_stride[k];
    }
    const T *x = as<T>(j.x) + row * j.d, *c = as<T>(j.cos) + cos_at, *s = as<T>(j.sin) + sin_at;
    T* y = as<T>(j.y) + row * j.d;
    if (stride == 1 && j.step == 1) {
      for (int64_t i = 0; i < half; i += 16) {
        int m = half - i < 16 ? static_cast<int>(half - i) : 16;
        auto product = [&](F16 u, F16 v) {
          T t[16];
          store(t, mul(u, v));
          return load(t);
        };
        F16 a = load_part(x + i, m), b = load_part(x + i + half, m);
        F16 first = sub(product(a, load_part(c + i, m)), product(b, load_part(s + i, m)));
        F16 last = add(product(b, load_part(c + i + j.second, m)), product(a, load_part(s + i + j.second, m)));
        store_part(y + i, first, m);
        store_part(y + i + half, last, m);
      }
      continue;
    }
    for (int64_t i = 0; i < half; ++i) {
      const int64_t k = i * stride, f = i * j.step;
      const float a = to_float(x[k]), b = to_float(x[k + apart]);
      store1(y + k, rounded(a * to_float(c[f])) - rounded(b * to_float(s[f])));
      store1(y + k + apart, rounded(b * to_float(c[f + j.second])) + rounded(a * to_float(s[f + j.second])));
    }
  }
}
void rotary(const Rotary& job, int64_t begin, int64_t end) {
  const int dtype = job.dtype;
  SB_BY_DTYPE(rotary_rows<T>(job, begin, end))
}

}  // namespace

const PointwiseKernels& pointwise_kernels();
const PointwiseKernels& pointwise_kernels() {
  static const PointwiseKernels table{unary, binary, gated, rotary};
  return table;
}

}  // namespace samebits::SB_ISA
