#include "recipe.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tensor.hpp"

namespace samebits::cuda {
namespace {

thread_local Recorder* at_work = nullptr;

constexpr int64_t kScratchAlignment = 256;

/// torch's allocation without its dispatcher, as its own compiler calls it; null where this torch has none.
PyObject* allocator() {
  static PyObject* const once = [] {
    nb::object guards = nb::module_::import_("torch._C._dynamo.guards");
    return nb::getattr(guards, "_empty_strided_cuda", nb::none()).release().ptr();
  }();
  return once == Py_None ? nullptr : once;
}

nb::object allocate(nb::handle shape, nb::handle strides, nb::handle dtype) {
  PyObject* arguments[] = {shape.ptr(), strides.ptr(), dtype.ptr()};
  nb::object made = nb::steal(PyObject_Vectorcall(allocator(), arguments, 3, nullptr));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

nb::object allocate_bytes(int64_t count) {
  static PyObject* const bytes = nb::object(nb::module_::import_("torch").attr("uint8")).release().ptr();
  return allocate(nb::make_tuple(count), nb::make_tuple(1), bytes);
}

bool current_is(int device) {
  Context now = nullptr;
  return driver().context_current(&now) == 0 && now == context_of(device);
}

/// Bytes of memory.
struct Span {
  uint64_t begin, end;
  bool holds(uint64_t address) const { return begin <= address && address < end; }
  bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
};

/// The memory that a tensor is a view of.
Span storage_of(nb::handle tensor) {
  nb::object storage = tensor.attr("untyped_storage")();
  const uint64_t begin = nb::cast<uint64_t>(storage.attr("data_ptr")());
  return {begin, begin + nb::cast<uint64_t>(storage.attr("nbytes")())};
}

/// torch's allocation takes no torch.Size.
nb::object exact_tuple(nb::handle sequence) { return nb::steal(PySequence_Tuple(sequence.ptr())); }

bool meets_any(const Span& span, const std::vector<Span>& others) {
  return std::any_of(others.begin(), others.end(), [&](const Span& other) { return span.meets(other); });
}

/// Whether an element of the tensor lies at the address, for strides of which each passes the ones below.
bool has_element_at(const Tensor& t, uint64_t address) {
  const uint64_t size = t.bits / 8;
  if (address < t.address() || (address - t.address()) % size) return false;
  int64_t rest = static_cast<int64_t>((address - t.address()) / size);
  std::vector<int> axes(t.rank);
  std::iota(axes.begin(), axes.end(), 0);
  std::sort(axes.begin(), axes.end(), [&](int a, int b) { return t.strides[a] > t.strides[b]; });
  for (int axis : axes)
    if (t.shape[axis] > 1 && t.strides[axis] > 0)
      rest -= std::min(rest / t.strides[axis], t.shape[axis] - 1) * t.strides[axis];
  return rest == 0;
}

/// The key of arguments; false if there is none. A negated view has the same memory as what it is a view of.
bool key_of(Keys& keys, std::string& key, const nb::args& args, std::vector<nb::object>* kept) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  if (!make_key(keys, key, args, kept)) return false;
  for (nb::handle arg : args) {
    if (!is_tensor(arg.ptr())) continue;
    nb::object negated = nb::steal(PyObject_CallMethodNoArgs(arg.ptr(), is_neg));
    if (!negated.is_valid()) throw nb::python_error();
    if (negated.ptr() != Py_False) return false;
  }
  return true;
}

}  // namespace

Recorder::Recorder() : outer_(at_work) { at_work = this; }
Recorder::~Recorder() { at_work = outer_; }
Recorder* Recorder::active() { return at_work; }

void Recorder::add(nb::handle kernel, const uint32_t grid[3], const std::vector<Value>& values,
                   const std::vector<Window>& windows, const std::vector<std::pair<int, PyObject*>>& tensors) {
  Seen seen{{nb::borrow(kernel), {grid[0], grid[1], grid[2]}, values, windows, {}}, {}};
  for (const auto& [index, tensor] : tensors) {
    seen.step.holes.push_back({index < 0, index < 0 ? ~index : index, {}});
    seen.tensors.push_back(nb::borrow(tensor));
  }
  seen_.push_back(std::move(seen));
}

Recipes::Recipe Recipes::make(const Recorder& record, nb::handle result, nb::handle allocated, const nb::args& args) {
  Recipe made;
  const Recipe unusable;
  std::vector<Tensor> known;   // operands, then results
  std::vector<Span> memory;    // that they are views of
  for (nb::handle arg : args) {
    if (!is_tensor(arg.ptr())) continue;
    const Tensor t = view(arg.ptr());
    if (!t.on_gpu() || (made.device >= 0 && made.device != t.device)) return unusable;
    made.device = t.device;
    known.push_back(t);
    memory.push_back(storage_of(arg));
  }
  made.many = nb::isinstance<nb::tuple>(result);
  const nb::tuple items = made.many ? nb::borrow<nb::tuple>(result) : nb::make_tuple(nb::borrow(result));
  for (nb::handle item : items) {
    if (item.is_none()) {
      made.results.push_back({});
      continue;
    }
    Tensor t;
    if (!is_tensor(item.ptr()) || !view_if_plain(item.ptr(), t) || !t.on_gpu()) return unusable;
    const Span own = storage_of(item);
    if (own.begin == own.end || own.begin != t.address() || meets_any(own, memory)) return unusable;
    known.push_back(t);
    memory.push_back(own);
    made.results.push_back({exact_tuple(item.attr("shape")), exact_tuple(item.attr("stride")()), item.attr("dtype")});
  }
  std::vector<std::pair<Span, int64_t>> scratch;  // and where it is in the recipe's own
  const auto place_of = [&](uint64_t address, nb::handle tensor) -> std::optional<Place> {
    std::optional<Place> found;
    for (size_t i = 0; i < known.size(); ++i)
      if (has_element_at(known[i], address)) {
        const uint64_t offset = address - known[i].address();
        // An element of two operands, or one whose alignment is another in another call.
        if (found || (offset && !known[i].aligned())) return std::nullopt;
        found = Place{static_cast<int>(i), offset};
      }
    const Span storage = storage_of(tensor);
    if (found || !storage.holds(address) || meets_any(storage, memory)) return found;
    if (!PySet_Contains(allocated.ptr(), nb::int_(storage.begin).ptr())) return std::nullopt;  // it holds something
    auto at = std::find_if(scratch.begin(), scratch.end(), [&](auto& s) { return s.first.begin == storage.begin; });
    if (at == scratch.end()) {
      at = scratch.insert(scratch.end(), {storage, made.scratch});
      made.scratch += (storage.end - storage.begin + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    }
    return Place{static_cast<int>(known.size()), at->second + (address - storage.begin)};
  };
  for (const auto& seen : record.seen_) {
    Step step = seen.step;
    for (size_t i = 0; i < step.holes.size(); ++i) {
      auto& [window, index, place] = step.holes[i];
      const auto found = place_of(window ? step.windows[index].address : step.values[index].word, seen.tensors[i]);
      if (!found) return unusable;
      place = *found;
    }
    made.steps.push_back(std::move(step));
  }
  made.usable = !made.steps.empty() && known.size() < Step::kMostSources && allocator() && current_is(made.device);
  return made;
}

nb::object Recipes::learn(nb::handle work, nb::handle allocated, const nb::args& args) {
  std::string key;
  std::vector<nb::object> kept;
  const bool plain = key_of(keys_, key, args, &kept);
  Recorder record;
  nb::object result = work();
  if (!plain) return result;
  const nb::object memory = allocated();
  Recipe made = record.sound_ && !memory.is_none() ? make(record, result, memory, args) : Recipe();
  made.learned = true;
  made.kept = std::move(kept);
  if (entries_.size() >= most_) entries_.clear();
  entries_.insert_or_assign(std::move(key), std::make_shared<const Recipe>(std::move(made)));
  return result;
}

bool Recipes::wants(const nb::args& args) {
  std::string key;
  Recipe once;
  if (!key_of(keys_, key, args, &once.kept)) return false;
  const auto known = entries_.find(key);
  if (known != entries_.end()) return !known->second->learned;
  if (entries_.size() >= most_) entries_.clear();
  entries_.emplace(std::move(key), std::make_shared<const Recipe>(std::move(once)));
  return false;
}

nb::object Recipes::replay(const nb::args& args) {
  thread_local std::string spare;
  std::string key = std::move(spare);
  key.clear();
  const bool plain = key_of(keys_, key, args, nullptr);
  const auto known = plain ? entries_.find(key) : entries_.end();
  spare = std::move(key);
  // A call inside one that is being written down belongs to its record.
  if (known == entries_.end() || !known->second->usable || Recorder::active()) return nb::none();
  const std::shared_ptr<const Recipe> kept = known->second;  // another thread may clear all while this one waits
  const Recipe& r = *kept;
  if (!current_is(r.device)) return nb::none();
  uint64_t sources[Step::kMostSources];
  int count = 0;
  for (nb::handle arg : args)
    if (is_tensor(arg.ptr())) {
      const Tensor t = view(arg.ptr());
      if (t.hollow()) return nb::none();
      sources[count++] = t.address();
    }
  std::vector<nb::object> results;
  for (const Result& wanted : r.results) {
    if (!wanted.shape.is_valid()) {
      results.push_back(nb::none());
      continue;
    }
    results.push_back(allocate(wanted.shape, wanted.strides, wanted.dtype));
    sources[count++] = view(results.back().ptr()).address();
  }
  nb::object scratch;  // may go back after the launches: the allocator knows the stream
  if (r.scratch) {
    scratch = allocate_bytes(r.scratch);
    sources[count++] = view(scratch.ptr()).address();
  }
  const Stream stream = current_stream(r.device);
  for (const Step& step : r.steps) {
    thread_local std::vector<Value> values;
    thread_local std::vector<Window> windows;
    values = step.values;
    windows = step.windows;
    for (const auto& [window, index, place] : step.holes)
      (window ? windows[index].address : values[index].word) = sources[place.source] + place.offset;
    nb::cast<const Kernel&>(step.kernel).launch(stream, step.grid.data(), values, windows, 0);
  }
  if (!r.many) return results.front();
  nb::object made = nb::steal(PyTuple_New(results.size()));
  for (size_t i = 0; i < results.size(); ++i) PyTuple_SET_ITEM(made.ptr(), i, results[i].release().ptr());
  return made;
}

void bind_recipes(nb::module_& m) {
  nb::class_<Recipes>(m, "Recipes", "Operations that were seen once and are started again without Python.")
      .def(nb::init<size_t>(), nb::arg("most"))
      .def("replay", &Recipes::replay, nb::arg("args"))
      .def("wants", &Recipes::wants, nb::arg("args"))
      .def("learn", &Recipes::learn, nb::arg("work"), nb::arg("allocated"), nb::arg("args"))
      .def("clear", &Recipes::clear)
      .def("__len__", &Recipes::size);
  m.def("recording", [] { return Recorder::active() != nullptr; }, "Whether this thread's launches are being kept.");
}

}  // namespace samebits::cuda
