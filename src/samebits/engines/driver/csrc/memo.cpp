#include "memo.hpp"

#include "tensor.hpp"

namespace samebits::cuda {

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
  } else if (PyDict_CheckExact(v)) {
    PyObject *name, *item;
    Py_ssize_t position = 0;
    key += 'd';
    append_bytes(key, PyDict_GET_SIZE(v));
    while (PyDict_Next(v, &position, &name, &item)) {
      append(key, name);
      append(key, item);
    }
  } else {
    key += 'o';
    append_bytes(key, intern(value));
  }
}

bool make_key(Keys& keys, std::string& key, const nb::args& args, std::vector<nb::object>* kept) {
  for (nb::handle arg : args) {
    PyObject* a = arg.ptr();
    if (a == Py_None || PyLong_Check(a) || PyFloat_CheckExact(a) || PyUnicode_CheckExact(a) || PyDict_CheckExact(a)) {
      keys.append(key, arg);
    } else if (is_tensor(a)) {
      Tensor t;
      if (!view_if_plain(a, t)) return false;
      key += t.aligned() ? 'A' : 'a';
      append_bytes(key, t.dtype());
      append_bytes(key, t.device_type);
      append_bytes(key, t.device);
      append_bytes(key, t.rank);
      key.append(reinterpret_cast<const char*>(t.shape), t.rank * sizeof(int64_t));
      key.append(reinterpret_cast<const char*>(t.strides), t.rank * sizeof(int64_t));
    } else {
      key += '@';
      append_bytes(key, a);
      if (kept) kept->push_back(nb::borrow(arg));
    }
  }
  return true;
}

nb::object Memo::get(const nb::args& args) {
  thread_local std::string spare;
  std::string key = std::move(spare);  // a key's parts may run Python code, and that come back here
  key.clear();
  const bool plain = make_key(keys_, key, args, nullptr);
  const auto known = plain ? entries_.find(key) : entries_.end();
  nb::object value = known == entries_.end() ? nb::none() : known->second.value;
  spare = std::move(key);
  return value;
}

void Memo::put(nb::object value, const nb::args& args) {
  std::string key;
  Entry entry{std::move(value), {}};
  if (!make_key(keys_, key, args, &entry.kept)) return;
  if (entries_.size() >= most_) entries_.clear();
  entries_.insert_or_assign(std::move(key), std::move(entry));
}

void bind_memo(nb::module_& m) {
  nb::class_<Memo>(m, "Memo", "Objects by what arguments are: a look-up that costs less than building a key in Python.")
      .def(nb::init<size_t>(), nb::arg("most"))
      .def("get", &Memo::get, nb::arg("args"))
      .def("put", &Memo::put, nb::arg("value"), nb::arg("args"))
      .def("clear", &Memo::clear)
      .def("__len__", &Memo::size);
}

}  // namespace samebits::cuda
