#include "bind.hpp"
#include "kernels/pointwise.hpp"

namespace samebits {
SB_KERNEL_TABLE(PointwiseKernels, pointwise_kernels)

namespace {

constexpr int64_t kChunk = 16384;  // elements a task: large enough to pay for waking a thread

void unary(int op, int dtype, uintptr_t x, uintptr_t y, int64_t n, float p0, float p1, float p2) {
  const float params[] = {p0, p1, p2};
  const int64_t size = size_of(static_cast<DType>(dtype));
  const auto run = pointwise_kernels().unary;
  parallel_for((n + kChunk - 1) / kChunk, threads_for(n, kChunk), [&](int64_t task) {
    int64_t begin = task * kChunk, count = n - begin < kChunk ? n - begin : kChunk;
    run(op, dtype, ptr<char>(x) + begin * size, ptr<char>(y) + begin * size, count, params);
  });
}

}  // namespace

void bind_pointwise(nb::module_& m) {
  m.def("pointwise_unary_ops", [] {
    return std::vector<std::string>{
#define X(name, params) #name,
        SB_UNARY_OPS(X)
#undef X
    };
  });
  m.def("pointwise_unary", unary, NoGil());
}
}  // namespace samebits
