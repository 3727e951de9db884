// A callable in the place of one that the guard watches. Python is entered only where there is something to do:
// a call whose turn has come, a wrong path, an addend that the result overwrites. Other calls cost some 20 ns.
#include "bind.hpp"

#include <structmember.h>

#include <utility>

namespace samebits {
namespace {

/// What holds in all threads, written while nobody calls. Python's lock guards it.
struct Rules {
  uint64_t epoch = 0;  // goes up by one each time that the guard is turned on
  uint64_t seed = 0;
  double rate = 0;
  int64_t calls = 0, path_checks = 0, unchecked = 0;  // since the process began
};
Rules rules;

/// Whether the call with this number in its thread is sampled. guard/setting.py is the definition; a test compares.
/// The end of SplitMix64 (Steele, Lea and Flood, 2014), compared by its upper 32 bits.
bool chosen(int64_t number) {
  uint64_t x = (static_cast<uint64_t>(number) + rules.seed) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<double>(x >> 32) < rules.rate * 4294967296.0;
}

/// What a thread knows of itself.
struct Turn {
  uint64_t epoch = 0;
  int64_t number = 0;      // of the next call
  bool inside = false;     // calls are the guard's own, or below one that it watches
  bool believing = false;  // calls run by the schedule that is believed
  int64_t wrong = 0;       // outputs that launches found to have taken another path than the contract's
  int64_t blind = 0;       // launches of kernels that cannot follow their paths
};
thread_local Turn turn;

/// The thread's own, which counts from 0 again since the guard was turned on.
Turn& here() {
  if (turn.epoch != rules.epoch) turn.epoch = rules.epoch, turn.number = 0;
  return turn;
}

struct Guarded {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *fn, *keep, *settle, *look;
  Py_ssize_t out_at;
  char follows;
};

bool gives_out(const Guarded* self, Py_ssize_t count, PyObject* names) {
  if (self->out_at < 0) return false;
  if (count > self->out_at) return true;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), "out") == 0) return true;
  return false;
}

using Object = nb::object;  // owned; invalid while an error is set

/// fn's result, once every check that is due has passed or was settled.
Object watched(const Guarded* self, Turn& mine, PyObject* const* args, size_t nargs, PyObject* names) {
  const int64_t number = mine.number++;
  const bool due = chosen(number) || mine.believing;
  const auto again = [&](PyObject* fn) { return nb::steal(PyObject_Vectorcall(fn, args, nargs, names)); };
  Object kept;
  // An addend that the result overwrites has to be kept from before.
  if (due || gives_out(self, PyVectorcall_NARGS(nargs), names))
    if (!(kept = again(self->keep)).is_valid()) return {};
  Object result = again(self->fn);
  if (!result.is_valid()) {
    mine.wrong = mine.blind = 0;  // of no result
    return {};
  }
  const auto tell = [&](PyObject* whom, int64_t n) {
    if (!kept.is_valid() && !(kept = again(self->keep)).is_valid()) return false;
    return nb::steal(PyObject_CallFunction(whom, "OOLL", kept.ptr(), result.ptr(), (long long)number, (long long)n))
        .is_valid();
  };
  if (self->follows) {
    ++(mine.blind ? rules.unchecked : rules.path_checks);
    const int64_t wrong = mine.wrong;
    mine.blind = 0;
    if (wrong) {
      const bool settled = tell(self->settle, wrong);
      mine.wrong = mine.blind = 0;  // what replays have found is not the next call's
      if (!settled) return {};
    }
  }
  if (due) {
    const bool good = tell(self->look, 0);
    mine.wrong = mine.blind = 0;
    if (!good) return {};
  }
  return result;
}

PyObject* guarded_call(PyObject* object, PyObject* const* args, size_t nargs, PyObject* names) {
  auto* self = reinterpret_cast<Guarded*>(object);
  Turn& mine = here();
  if (mine.inside) return PyObject_Vectorcall(self->fn, args, nargs, names);
  ++rules.calls;
  mine.inside = true;
  PyObject* result = watched(self, mine, args, nargs, names).release().ptr();
  mine.inside = false;
  return result;
}

PyObject* guarded_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *fn, *keep, *settle, *look;
  int follows;
  Py_ssize_t out_at;
  static const char* const keywords[] = {"fn", "keep", "settle", "look", "follows", "out_at", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOpn", const_cast<char**>(keywords), &fn, &keep, &settle, &look,
                                   &follows, &out_at))
    return nullptr;
  auto* self = reinterpret_cast<Guarded*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = guarded_call;
  self->fn = Py_NewRef(fn), self->keep = Py_NewRef(keep);
  self->settle = Py_NewRef(settle), self->look = Py_NewRef(look);
  self->follows = static_cast<char>(follows), self->out_at = out_at;
  return reinterpret_cast<PyObject*>(self);
}

int guarded_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Guarded*>(object);
  Py_VISIT(Py_TYPE(object));
  for (PyObject* held : {self->fn, self->keep, self->settle, self->look}) Py_VISIT(held);
  return 0;
}

int guarded_clear(PyObject* object) {
  auto* self = reinterpret_cast<Guarded*>(object);
  Py_CLEAR(self->fn);
  Py_CLEAR(self->keep);
  Py_CLEAR(self->settle);
  Py_CLEAR(self->look);
  return 0;
}

void guarded_free(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  guarded_clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Guarded, call), READONLY, nullptr},
    {"fn", T_OBJECT_EX, offsetof(Guarded, fn), READONLY, "what is called"},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Guarded(fn, keep, settle, look, follows, out_at): calls fn under the guard's eye.")},
    {Py_tp_new, reinterpret_cast<void*>(guarded_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(guarded_free)},
    {Py_tp_traverse, reinterpret_cast<void*>(guarded_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(guarded_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {
    "samebits.engines.cpu._cpu.Guarded", sizeof(Guarded), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

void bind_guarded(nb::module_& m) {
  PyObject* type = PyType_FromSpec(&spec);
  if (!type) nb::raise_python_error();
  m.attr("Guarded") = nb::steal(type);
  m.def("guard_start", [](uint64_t seed, double rate) {
    rules.seed = seed, rules.rate = rate;
    ++rules.epoch;
  });
  m.def("guard_due", [](int64_t number) { return chosen(number); });
  m.def("guard_counts", [] { return std::vector<int64_t>{rules.calls, rules.path_checks, rules.unchecked}; });
  m.def("guard_believes", [] { return here().believing; });
  m.def("guard_believe", [](bool on) { return std::exchange(here().believing, on); });
  m.def("found_wrong", [](int64_t outputs) { turn.wrong += outputs; });
  m.def("found_blind", [] { ++turn.blind; });
}

}  // namespace samebits
