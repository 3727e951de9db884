// Storage types as the binding layer names them, and their exact conversions.
#pragma once
#include <cstdint>

namespace samebits {
enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };
inline int64_t size_of(DType t) { return t == DType::f32 ? 4 : 2; }
}  // namespace samebits
