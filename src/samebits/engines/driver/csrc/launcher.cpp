#include "launcher.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "recipe.hpp"
#include "tensor.hpp"

namespace samebits::cuda {
namespace {

/// Names of the fields of tensor descriptors, made once.
struct Names {
  PyObject* base = PyUnicode_InternFromString("base");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* strides = PyUnicode_InternFromString("strides");
  PyObject* block_shape = PyUnicode_InternFromString("block_shape");
  PyObject* padding = PyUnicode_InternFromString("padding");
  PyObject* layout = PyUnicode_InternFromString("layout");
};

const Names& names() {
  static const Names once;
  return once;
}

/// Integers of a list, a tuple or torch.Size; returns how many.
int integers(nb::handle sequence, int64_t* out, int most) {
  nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), "grids, shapes and strides are sequences"));
  if (!fast.is_valid()) throw nb::python_error();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
  if (count > most) fail("more than " + std::to_string(most) + " axes or grid dimensions");
  for (Py_ssize_t i = 0; i < count; ++i) {
    out[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    if (out[i] == -1 && PyErr_Occurred()) throw nb::python_error();
  }
  return static_cast<int>(count);
}

/// Triton's classes of integers: 1; 32 or 64 bits, signed or not; divisible by 16 or not.
char integer_class(PyObject* value, uint64_t& word) {
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (number == -1 && !overflow && PyErr_Occurred()) throw nb::python_error();
  if (overflow) {
    word = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) throw nb::python_error();
    return word % 16 == 0 ? 'U' : 'u';
  }
  word = static_cast<uint64_t>(number);
  if (number == 1) return '1';
  const bool narrow = number >= INT32_MIN && number <= INT32_MAX, round = number % 16 == 0;
  return narrow ? (round ? 'I' : 'i') : (round ? 'L' : 'l');
}

/// The fields of a tensor descriptor (Triton's or Gluon's), or nothing for other objects.
nb::dict fields_of(nb::handle object) {
  nb::object fields = nb::steal(PyObject_GenericGetDict(object.ptr(), nullptr));
  if (!fields.is_valid()) PyErr_Clear();
  const bool described = fields.is_valid() && PyDict_Contains(fields.ptr(), names().block_shape) == 1 &&
                         PyDict_Contains(fields.ptr(), names().base) == 1;
  return described ? nb::borrow<nb::dict>(fields) : nb::steal<nb::dict>(nullptr);
}

/// A field, or nothing.
nb::handle field(const nb::dict& fields, PyObject* name) { return PyDict_GetItemWithError(fields.ptr(), name); }

/// The grid; false if it has no program.
bool read_grid(nb::handle grid, const std::string& kernel, Grid& found) {
  int64_t programs[3] = {1, 1, 1};
  if (integers(grid, programs, 3) == 0) fail("kernel " + kernel + ": the grid has no dimension");
  bool some = true;
  for (int i = 0; i < 3; ++i) {
    if (programs[i] < 0 || programs[i] > INT32_MAX)
      fail("kernel " + kernel + ": a grid dimension of " + std::to_string(programs[i]));
    some = some && programs[i] > 0;
    found[i] = static_cast<uint32_t>(programs[i]);
  }
  return some;
}

[[noreturn]] void fail_at(const std::string& kernel, size_t index, const std::string& what) {
  fail("kernel " + kernel + ": argument " + std::to_string(index) + " " + what);
}

/// Checks a tensor's memory, and that all arguments share its device.
void settle_device(const Tensor& t, const std::string& kernel, size_t index, int& device) {
  if (t.hollow())
    fail_at(kernel, index, "has elements but no memory: its storage was freed, or it is a stand-in for zeros");
  if (!t.on_gpu()) fail_at(kernel, index, "is not on a GPU; move it with .cuda()");
  if (device >= 0 && t.device != device)
    fail_at(kernel, index, "is on cuda:" + std::to_string(t.device) + ", others are on cuda:" + std::to_string(device));
  device = t.device;
}

}  // namespace

void Arguments::clear() {
  key.clear();
  values.clear();
  windows.clear();
  tensors.clear();
  device = -1;
}

Launcher::Launcher(std::string name, nb::callable compile, nb::callable allocate, std::vector<bool> constant)
    : name_(std::move(name)), compile_(std::move(compile)), allocate_(std::move(allocate)),
      constant_(std::move(constant)) {}

void Launcher::look_at(const nb::args& args, Arguments& found) {
  if (args.size() != constant_.size())
    fail("kernel " + name_ + " takes " + std::to_string(constant_.size()) + " positional arguments here, not " +
         std::to_string(args.size()));
  for (size_t i = 0; i < args.size(); ++i) {
    nb::handle arg = args[i];
    PyObject* a = arg.ptr();
    Value value;
    if (constant_[i]) {
      keys_.append(found.key, arg);
    } else if (a == Py_None) {
      found.key += 'n';
    } else if (PyBool_Check(a)) {
      found.key += 'b';
      value.word = a == Py_True;
    } else if (PyLong_Check(a)) {
      found.key += integer_class(a, value.word);
    } else if (PyFloat_Check(a)) {
      found.key += 'f';
      value.real = PyFloat_AS_DOUBLE(a);
    } else if (is_tensor(a)) {
      const Tensor t = view(a);
      settle_device(t, name_, i, found.device);
      value.word = t.address();
      found.tensors.emplace_back(static_cast<int>(found.values.size()), a);
      found.key += t.aligned() ? 'P' : 'p';
      append_bytes(found.key, t.dtype());
    } else {
      value.window = static_cast<int>(found.windows.size());
      look_at_descriptor(arg, i, found);
    }
    found.values.push_back(value);
  }
  if (found.device < 0) fail("kernel " + name_ + ": no argument is a tensor, so there is no device to run on");
  append_bytes(found.key, found.device);
}

void Launcher::look_at_descriptor(nb::handle arg, size_t index, Arguments& found) {
  const nb::dict fields = fields_of(arg);
  if (!fields.is_valid())
    fail_at(name_, index, std::string("is a ") + Py_TYPE(arg.ptr())->tp_name +
                              "; kernels take tensors, tensor descriptors, numbers and None, one by one");
  const nb::handle base = field(fields, names().base), layout = field(fields, names().layout);
  const nb::handle padding = field(fields, names().padding);
  const Tensor t = view(base.ptr());
  settle_device(t, name_, index, found.device);
  Window window;
  window.address = t.address();
  window.rank = integers(field(fields, names().shape), window.shape, Window::kMaxRank);
  if (integers(field(fields, names().strides), window.strides, Window::kMaxRank) != window.rank)
    fail_at(name_, index, "is a descriptor with another number of strides than sizes");
  window.nan_fill = padding.is_valid() && PyUnicode_CompareWithASCIIString(padding.ptr(), "nan") == 0;
  found.key += 'd';
  append_bytes(found.key, t.dtype());
  append_bytes(found.key, layout.is_valid() ? keys_.intern(layout) : int64_t{-1});
  keys_.append(found.key, nb::tuple(field(fields, names().block_shape)));
  found.tensors.emplace_back(~static_cast<int>(found.windows.size()), base.ptr());
  found.windows.push_back(window);
}

nb::handle Launcher::find(const Arguments& arguments, const nb::args& args) {
  auto known = kernels_.find(arguments.key);
  if (known == kernels_.end())
    known = kernels_.emplace(arguments.key, compile_(arguments.device, args)).first;
  return known->second;
}

void Launcher::operator()(nb::handle grid, nb::args args) {
  Grid programs;
  if (!read_grid(grid, name_, programs)) return;
  // Cleared, not freed, between calls of a thread. A kernel that is compiled meanwhile may launch others, so take it.
  thread_local Arguments spare;
  Arguments arguments = std::move(spare);
  arguments.clear();
  look_at(args, arguments);
  const nb::handle found = find(arguments, args);
  const Kernel& kernel = nb::cast<const Kernel&>(found);
  if (Recorder* record = Recorder::active()) {
    record->add(found, programs.data(), arguments.values, arguments.windows, arguments.tensors);
    if (kernel.scratch_bytes(programs.data())) record->spoil();
  }
  nb::object scratch;
  uint64_t address = 0;
  if (const int64_t bytes = kernel.scratch_bytes(programs.data())) {
    scratch = allocate_(bytes, arguments.device);  // may go back after the launch: the allocator knows the stream
    address = view(scratch.ptr()).address();
  }
  kernel.launch(current_stream(arguments.device), programs.data(), arguments.values, arguments.windows, address);
  spare = std::move(arguments);
}

void bind_launcher(nb::module_& m) {
  nb::class_<Kernel>(m, "Kernel", "A compiled kernel on one device.")
      .def(
          "__init__",
          [](Kernel* self, nb::bytes cubin, const std::string& name, int device, int threads, int shared, int ctas,
             bool pdl, bool cooperative, int64_t scratch, nb::list slots) {
            std::vector<Slot> parsed;
            for (nb::handle item : slots) {
              Slot slot;
              if (nb::isinstance<nb::tuple>(item)) {
                const auto tile = nb::cast<nb::tuple>(item);
                slot.kind = Slot::kTensorMap;
                slot.tile = {nb::cast<int>(tile[0]), nb::cast<int>(tile[1]), nb::cast<int>(tile[2]),
                             nb::cast<std::vector<uint32_t>>(tile[3])};
              } else {
                const auto kind = nb::cast<std::string>(item);
                if (kind == "word") slot.kind = Slot::kWord;
                else if (kind == "float") slot.kind = Slot::kFloat;
                else if (kind == "double") slot.kind = Slot::kDouble;
                else if (kind != "constant") throw nb::value_error(("unknown kind of parameter: " + kind).c_str());
              }
              parsed.push_back(std::move(slot));
            }
            new (self) Kernel(std::string(cubin.c_str(), cubin.size()), name, device, threads, shared, ctas, pdl,
                              cooperative, scratch, std::move(parsed));
          },
          nb::arg("cubin"), nb::arg("name"), nb::arg("device"), nb::arg("threads"), nb::arg("shared"), nb::arg("ctas"),
          nb::arg("pdl"), nb::arg("cooperative"), nb::arg("scratch"), nb::arg("slots"))
      .def_prop_ro("name", &Kernel::name)
      .def_prop_ro("shared", &Kernel::shared)
      .def_ro("registers", &Kernel::registers)
      .def_ro("local_bytes", &Kernel::local_bytes);
  nb::class_<Launcher>(m, "Launcher", "Launches of one kernel with given options and compile-time parameters.")
      .def(nb::init<std::string, nb::callable, nb::callable, std::vector<bool>>(), nb::arg("name"), nb::arg("compile"),
           nb::arg("allocate"), nb::arg("constant"))
      .def("__call__", &Launcher::operator(), nb::arg("grid"), nb::arg("args"))
      .def_prop_ro("compiled", &Launcher::compiled, "How many specialisations have been compiled.");
}

}  // namespace samebits::cuda
