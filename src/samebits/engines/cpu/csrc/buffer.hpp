// Memory for packed operands.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace samebits {

// A buffer that a thread keeps between calls, unless it is large.
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  float* get(int64_t floats) {
    if (floats > size_) {
      std::free(std::exchange(data_, nullptr));
      size_ = 0;
      size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + 4095) / 4096 * 4096;
      data_ = static_cast<float*>(std::aligned_alloc(4096, bytes));
      if (!data_) throw std::bad_alloc();
      size_ = floats;
    }
    return data_;
  }
  void release_if_large() {
    if (size_ > kKeep) {
      std::free(std::exchange(data_, nullptr));
      size_ = 0;
    }
  }

 private:
  static constexpr int64_t kKeep = 8 << 20;  // floats
  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace samebits
