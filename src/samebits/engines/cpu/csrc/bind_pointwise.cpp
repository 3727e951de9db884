#include "bind.hpp"
#include "kernels/pointwise.hpp"

namespace samebits {
SB_KERNEL_TABLE(PointwiseKernels, pointwise_kernels)

namespace {

constexpr int64_t kChunk = 16384;  // elements a task: large enough to pay for waking a thread

template <class F>
void in_chunks(int64_t n, F&& run) {
  parallel_for((n + kChunk - 1) / kChunk, threads_for(n, kChunk), [&](int64_t task) {
    int64_t begin = task * kChunk;
    run(begin, n - begin < kChunk ? n - begin : kChunk);
  });
}

void unary(int op, int dtype, uintptr_t x, uintptr_t y, int64_t n, float p0, float p1, float p2) {
  need_memory(n, {x});
  const float params[] = {p0, p1, p2};
  const int64_t size = size_of(static_cast<DType>(dtype));
  const auto run = pointwise_kernels().unary;
  in_chunks(n, [&](int64_t i, int64_t count) {
    run(op, dtype, ptr<char>(x) + i * size, ptr<char>(y) + i * size, count, params);
  });
}
void binary(int op, int dtype, uintptr_t a, uintptr_t b, uintptr_t y, int64_t n, float p0, float p1, float p2) {
  need_memory(n, {a, b});
  const float params[] = {p0, p1, p2};
  const int64_t size = size_of(static_cast<DType>(dtype));
  const auto run = pointwise_kernels().binary;
  in_chunks(n, [&](int64_t i, int64_t count) {
    run(op, dtype, ptr<char>(a) + i * size, ptr<char>(b) + i * size, ptr<char>(y) + i * size, count, params);
  });
}
void gated(int op, int dtype, uintptr_t gate, uintptr_t up, uintptr_t y, int64_t n) {
  need_memory(n, {gate, up});
  const int64_t size = size_of(static_cast<DType>(dtype));
  const auto run = pointwise_kernels().gated;
  in_chunks(n, [&](int64_t i, int64_t count) {
    run(op, dtype, ptr<char>(gate) + i * size, ptr<char>(up) + i * size, ptr<char>(y) + i * size, count);
  });
}
// gate and up: rows of n elements that start gate_row and up_row apart; y is dense.
void gated_rows(int op, int dtype, uintptr_t gate, int64_t gate_row, uintptr_t up, int64_t up_row, uintptr_t y,
                int64_t rows, int64_t n) {
  if (n == 0) return;
  need_memory(rows * n, {gate, up});
  const int64_t size = size_of(static_cast<DType>(dtype)), chunk = kChunk / n + 1;
  const auto run = pointwise_kernels().gated;
  parallel_for((rows + chunk - 1) / chunk, threads_for(rows * n, kChunk), [&](int64_t task) {
    for (int64_t r = task * chunk; r < rows && r < (task + 1) * chunk; ++r)
      run(op, dtype, ptr<char>(gate) + r * gate_row * size, ptr<char>(up) + r * up_row * size,
          ptr<char>(y) + r * n * size, n);
  });
}
// x [tokens, heads, d] with dense heads, x_row elements apart; rows of the factors by position. Returns whether all
// positions lie in [0, limit); else y is not written.
bool rotary_at(int dtype, bool interleaved, int64_t d, int64_t heads, int64_t tokens, uintptr_t x, int64_t x_row,
               uintptr_t positions, int64_t limit, uintptr_t cos, int64_t cos_row, uintptr_t sin, int64_t sin_row,
               int64_t second, int64_t step, uintptr_t y) {
  need_memory(tokens * heads * d, {x, cos, sin, positions});
  const auto* at = ptr<const int64_t>(positions);
  for (int64_t t = 0; t < tokens; ++t)
    if (at[t] < 0 || at[t] >= limit) return false;
  const int64_t size = size_of(static_cast<DType>(dtype)), chunk = kChunk / (heads * d + 1) + 1;
  parallel_for((tokens + chunk - 1) / chunk, threads_for(tokens * heads * d, kChunk), [&](int64_t task) {
    Rotary job{dtype, interleaved, d, {1, 1, 1, heads}, {}, {}, second, step, nullptr, nullptr, nullptr, nullptr};
    for (int64_t t = task * chunk; t < tokens && t < (task + 1) * chunk; ++t) {
      job.x = ptr<char>(x) + t * x_row * size;
      job.cos = ptr<char>(cos) + at[t] * cos_row * size;
      job.sin = ptr<char>(sin) + at[t] * sin_row * size;
      job.y = ptr<char>(y) + t * heads * d * size;
      pointwise_kernels().rotary(job, 0, heads);
    }
  });
  return true;
}
void rotary(int dtype, bool interleaved, int64_t d, std::vector<int64_t> sizes, std::vector<int64_t> cos_strides,
            std::vector<int64_t> sin_strides, int64_t second, int64_t step, uintptr_t x, uintptr_t cos,
            uintptr_t sin, uintptr_t y) {
  Rotary job{dtype, interleaved, d, {}, {}, {}, second, step, ptr<void>(x), ptr<void>(cos), ptr<void>(sin), ptr<void>(y)};
  int64_t rows = 1;
  for (int k = 0; k < kRotaryDims; ++k) {
    job.size[k] = sizes.at(k);
    job.cos_stride[k] = cos_strides.at(k);
    job.sin_stride[k] = sin_strides.at(k);
    rows *= sizes.at(k);
  }
  need_memory(rows * d, {x, cos, sin});
  const int64_t chunk = kChunk / d + 1;
  parallel_for((rows + chunk - 1) / chunk, threads_for(rows * d, kChunk), [&](int64_t task) {
    int64_t begin = task * chunk;
    pointwise_kernels().rotary(job, begin, begin + chunk < rows ? begin + chunk : rows);
  });
}

}  // namespace

void bind_pointwise(nb::module_& m) {
#define X(name, params) #name,
  m.def("pointwise_unary_ops", [] { return std::vector<std::string>{SB_UNARY_OPS(X)}; });
  m.def("pointwise_binary_ops", [] { return std::vector<std::string>{SB_BINARY_OPS(X)}; });
#undef X
  m.def("pointwise_unary", unary, NoGil());
  m.def("pointwise_binary", binary, NoGil());
  m.def("pointwise_gated", gated, NoGil());
  m.def("pointwise_gated_rows", gated_rows, NoGil());
  m.def("pointwise_rotary", rotary);
  m.def("pointwise_rotary_at", rotary_at);
}
}  // namespace samebits
