// One row of attention is three kinds of chains: over d (a score), over the keys of a leaf (o and l),
// over the leaves (the fold). The chains are the contract; which of them run side by side is not:
//   attention_block.hpp   a lane is a row: many rows share each key (prefill)
//   attention_few.hpp     a lane is a key for the scores and a d for the values (decode)
// See ops/attention/reference.py for the contract in full.
#include "kernels/attention_block.hpp"
#include "kernels/attention_few.hpp"

namespace samebits::SB_ISA {
namespace {

void block(int dtype, const AttentionTask& t, float* scratch) {
  if (dtype == 0) block_rows<float>(t, scratch);
  else if (dtype == 1) block_rows<bf16>(t, scratch);
  else block_rows<f16>(t, scratch);
}
void few(int dtype, const AttentionTask& t, int64_t leaf, float* partial, float* scratch) {
  if (dtype == 0) few_leaf<float>(t, leaf, partial, scratch);
  else if (dtype == 1) few_leaf<bf16>(t, leaf, partial, scratch);
  else few_leaf<f16>(t, leaf, partial, scratch);
}
void finish(int dtype, const AttentionTask& t, float* partials) {
  if (dtype == 0) finish_rows<float>(t, partials);
  else if (dtype == 1) finish_rows<bf16>(t, partials);
  else finish_rows<f16>(t, partials);
}

}  // namespace

const AttentionKernels& attention_kernels();
const AttentionKernels& attention_kernels() {
  static const AttentionKernels table{
      R, kFew, BlockScratch::size, [](int64_t d, int64_t) { return FewScratch::size(d); },
      block, few, finish};
  return table;
}

}  // namespace samebits::SB_ISA
