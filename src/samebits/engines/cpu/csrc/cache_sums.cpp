// Sums of the integer views of what a KV cache holds, for each position of each sequence: kept when it is written, moved
// when sequences move, and compared.
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
  std::vector<int64_t> sums;  // [sequences, length]

  /// Sums positions [begin, end) of the sequence, over planes [length, width] of heads, as they lie in memory.
  void sum(int64_t sequence, int64_t heads, int64_t length, int64_t begin, int64_t end, int64_t* to) const {
    std::fill(to, to + (end - begin), 0);
    for (int64_t plane = sequence * heads; plane < (sequence + 1) * heads; ++plane)
      for (int64_t at = begin; at < end; ++at) to[at - begin] += row((plane * length + at) * width);
  }
  int64_t row(int64_t at) const {
    switch (bytes) {
      case 1: return row_sum(static_cast<const int8_t*>(data) + at, width);
      case 2: return row_sum(static_cast<const int16_t*>(data) + at, width);
      case 4: return row_sum(static_cast<const int32_t*>(data) + at, width);
      default: return row_sum(static_cast<const int32_t*>(data) + 2 * at, 2 * width);  // 8: both halves
    }
  }
};

class CacheSums {
 public:
  /// `tensors`: address, bytes of an element (1, 2, 4 or 8), and width of each.
  CacheSums(int64_t sequences, int64_t heads, int64_t length,
            const std::vector<std::tuple<uintptr_t, int, int64_t>>& tensors)
      : sequences_(sequences), heads_(heads), length_(length) {
    for (const auto& [address, bytes, width] : tensors)
      held_.push_back({ptr<const void>(address), bytes, width, std::vector<int64_t>(sequences * length)});
  }
  /// Positions [begin, end) of the first `rows` sequences are what they are now.
  void write(int64_t rows, int64_t begin, int64_t end) {
    check(rows, begin, end);
    for (Held& x : held_)
      for (int64_t s = 0; s < rows; ++s) x.sum(s, heads_, length_, begin, end, x.sums.data() + s * length_ + begin);
  }
  /// Sequence i has become what sequence from[i] was.
  void move(const std::vector<int64_t>& from) {
    check(static_cast<int64_t>(from.size()), 0, 0);
    for (int64_t s : from) check(s + 1, 0, 0);
    for (Held& x : held_) {
      const std::vector<int64_t> before = x.sums;
      for (size_t i = 0; i < from.size(); ++i)
        std::copy_n(before.begin() + from[i] * length_, length_, x.sums.begin() + i * length_);
    }
  }
  /// Those of [begin, end) that are not what was written, ascending.
  std::vector<int64_t> changed(int64_t rows, int64_t begin, int64_t end) const {
    check(rows, begin, end);
    std::vector<int64_t> found, now(end - begin);
    for (const Held& x : held_)
      for (int64_t s = 0; s < rows; ++s) {
        x.sum(s, heads_, length_, begin, end, now.data());
        for (int64_t at = begin; at < end; ++at)
          if (now[at - begin] != x.sums[s * length_ + at]) found.push_back(at);
      }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

 private:
  void check(int64_t rows, int64_t begin, int64_t end) const {
    if (rows < 0 || rows > sequences_ || begin < 0 || end < begin || end > length_)
      throw nb::value_error("sums of a cache: no such sequences or positions");
  }

  int64_t sequences_, heads_, length_;
  std::vector<Held> held_;
};

}  // namespace

void bind_cache_sums(nb::module_& m) {
  nb::class_<CacheSums>(m, "CacheSums")
      .def(nb::init<int64_t, int64_t, int64_t, const std::vector<std::tuple<uintptr_t, int, int64_t>>&>())
      .def("write", &CacheSums::write)
      .def("move", &CacheSums::move)
      .def("changed", &CacheSums::changed, NoGil());
}

}  // namespace samebits
