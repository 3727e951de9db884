// What every binding file needs. Pointers arrive as integers (Tensor.data_ptr()).
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <initializer_list>

#include "isa.hpp"
#include "parallel.hpp"
#include "types.hpp"

namespace nb = nanobind;

namespace samebits {
template <class T>
inline T* ptr(uintptr_t p) { return reinterpret_cast<T*>(p); }
/// A tensor may have elements and no memory: a freed storage, or torch's stand-in for zeros.
inline void need_memory(int64_t elements, std::initializer_list<uintptr_t> operands) {
  if (elements <= 0) return;
  for (uintptr_t p : operands)
    if (!p)
      throw nb::value_error(
          "samebits: an operand has elements but no memory: its storage was freed, or it is a stand-in such as "
          "torch._efficientzerotensor. Allocate it first, e.g. with .clone()");
}
using NoGil = nb::call_guard<nb::gil_scoped_release>;

void bind_probe(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_pointwise(nb::module_& m);
void bind_reduce(nb::module_& m);
void bind_norm(nb::module_& m);
void bind_gemm(nb::module_& m);
void bind_packed(nb::module_& m);
void bind_counted(nb::module_& m);
void bind_guarded(nb::module_& m);
void bind_cache_sums(nb::module_& m);
void bind_order(nb::module_& m);
void bind_evaluate(nb::module_& m);
void bind_exact(nb::module_& m);
void bind_exact_rows(nb::module_& m);
void bind_augmented(nb::module_& m);
void bind_path(nb::module_& m);
void bind_numbers(nb::module_& m);
}  // namespace samebits
