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
  m.def("pointwise_rotary", rotary);
}
}  // namespace samebits
