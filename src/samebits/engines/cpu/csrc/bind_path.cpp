// Path checks: turning them on and off, faults for tests, and the digest by itself.
#include "bind.hpp"
#include "path.hpp"

namespace samebits {

PathMode& path_mode() noexcept {
  static PathMode mode;
  return mode;
}

void bind_path(nb::module_& m) {
  m.def("check_paths", [](bool on, uint32_t product, uint32_t attention, int64_t leaf) {
    PathMode& mode = path_mode();
    mode.product = product, mode.attention = attention, mode.leaf = leaf;
    mode.on = on;
  });
  m.def("inject_fault", [](int kind) { path_mode().fault = kind; });
  m.def("path_digest", [](uint32_t seed, const std::vector<int64_t>& edges, uint32_t lanes) {
    for (size_t i = 0; i + 1 < edges.size(); i += 2) seed = path_fold(seed, path_leaf(edges[i], edges[i + 1], lanes));
    return seed;
  });
}

}  // namespace samebits
