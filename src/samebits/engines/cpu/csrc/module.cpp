// The extension module samebits.engines.cpu._cpu.
#include <stdexcept>

#include "bind.hpp"

NB_MODULE(_cpu, m) {
  using namespace samebits;
  m.def("isa", [] { return isa_name(active_isa()); });
  m.def("isas", [] {
    std::vector<std::string> names;
    for (int i = 3; i >= 0; --i)
      if (has_isa(static_cast<Isa>(i))) names.emplace_back(isa_name(static_cast<Isa>(i)));
    return names;
  });
  m.def("set_isa", [](const char* name) { return set_isa(name); });
  m.def("set_thread_isa", [](const char* name) { return set_thread_isa(name); });
  m.def("max_threads", [] { return max_threads(); });
  m.def("pool_name", [] { return pool_name(); });
  m.def("set_worker_flush", [](bool flush) { return set_worker_flush(flush); });
  bind_probe(m);
  bind_attention(m);
  bind_pointwise(m);
  bind_reduce(m);
  bind_norm(m);
  bind_gemm(m);
  bind_packed(m);
  bind_counted(m);
  bind_guarded(m);
  bind_cache_sums(m);
  bind_order(m);
  bind_evaluate(m);
  bind_exact(m);
  bind_exact_rows(m);
  bind_augmented(m);
  bind_path(m);
  bind_numbers(m);
}
