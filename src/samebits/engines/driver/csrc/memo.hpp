// Look-ups by what arguments are, for less time than Python needs to build a key.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace samebits::cuda {

namespace nb = nanobind;

/// Keys of exact bytes. Values that Python calls equal and that are not the same (1, 1.0, True; 0.0, -0.0) differ here.
class Keys {
 public:
  /// Appends a value: None, bool, int, float, str, tuples and dicts of them, or any hashable object.
  void append(std::string& key, nb::handle value);
  /// A small number for an object; equal objects of one type share it.
  int64_t intern(nb::handle object);

 private:
  nb::dict numbers_;  // keeps the objects alive
  int64_t next_ = 0;
};

/// The key of arguments; false if there is none. Objects whose addresses are parts of it go to `kept`.
bool make_key(Keys& keys, std::string& key, const nb::args& args, std::vector<nb::object>* kept);

/// Objects by arguments. A tensor counts with dtype, device, shape, strides and 16-byte alignment; numbers, strings and
/// dicts (of compile-time parameters) with their exact values; any other object as itself. Nothing is remembered of
/// tensors without plain memory.
class Memo {
 public:
  /// Forgets everything when it would hold more than `most`.
  explicit Memo(size_t most) : most_(most) {}
  /// What was put with such arguments, or None.
  nb::object get(const nb::args& args);
  void put(nb::object value, const nb::args& args);
  void clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    nb::object value;
    std::vector<nb::object> kept;  // their addresses are parts of the key
  };
  size_t most_;
  Keys keys_;
  std::unordered_map<std::string, Entry> entries_;  // guarded by the GIL
};

template <class T>
void append_bytes(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void bind_memo(nb::module_& m);

}  // namespace samebits::cuda
