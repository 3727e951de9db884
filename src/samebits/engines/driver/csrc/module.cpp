// The extension module samebits.engines.driver._cuda.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "launcher.hpp"
#include "lt.hpp"
#include "memo.hpp"
#include "recipe.hpp"

NB_MODULE(_cuda, m) {
  namespace nb = nanobind;
  using namespace samebits::cuda;
  nb::set_leak_warnings(false);  // launchers and products live as long as the process, on purpose
  m.doc() = "The CUDA driver and cuBLASLt, called directly. Imports anywhere; says what is missing when it is used.";
  m.def("missing", [] { return driver_missing(); }, "Why kernels cannot be launched; empty if they can.");
  m.def("driver_version", [] {
    int version = 0;
    check(driver().driver_version(&version), "version of the CUDA driver");
    return version;
  }, "Version of CUDA that the driver speaks, e.g. 13000.");
  bind_memo(m);
  bind_recipes(m);
  bind_launcher(m);
  bind_lt(m);
}
