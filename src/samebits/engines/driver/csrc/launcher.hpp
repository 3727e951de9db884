// From Python arguments to a running kernel: which specialisation they need, and what its parameters are.
#pragma once
#include <nanobind/nanobind.h>

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel.hpp"
#include "memo.hpp"

namespace samebits::cuda {

using Grid = std::array<uint32_t, 3>;

/// What one call's arguments are.
struct Arguments {
  std::string key;  // of the specialisation
  std::vector<Value> values;
  std::vector<Window> windows;
  std::vector<std::pair<int, PyObject*>> tensors;  // of a value, or (~index) of a window
  int device = -1;

  void clear();
};

/// Launches of one kernel with given options and compile-time parameters.
///
/// Arguments are told apart as Triton does: dtype and 16-byte alignment of pointers; 1, multiples of 16 and width of
/// integers; dtype, tile and layout of tensor descriptors. Each class is compiled once a device.
class Launcher {
 public:
  /// `compile(device, args)` returns a `Kernel`; `allocate(bytes, device)` a tensor of scratch memory.
  /// `constant[i]`: argument i is a compile-time parameter.
  Launcher(std::string name, nb::callable compile, nb::callable allocate, std::vector<bool> constant);

  void operator()(nb::handle grid, nb::args args);

  size_t compiled() const { return kernels_.size(); }

 private:
  void look_at(const nb::args& args, Arguments& found);
  void look_at_descriptor(nb::handle arg, size_t index, Arguments& found);
  nb::handle find(const Arguments& arguments, const nb::args& args);

  std::string name_;
  nb::callable compile_, allocate_;
  std::vector<bool> constant_;
  Keys keys_;
  std::unordered_map<std::string, nb::object> kernels_;  // guarded by the GIL, as everything here
};

void bind_launcher(nb::module_& m);

}  // namespace samebits::cuda
