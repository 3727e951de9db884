// Matrix products: threads and buffers around the kernels of gemm.hpp.
#pragma once
#include "kernels/gemm.hpp"

namespace samebits {

/// Computes a product. With `checked`, its path is checked where that is on: returns outputs whose path was wrong.
int64_t product(GemmArgs g, bool checked);

/// Whether bf16 may run by vdpbf16ps: the processor has it, passes the test of `dot_is_two_steps`, and it is wanted.
bool use_dot();

}  // namespace samebits
