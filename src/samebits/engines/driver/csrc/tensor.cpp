#include "tensor.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace samebits::cuda {
namespace {

/// DLPackExchangeAPI of DLPack 1.3.
struct Exchange {
  uint32_t major, minor;
  Exchange* older;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*view_of_object)(void* object, Tensor* out);
  int (*current_stream)(int32_t device_type, int32_t device, void** out);
};

struct Torch {
  PyTypeObject* tensor;
  const Exchange* exchange;
};

Torch load() {
  nb::object type = nb::module_::import_("torch").attr("Tensor");
  const Exchange* exchange = nullptr;
  if (nb::hasattr(type, "__dlpack_c_exchange_api__")) {
    nb::object capsule = type.attr("__dlpack_c_exchange_api__");
    exchange = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    PyErr_Clear();
  }
  while (exchange && exchange->major != 1) exchange = exchange->older;
  if (!exchange || !exchange->view_of_object || !exchange->current_stream)
    fail("this torch does not publish DLPack's exchange functions (version 1): install torch 2.11 or newer");
  return {reinterpret_cast<PyTypeObject*>(type.release().ptr()), exchange};  // torch is never unloaded
}

const Torch& torch() {
  static const Torch once = load();
  return once;
}

}  // namespace

bool is_tensor(PyObject* object) { return PyObject_TypeCheck(object, torch().tensor); }

bool view_if_plain(PyObject* tensor, Tensor& out) {
  if (torch().exchange->view_of_object(tensor, &out) == 0) return true;
  PyErr_Clear();
  return false;
}

Tensor view(PyObject* tensor) {
  Tensor seen;
  if (!view_if_plain(tensor, seen))
    fail("a tensor has no plain memory (it is sparse, on meta, or of a dtype that DLPack does not know)");
  return seen;
}

Stream current_stream(int device) {
  void* stream = nullptr;
  if (torch().exchange->current_stream(Tensor::kCuda, device, &stream) != 0) {
    if (PyErr_Occurred()) throw nb::python_error();
    fail("cuda:" + std::to_string(device) + " has no current stream");
  }
  return static_cast<Stream>(stream);
}

}  // namespace samebits::cuda
