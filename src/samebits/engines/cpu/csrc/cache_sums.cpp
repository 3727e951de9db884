// Sums of the integer views of what a KV cache holds, position by position: kept when it is written, and compared.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "bind.hpp"

namespace samebits {
namespace {

/// Of one row: int64, without a rounding. Integers of 16 bits and fewer are added in int32 where that cannot overflow.
template <class T>
int64_t row_sum(const T* x, int64_t n) {
  using Narrow = std::conditional_t<(sizeof(T) < 4), int32_t, int64_t>;
  constexpr int64_t kBlock = int64_t{1} << 16;  // of int16: at most 2^31 in magnitude, which -2^31 may be
  int64_t sum = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    Narrow part = 0;
    for (int64_t j = i; j < n && j < i + kBlock; ++j) part += x[j];
    sum += part;
  }
  return sum;
}

/// A tensor [sequences, heads, length, width], contiguous, of which somebody else holds the memory.
struct Held {
  const void* data;
  int bytes;  // of an element
  int64_t width;
  std::vector<int64_t> sums;  // [length]

  /// Adds the rows of positions [begin, end) in so many planes [length, width], plane by plane: as they lie in memory.
  void add(int64_t planes, int64_t length, int64_t begin, int64_t end, int64_t* to) const {
    for (int64_t plane = 0; plane < planes; ++plane)
      for (int64_t at = begin; at < end; ++at) to[at - begin] += row((plane * length + at) * width);
  }
  int64_t row(int64_t at) const {
    switch (bytes) {
      case 1: return row_sum(static_cast<const int8_t*>(data) + at, width);
      case 2: return row_sum(static_cast<const int16_t*>(data) + at, width);
      default: return row_sum(static_cast<const int32_t*>(data) + at, width);
    }
  }
};

class CacheSums {
 public:
  /// `tensors`: address, bytes of an element (1, 2 or 4), and width of each.
  CacheSums(int64_t heads, int64_t length, const std::vector<std::tuple<uintptr_t, int, int64_t>>& tensors)
      : heads_(heads), length_(length) {
    for (const auto& [address, bytes, width] : tensors)
      held_.push_back({ptr<const void>(address), bytes, width, std::vector<int64_t>(length)});
  }
  /// Positions [begin, end) of the first `rows` sequences are what they are now.
  void write(int64_t rows, int64_t begin, int64_t end) {
    for (Held& x : held_) {
      std::fill(x.sums.begin() + begin, x.sums.begin() + end, 0);
      x.add(rows * heads_, length_, begin, end, x.sums.data() + begin);
    }
  }
  /// Those of [begin, end) that are not what was written, ascending.
  std::vector<int64_t> changed(int64_t rows, int64_t begin, int64_t end) const {
    std::vector<int64_t> found, now(end - begin);
    for (const Held& x : held_) {
      std::fill(now.begin(), now.end(), 0);
      x.add(rows * heads_, length_, begin, end, now.data());
      for (int64_t at = begin; at < end; ++at)
        if (now[at - begin] != x.sums[at]) found.push_back(at);
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

 private:
  int64_t heads_, length_;
  std::vector<Held> held_;
};

}  // namespace

void bind_cache_sums(nb::module_& m) {
  nb::class_<CacheSums>(m, "CacheSums")
      .def(nb::init<int64_t, int64_t, const std::vector<std::tuple<uintptr_t, int, int64_t>>&>())
      .def("write", &CacheSums::write)
      .def("changed", &CacheSums::changed, NoGil());
}

}  // namespace samebits
