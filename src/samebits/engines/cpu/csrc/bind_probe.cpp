#include "bind.hpp"
#include "kernels/probe.hpp"

namespace samebits {
SB_KERNEL_TABLE(ProbeKernels, probe_kernels)

void bind_probe(nb::module_& m) {
  m.def("probe_binary", [](int op, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t out) {
    probe_kernels().binary(op, ptr<float>(a), ptr<float>(b), ptr<float>(c), ptr<float>(out));
  });
  m.def("probe_fold", [](uintptr_t a) { return probe_kernels().fold(ptr<float>(a)); });
  m.def("probe_fold16", [](uintptr_t a, uintptr_t out) { probe_kernels().fold16(ptr<float>(a), ptr<float>(out)); });
  m.def("probe_narrow", [](int dtype, uintptr_t a, uintptr_t out) {
    probe_kernels().narrow(dtype, ptr<float>(a), ptr<uint16_t>(out));
  });
  m.def("probe_widen", [](int dtype, uintptr_t a, uintptr_t out) {
    probe_kernels().widen(dtype, ptr<uint16_t>(a), ptr<float>(out));
  });
}
}  // namespace samebits
