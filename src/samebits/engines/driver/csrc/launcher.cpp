#include "launcher.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

namespace samebits::cuda {
namespace {

template <class T>
void append_bytes(std::string& key, const T& value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  key.append(bytes, sizeof(T));
}

/// Names of attributes, made once.
struct Names {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* get_device = PyUnicode_InternFromString("get_device");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
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

/// torch.Tensor; kept for ever, as its module is.
PyTypeObject* tensor_type() {
  static PyObject* const once = nb::module_::import_("torch").attr("Tensor").inc_ref().ptr();
  return reinterpret_cast<PyTypeObject*>(once);
}

nb::object get(nb::handle object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

int64_t call_for_int(nb::handle object, PyObject* method, bool is_unsigned = false) {
  nb::object value = nb::steal(PyObject_CallMethodNoArgs(object.ptr(), method));
  if (!value.is_valid()) throw nb::python_error();
  const int64_t number = is_unsigned ? static_cast<int64_t>(PyLong_AsUnsignedLongLong(value.ptr()))
                                     : PyLong_AsLongLong(value.ptr());
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

/// Integers of a list, a tuple or torch.Size; returns how many.
int integers(nb::handle sequence, int64_t* out, int most) {
  nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), "shapes and strides are sequences"));
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
char integer_class(nb::handle value, uint64_t& word) {
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (number == -1 && !overflow && PyErr_Occurred()) throw nb::python_error();
  if (overflow) {
    word = PyLong_AsUnsignedLongLong(value.ptr());
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
  if (!described) return nb::steal<nb::dict>(nullptr);
  return nb::borrow<nb::dict>(fields);
}

/// A field, or nothing.
nb::handle field(const nb::dict& fields, PyObject* name) { return PyDict_GetItemWithError(fields.ptr(), name); }

Window window_of(const nb::dict& fields, nb::handle base, const std::string& kernel, size_t index) {
  Window window;
  window.rank = integers(field(fields, names().shape), window.shape, Window::kMaxRank);
  if (integers(field(fields, names().strides), window.strides, Window::kMaxRank) != window.rank)
    fail("kernel " + kernel + ": argument " + std::to_string(index) + " is a descriptor with " +
         std::to_string(window.rank) + " sizes and another number of strides");
  window.address = call_for_int(base, names().data_ptr, true);
  const nb::handle padding = field(fields, names().padding);
  window.nan_fill = padding.is_valid() && PyUnicode_CompareWithASCIIString(padding.ptr(), "nan") == 0;
  return window;
}

}  // namespace

int64_t Keys::intern(nb::handle object) {
  nb::tuple typed = nb::make_tuple(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))), object);
  if (PyObject* known = PyDict_GetItemWithError(numbers_.ptr(), typed.ptr())) return PyLong_AsLongLong(known);
  if (PyErr_Occurred()) throw nb::python_error();
  const int64_t number = next_++;  // before Python code runs again: another thread may come in
  numbers_[typed] = number;
  return number;
}

void Keys::append(std::string& key, nb::handle value) {
  PyObject* v = value.ptr();
  if (v == Py_None) {
    key += 'n';
  } else if (PyBool_Check(v)) {
    key += v == Py_True ? 'T' : 'F';
  } else if (PyLong_CheckExact(v)) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(v, &overflow);
    key += overflow ? 'O' : 'i';
    append_bytes(key, overflow ? intern(value) : number);
  } else if (PyFloat_CheckExact(v)) {
    key += 'f';
    append_bytes(key, PyFloat_AS_DOUBLE(v));
  } else if (PyUnicode_CheckExact(v)) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(v, &size);
    if (!text) throw nb::python_error();
    key += 's';
    append_bytes(key, size);
    key.append(text, size);
  } else if (PyTuple_CheckExact(v)) {
    key += 't';
    append_bytes(key, PyTuple_GET_SIZE(v));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i) append(key, PyTuple_GET_ITEM(v, i));
  } else {
    key += 'o';
    append_bytes(key, intern(value));
  }
}

/// What one call's arguments are: the specialisation key and the values to pack.
struct Launcher::Seen {
  std::string key;
  std::vector<Value> values;
  std::vector<Window> windows;
  int device = -1;

  void tensor_on(int64_t at, const std::string& kernel, size_t index) {
    if (at < 0)
      fail("kernel " + kernel + ": argument " + std::to_string(index) + " is not on a GPU; move it with .cuda()");
    if (device >= 0 && at != device)
      fail("kernel " + kernel + ": argument " + std::to_string(index) + " is on cuda:" + std::to_string(at) +
           ", others are on cuda:" + std::to_string(device));
    device = static_cast<int>(at);
  }
};

Launcher::Launcher(std::string name, nb::callable compile, nb::callable allocate, nb::callable stream,
                   std::vector<bool> constant)
    : name_(std::move(name)), compile_(std::move(compile)), allocate_(std::move(allocate)),
      stream_(std::move(stream)), constant_(std::move(constant)) {}

void Launcher::operator()(nb::handle grid, nb::args args) {
  int64_t programs[3] = {1, 1, 1};
  const int dimensions = integers(grid, programs, 3);
  if (dimensions == 0) fail("kernel " + name_ + ": the grid has no dimension");
  for (int64_t p : programs) {
    if (p == 0) return;
    if (p < 0 || p > INT32_MAX) fail("kernel " + name_ + ": a grid dimension of " + std::to_string(p));
  }
  if (args.size() != constant_.size())
    fail("kernel " + name_ + " takes " + std::to_string(constant_.size()) + " positional arguments here, not " +
         std::to_string(args.size()));

  // Cleared, not freed, between calls of a thread. A kernel that is compiled meanwhile may launch others, so take it.
  thread_local Seen spare;
  Seen seen = std::move(spare);
  seen.key.clear();
  seen.values.clear();
  seen.windows.clear();
  seen.device = -1;
  for (size_t i = 0; i < args.size(); ++i) {
    nb::handle arg = args[i];
    PyObject* a = arg.ptr();
    Value value;
    if (constant_[i]) {
      keys_.append(seen.key, arg);
    } else if (a == Py_None) {
      seen.key += 'n';
    } else if (PyBool_Check(a)) {
      seen.key += 'b';
      value.word = a == Py_True;
    } else if (PyLong_Check(a)) {
      seen.key += integer_class(arg, value.word);
    } else if (PyFloat_Check(a)) {
      seen.key += 'f';
      value.real = PyFloat_AS_DOUBLE(a);
    } else if (PyObject_TypeCheck(a, tensor_type())) {
      value.word = call_for_int(arg, names().data_ptr, true);
      seen.tensor_on(call_for_int(arg, names().get_device), name_, i);
      seen.key += value.word % 16 == 0 ? 'P' : 'p';
      append_bytes(seen.key, get(arg, names().dtype).ptr());  // dtypes live as long as torch
    } else if (const nb::dict fields = fields_of(arg); fields.is_valid()) {
      const nb::handle base = field(fields, names().base), layout = field(fields, names().layout);
      const Window window = window_of(fields, base, name_, i);
      seen.tensor_on(call_for_int(base, names().get_device), name_, i);
      seen.key += 'd';
      append_bytes(seen.key, get(base, names().dtype).ptr());
      append_bytes(seen.key, layout.is_valid() ? keys_.intern(layout) : int64_t{-1});
      keys_.append(seen.key, nb::tuple(field(fields, names().block_shape)));
      value.window = static_cast<int>(seen.windows.size());
      seen.windows.push_back(window);
    } else {
      fail("kernel " + name_ + ": argument " + std::to_string(i) + " is a " + Py_TYPE(a)->tp_name +
           "; kernels take tensors, tensor descriptors, numbers and None, one by one");
    }
    seen.values.push_back(value);
  }
  if (seen.device < 0) fail("kernel " + name_ + ": no argument is a tensor, so there is no device to run on");
  append_bytes(seen.key, seen.device);

  const Kernel& kernel = find(seen.key, seen.device, args);
  const uint32_t size[3] = {static_cast<uint32_t>(programs[0]), static_cast<uint32_t>(programs[1]),
                            static_cast<uint32_t>(programs[2])};
  nb::object handle = stream_(seen.device), scratch;
  uint64_t scratch_address = 0;
  if (const int64_t bytes = kernel.scratch_bytes(size)) {
    scratch = allocate_(bytes, seen.device);  // may go back after the launch: the allocator knows the stream
    scratch_address = call_for_int(scratch, names().data_ptr, true);
  }
  const auto stream = reinterpret_cast<Stream>(PyLong_AsUnsignedLongLong(handle.ptr()));
  kernel.launch(stream, size, seen.values, seen.windows, scratch_address);
  spare = std::move(seen);
}

const Kernel& Launcher::find(const std::string& key, int device, const nb::args& args) {
  auto known = kernels_.find(key);
  if (known == kernels_.end()) known = kernels_.emplace(key, compile_(device, args)).first;
  return nb::cast<const Kernel&>(known->second);
}

std::string Table::make_key(nb::handle kernel, nb::handle options, const nb::dict& constants) {
  std::string key;
  key.reserve(256);
  append_bytes(key, kernel.ptr());
  keys_.append(key, options);
  PyObject *name, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(constants.ptr(), &position, &name, &value)) {
    keys_.append(key, name);
    keys_.append(key, value);
  }
  return key;
}

nb::object Table::get(nb::handle kernel, nb::handle options, nb::dict constants) {
  const auto known = launchers_.find(make_key(kernel, options, constants));
  return known == launchers_.end() ? nb::none() : known->second;
}

void Table::put(nb::handle kernel, nb::handle options, nb::dict constants, nb::object launcher) {
  kernels_.push_back(nb::borrow(kernel));
  launchers_.insert_or_assign(make_key(kernel, options, constants), std::move(launcher));
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
      .def(nb::init<std::string, nb::callable, nb::callable, nb::callable, std::vector<bool>>(), nb::arg("name"),
           nb::arg("compile"), nb::arg("allocate"), nb::arg("stream"), nb::arg("constant"))
      .def("__call__", &Launcher::operator(), nb::arg("grid"), nb::arg("args"))
      .def_prop_ro("compiled", &Launcher::compiled, "How many specialisations have been compiled.");
  nb::class_<Table>(m, "Table", "Launchers by kernel, options and compile-time parameters.")
      .def(nb::init<>())
      .def("get", &Table::get, nb::arg("kernel"), nb::arg("options"), nb::arg("constants"))
      .def("put", &Table::put, nb::arg("kernel"), nb::arg("options"), nb::arg("constants"), nb::arg("launcher"))
      .def("__len__", &Table::size);
}

}  // namespace samebits::cuda
