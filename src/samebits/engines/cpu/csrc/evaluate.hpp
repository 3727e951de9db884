// Exact evaluation of contracts: x[m, k] * w[n, k]^T, contiguous fp32 values, one leaf.
#pragma once
#include <cstdint>

namespace samebits {

/// contract/arithmetic.py's BlockFma, with its operands' format.
struct BlockArithmetic {
  int fraction, min_exponent;          // of the operands' format
  int block, grid, significand, floor; // grid: BlockFma.fraction
};

/// The chain of fused blocks over k ascending, from what `out` holds.
void evaluate_block(const float* x, const float* w, float* out, int64_t m, int64_t n, int64_t k,
                    const BlockArithmetic& a, int threads);

/// `width` interleaved fma chains (the first from what `out` holds), folded by halves; width 1 is a plain chain.
void evaluate_fma(const float* x, const float* w, float* out, int64_t m, int64_t n, int64_t k,
                  int width, int threads);

}  // namespace samebits
