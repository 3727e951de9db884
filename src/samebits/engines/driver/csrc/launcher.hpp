// From Python arguments to a running kernel: which specialisation they need, and what its parameters are.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel.hpp"

namespace samebits::cuda {

namespace nb = nanobind;

/// Keys of exact bytes. Values that Python calls equal and that are not the same (1, 1.0, True; 0.0, -0.0) differ here.
class Keys {
 public:
  /// Appends a compile-time value: None, bool, int, float, str, tuples of them, or any hashable object.
  void append(std::string& key, nb::handle value);
  /// A small number for an object; equal objects of one type share it.
  int64_t intern(nb::handle object);

 private:
  nb::dict numbers_;  // keeps the objects alive
  int64_t next_ = 0;
};

/// Launches of one kernel with given options and compile-time parameters.
///
/// Arguments are told apart as Triton does: dtype and 16-byte alignment of pointers; 1, multiples of 16 and width of
/// integers; dtype, tile and layout of tensor descriptors. Each class is compiled once a device.
class Launcher {
 public:
  /// `compile(device, args)` returns a `Kernel`; `allocate(bytes, device)` a tensor of scratch memory;
  /// `stream(device)` the current stream's handle. `constant[i]`: argument i is a compile-time parameter.
  Launcher(std::string name, nb::callable compile, nb::callable allocate, nb::callable stream,
           std::vector<bool> constant);

  void operator()(nb::handle grid, nb::args args);

  size_t compiled() const { return kernels_.size(); }

 private:
  struct Seen;
  const Kernel& find(const std::string& key, int device, const nb::args& args);

  std::string name_;
  nb::callable compile_, allocate_, stream_;
  std::vector<bool> constant_;
  Keys keys_;
  std::unordered_map<std::string, nb::object> kernels_;  // guarded by the GIL, as everything here
};

/// Launchers by kernel, options and compile-time parameters.
class Table {
 public:
  /// The launcher, or None where `put` has not been called with the same key.
  nb::object get(nb::handle kernel, nb::handle options, nb::dict constants);
  void put(nb::handle kernel, nb::handle options, nb::dict constants, nb::object launcher);
  size_t size() const { return launchers_.size(); }

 private:
  std::string make_key(nb::handle kernel, nb::handle options, const nb::dict& constants);

  Keys keys_;
  std::unordered_map<std::string, nb::object> launchers_;
  std::vector<nb::object> kernels_;  // their addresses are parts of keys
};

void bind_launcher(nb::module_& m);

}  // namespace samebits::cuda
