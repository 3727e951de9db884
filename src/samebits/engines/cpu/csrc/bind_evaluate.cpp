#include "bind.hpp"
#include "evaluate.hpp"

namespace samebits {

void bind_evaluate(nb::module_& m) {
  m.def(
      "evaluate_block",
      [](uintptr_t x, uintptr_t w, uintptr_t out, int64_t rows, int64_t columns, int64_t k,
         int fraction, int min_exponent, int block, int grid, int significand, int floor, int threads) {
        evaluate_block(ptr<const float>(x), ptr<const float>(w), ptr<float>(out), rows, columns, k,
                       {fraction, min_exponent, block, grid, significand, floor}, threads);
      },
      NoGil());
  m.def(
      "evaluate_fma",
      [](uintptr_t x, uintptr_t w, uintptr_t out, int64_t rows, int64_t columns, int64_t k, int width,
         int threads) {
        evaluate_fma(ptr<const float>(x), ptr<const float>(w), ptr<float>(out), rows, columns, k,
                     width, threads);
      },
      NoGil());
}

}  // namespace samebits
