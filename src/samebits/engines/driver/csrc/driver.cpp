#include "driver.hpp"

#include <dlfcn.h>
#include <nanobind/nanobind.h>

#include <vector>

namespace nb = nanobind;

namespace samebits::cuda {
namespace {

struct Loaded {
  Driver functions{};
  std::string missing;
};

Loaded load() {
  Loaded loaded;
  void* library = open_library("libcuda.so.1");
  if (!library) {
    loaded.missing = "no CUDA driver on this machine (libcuda.so.1 is not found)";
    return loaded;
  }
  Driver& f = loaded.functions;
  auto find = [&](auto& slot, const char* name) {
    slot = reinterpret_cast<std::decay_t<decltype(slot)>>(dlsym(library, name));
    if (!slot && loaded.missing.empty())
      loaded.missing = std::string("the CUDA driver is too old: it has no ") + name + "; install one for CUDA 12.0 or newer";
  };
  find(f.init, "cuInit");
  find(f.get_error_name, "cuGetErrorName");
  find(f.get_error_string, "cuGetErrorString");
  find(f.driver_version, "cuDriverGetVersion");
  find(f.device_get, "cuDeviceGet");
  find(f.device_attribute, "cuDeviceGetAttribute");
  find(f.primary_context_retain, "cuDevicePrimaryCtxRetain");
  find(f.context_current, "cuCtxGetCurrent");
  find(f.context_push, "cuCtxPushCurrent_v2");
  find(f.context_pop, "cuCtxPopCurrent_v2");
  find(f.module_load, "cuModuleLoadData");
  find(f.module_function, "cuModuleGetFunction");
  find(f.function_attribute, "cuFuncGetAttribute");
  find(f.function_set_attribute, "cuFuncSetAttribute");
  find(f.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  find(f.launch, "cuLaunchKernelEx");
  find(f.encode_tiled, "cuTensorMapEncodeTiled");
  if (loaded.missing.empty() && f.init(0) != 0) loaded.missing = "the CUDA driver finds no usable GPU (cuInit failed)";
  return loaded;
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

void* open_library(const char* name) {
  // torch's own copy comes first: it is in the process already, wherever its wheel has put it.
  if (void* there = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return there;
  return dlopen(name, RTLD_LAZY | RTLD_LOCAL);
}

const Driver& driver() {
  if (!loaded().missing.empty()) fail(loaded().missing);
  return loaded().functions;
}

const std::string& driver_missing() { return loaded().missing; }

void fail(const std::string& text) {
  nb::gil_scoped_acquire gil;
  nb::object error = nb::module_::import_("samebits.errors").attr("DeviceError");
  PyErr_SetString(error.ptr(), text.c_str());
  throw nb::python_error();
}

void check(Result result, const std::string& what) {
  if (result == 0) return;
  const char *name = nullptr, *text = nullptr;
  driver().get_error_name(result, &name);
  driver().get_error_string(result, &text);
  fail(what + ": " + (name ? name : std::to_string(result)) + " (" + (text ? text : "unknown error") + ")");
}

Context context_of(int device) {
  static std::vector<Context> contexts;  // guarded by the GIL
  if (device < 0) fail("there is no CUDA device " + std::to_string(device));
  if (static_cast<size_t>(device) >= contexts.size()) contexts.resize(device + 1, nullptr);
  if (!contexts[device]) {
    Device handle;
    check(driver().device_get(&handle, device), "CUDA device " + std::to_string(device));
    check(driver().primary_context_retain(&contexts[device], handle), "context of CUDA device " + std::to_string(device));
  }
  return contexts[device];
}

Current::Current(Context wanted) {
  Context now = nullptr;
  driver().context_current(&now);
  if (now == wanted) return;
  check(driver().context_push(wanted), "making a CUDA context current");
  pushed_ = true;
}

Current::~Current() {
  Context popped;
  if (pushed_) driver().context_pop(&popped);
}

}  // namespace samebits::cuda
