// Self-test area: runs each vector primitive on 16 lanes, so tests can compare instruction sets.
#pragma once
#include <cstdint>

namespace samebits {
struct ProbeKernels {
  void (*binary)(int op, const float* a, const float* b, const float* c, float* out);
  float (*fold)(const float* a);
  void (*fold16)(const float* a, float* out);
  void (*narrow)(int dtype, const float* a, uint16_t* out);
  void (*widen)(int dtype, const uint16_t* a, float* out);
};
}  // namespace samebits
