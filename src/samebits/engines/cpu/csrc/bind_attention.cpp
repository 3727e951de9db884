#include "attention.hpp"

#include <cstring>

#include "bind.hpp"

namespace samebits {
SB_KERNEL_TABLE(AttentionKernels, attention_kernels)

namespace {

// Rows of keys or values [tokens, heads, d] to their slots of a cache [pages, page, heads, d]. Strides count elements;
// d is dense. A negative slot is no slot. Returns whether all slots lie in the cache; else nothing is written.
bool cache_store(int64_t size, int64_t tokens, int64_t heads, int64_t d, uintptr_t x, int64_t x_row, int64_t x_head,
                 uintptr_t slots, uintptr_t cache, int64_t pages, int64_t page, int64_t to_page, int64_t to_slot,
                 int64_t to_head) {
  need_memory(tokens * heads * d, {x, slots, cache});
  const auto* at = ptr<const int64_t>(slots);
  for (int64_t t = 0; t < tokens; ++t)
    if (at[t] >= pages * page) return false;
  for (int64_t t = 0; t < tokens; ++t) {
    if (at[t] < 0) continue;
    const char* from = ptr<char>(x) + size * t * x_row;
    char* to = ptr<char>(cache) + size * (at[t] / page * to_page + at[t] % page * to_slot);
    for (int64_t h = 0; h < heads; ++h)
      std::memcpy(to + size * h * to_head, from + size * h * x_head, static_cast<size_t>(size * d));
  }
  return true;
}

}  // namespace

// The call is one flat list of integers, in the order of engines/cpu/attention.py.
void bind_attention(nb::module_& m) {
  m.def("cache_store", cache_store);
  m.def("attention", [](const std::vector<int64_t>& a, float scale, float cap, float masked_at) {
    size_t i = 0;
    auto next = [&] { return a.at(i++); };
    auto strides = [&] { Strides s; s.batch = next(); s.head = next(); s.row = next(); return s; };
    auto pointer = [&] { return static_cast<uintptr_t>(next()); };
    AttentionCall c;
    c.dtype = static_cast<int>(next());
    c.batch = next(), c.heads = next(), c.kv_heads = next();
    c.q_len = next(), c.kv_len = next(), c.d = next(), c.dv = next();
    const uintptr_t q = pointer();
    c.q = ptr<const char>(q), c.qs = strides();
    const uintptr_t k = pointer();
    c.k = ptr<const char>(k), c.ks = strides();
    const uintptr_t v = pointer();
    c.v = ptr<const char>(v), c.vs = strides();
    c.out = ptr<char>(pointer()), c.os = strides();
    c.lse = ptr<float>(pointer()), c.ls = strides();
    c.causal = next() != 0, c.window = next(), c.q_start = next();
    c.q_starts = ptr<const int64_t>(pointer());
    c.mask_kind = static_cast<MaskKind>(next()), c.mask = ptr<const char>(pointer()), c.ms = strides();
    c.sinks = ptr<const float>(pointer());
    c.cu_q = ptr<const int64_t>(pointer()), c.cu_k = ptr<const int64_t>(pointer());
    c.block_table = ptr<const int64_t>(pointer()), c.table_stride = next(), c.page = next();
    c.kv_lens = ptr<const int64_t>(pointer());
    c.wide = next() != 0;
    c.scale = scale, c.cap = cap, c.masked_at = masked_at;
    const int64_t queries = c.batch * c.heads * c.q_len, keys = c.batch * c.kv_heads * c.kv_len;
    if (!c.cu_q) {
      need_memory(queries * c.d, {q});
      need_memory(keys * c.d, {k});
      need_memory(keys * c.dv, {v});
    }
    PathCheck check;
    if (path_mode().on.load(std::memory_order_relaxed)) {
      check.seed = path_mode().attention;
      check.leaf = path_mode().leaf;
      check.fault = path_mode().take_fault();
      c.check = &check;
    }
    nb::gil_scoped_release no_gil;
    return attention(attention_kernels(), c);
  });
}
}  // namespace samebits
