// A callable that counts its calls and hands them on, for about 30 ns: the switch reports which
// overrides were used, on a path where every call of a small model counts.
#include "bind.hpp"

#include <structmember.h>

namespace samebits {
namespace {

struct Counted {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* fn;
  PyObject* name;
  long long hits;
};

PyObject* forward(PyObject* self, PyObject* const* args, size_t nargs, PyObject* kwnames) {
  auto* counted = reinterpret_cast<Counted*>(self);
  ++counted->hits;
  return PyObject_Vectorcall(counted->fn, args, nargs, kwnames);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *name = nullptr, *fn = nullptr;
  static const char* const keywords[] = {"name", "fn", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO", const_cast<char**>(keywords), &name, &fn))
    return nullptr;
  auto* self = reinterpret_cast<Counted*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = forward;
  self->fn = Py_NewRef(fn);
  self->name = Py_NewRef(name);
  self->hits = 0;
  return reinterpret_cast<PyObject*>(self);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Counted*>(self)->fn);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Counted*>(self)->fn);
  return 0;
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  Py_CLEAR(reinterpret_cast<Counted*>(self)->name);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Counted, call), READONLY, nullptr},
    {"fn", T_OBJECT_EX, offsetof(Counted, fn), READONLY, "what is called"},
    {"__name__", T_OBJECT_EX, offsetof(Counted, name), READONLY, nullptr},
    {"hits", T_LONGLONG, offsetof(Counted, hits), 0, "calls so far"},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Counted(name, fn): calls fn and counts.")},
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {
    "samebits.engines.cpu._cpu.Counted", sizeof(Counted), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

void bind_counted(nb::module_& m) {
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) nb::raise_python_error();
  m.attr("Counted") = nb::steal(type);
}

}  // namespace samebits
