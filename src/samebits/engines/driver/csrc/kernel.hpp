// A compiled kernel, loaded on one device, and the packing of its parameters.
#pragma once
#include <string>
#include <vector>

#include "driver.hpp"

namespace samebits::cuda {

/// How the copy engine lays out a tile in shared memory: the compiler's half of a tensor map.
struct TileFormat {
  int swizzle, element_bytes, element_type;
  std::vector<uint32_t> box;  // outermost first
};

/// What the kernel expects at one position of the caller's arguments.
struct Slot {
  enum Kind { kConstant, kWord, kFloat, kDouble, kTensorMap } kind = kConstant;
  TileFormat tile;  // of kTensorMap
};

/// A tensor as the copy engine sees it: the caller's half of a tensor map. Outermost axis first.
struct Window {
  static constexpr int kMaxRank = 5;
  uint64_t address = 0;
  int rank = 0;
  int64_t shape[kMaxRank], strides[kMaxRank];  // elements
  bool nan_fill = false;
};

/// The value of one argument; which member counts is the slot's matter.
struct Value {
  uint64_t word = 0;
  double real = 0;
  int window = -1;
};

TensorMap encode(const TileFormat& tile, const Window& window);

class Kernel {
 public:
  /// Loads `cubin` on `device`. Safe while a stream of this thread is being captured.
  Kernel(const std::string& cubin, const std::string& name, int device, int threads, int shared, int ctas, bool pdl,
         bool cooperative, int64_t scratch, std::vector<Slot> slots);

  /// Starts the kernel; `grid` counts programs. `scratch` is device memory of `scratch_bytes(grid)`.
  void launch(Stream stream, const uint32_t grid[3], const std::vector<Value>& values,
              const std::vector<Window>& windows, uint64_t scratch) const;

  int64_t scratch_bytes(const uint32_t grid[3]) const {
    return scratch_ * ctas_ * static_cast<int64_t>(grid[0]) * grid[1] * grid[2];
  }
  const std::string& name() const { return name_; }
  int device() const { return device_; }
  int shared() const { return shared_; }
  int registers = 0, local_bytes = 0;

 private:
  std::string name_;
  int device_, threads_, shared_, ctas_;
  bool pdl_, cooperative_;
  int64_t scratch_;
  std::vector<Slot> slots_;
  Context context_;
  Function function_ = nullptr;
};

}  // namespace samebits::cuda
