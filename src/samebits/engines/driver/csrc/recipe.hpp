// Operations that were seen once and are started again without Python: their launches, with the addresses of operands,
// results and scratch memory left open.
//
// What an operation launches is a function of its operands' shapes, strides, types and alignment and of its numbers: of
// what a `Memo` calls equal. So the launches of one call serve all that are equal.
#pragma once
#include <nanobind/nanobind.h>

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernel.hpp"
#include "memo.hpp"

namespace samebits::cuda {

/// An address inside an operand, a result, or the scratch memory.
struct Place {
  int source = 0;  // operands first, then results, then scratch memory
  uint64_t offset = 0;
};

/// One launch. `holes[i]` is where the address goes: a value, or the window of a tensor descriptor.
struct Step {
  static constexpr int kMostSources = 32;
  struct Hole {
    bool window;
    int index;
    Place place;
  };
  nb::object kernel;
  std::array<uint32_t, 3> grid;
  std::vector<Value> values;
  std::vector<Window> windows;
  std::vector<Hole> holes;
};

/// Writes down the launches of this thread while it lives.
class Recorder {
 public:
  Recorder();
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The one that is at work in this thread, or null.
  static Recorder* active();

  /// A launch. `tensors` are those of its arguments: which value, or window (~index), has whose address.
  void add(nb::handle kernel, const uint32_t grid[3], const std::vector<Value>& values,
           const std::vector<Window>& windows, const std::vector<std::pair<int, PyObject*>>& tensors);
  /// Something happened that is no launch: nothing can be made of the record.
  void spoil() { sound_ = false; }

 private:
  friend class Recipes;
  struct Seen {
    Step step;
    std::vector<nb::object> tensors;  // kept, so that no two have one address
  };
  std::vector<Seen> seen_;
  bool sound_ = true;
  Recorder* outer_;
};

/// Recipes by what arguments are (see `Memo`).
class Recipes {
 public:
  explicit Recipes(size_t most) : most_(most) {}
  /// Starts what is known of such arguments and returns its result; None, and nothing has happened, if there is none.
  nb::object replay(const nb::args& args);
  /// Whether to `learn`: such arguments have come once before. What never comes again is not worth a recipe.
  bool wants(const nb::args& args);
  /// Calls `work()`, keeps what it launched and returns its result. `allocated()` gives the addresses of the memory that
  /// it allocated meanwhile, or None if it did anything else besides.
  nb::object learn(nb::handle work, nb::handle allocated, const nb::args& args);
  void clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

 private:
  struct Result {
    nb::object shape, strides, dtype;  // none: the result is None
  };
  struct Recipe {
    bool learned = false, usable = false, many = false;
    int device = -1;
    std::vector<Result> results;
    int64_t scratch = 0;  // bytes
    std::vector<Step> steps;
    std::vector<nb::object> kept;
  };
  static Recipe make(const Recorder& record, nb::handle result, nb::handle allocated, const nb::args& args);

  size_t most_;
  Keys keys_;
  std::unordered_map<std::string, std::shared_ptr<const Recipe>> entries_;  // guarded by the GIL
};

void bind_recipes(nb::module_& m);

}  // namespace samebits::cuda
