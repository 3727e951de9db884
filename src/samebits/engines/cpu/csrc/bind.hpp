// What every binding file needs. Pointers arrive as integers (Tensor.data_ptr()).
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>

#include "isa.hpp"
#include "parallel.hpp"
#include "types.hpp"

namespace nb = nanobind;

namespace samebits {
template <class T>
inline T* ptr(uintptr_t p) { return reinterpret_cast<T*>(p); }
using NoGil = nb::call_guard<nb::gil_scoped_release>;

void bind_probe(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_pointwise(nb::module_& m);
void bind_reduce(nb::module_& m);
void bind_norm(nb::module_& m);
void bind_gemm(nb::module_& m);
void bind_counted(nb::module_& m);
void bind_order(nb::module_& m);
void bind_evaluate(nb::module_& m);
}  // namespace samebits
