#include "lt.hpp"

#include <dlfcn.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "recipe.hpp"

namespace nb = nanobind;

namespace samebits::cuda {
namespace {

using Status = int;  // cublasStatus_t; 0 is success

enum : int {
  kReal32 = 0,  // CUDA_R_32F
  kDescriptionTransposeA = 3,
  kDescriptionTransposeB = 4,
  kDescriptionEpilogue = 7,
  kDescriptionBiasPointer = 8,
  kDescriptionBiasType = 26,
  kLayoutBatchCount = 5,
  kLayoutBatchStride = 6,
  kPreferenceWorkspace = 1,
  kPreferenceReduction = 3,
  kPreferenceAlignmentA = 5,  // B, C and D follow
  kCapabilitySwizzle = 2,
  kCapabilityTiles = 6,
  kCapabilityOptionMax = 7,
  kCapabilityStages = 13,
  kEpilogueBias = 4,
  kConfigurationId = 0,
};

/// Widths of the configuration's attributes in bytes: the shapes of Hopper's are the only short ones.
constexpr size_t kWidth[kConfigAttributes] = {4, 4, 4, 4, 4, 4, 4, 2, 2};

/// cublasLtMatmulHeuristicResult_t.
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

struct Library {
  std::string missing;
  size_t (*version)();
  const char* (*status_name)(Status);
  Status (*create)(void**);
  Status (*description_create)(void**, int, int);
  Status (*description_destroy)(void*);
  Status (*description_set)(void*, int, const void*, size_t);
  Status (*layout_create)(void**, int, uint64_t, uint64_t, int64_t);
  Status (*layout_destroy)(void*);
  Status (*layout_set)(void*, int, const void*, size_t);
  Status (*preference_create)(void**);
  Status (*preference_destroy)(void*);
  Status (*preference_set)(void*, int, const void*, size_t);
  Status (*get_heuristic)(void*, void*, void*, void*, void*, void*, void*, int, HeuristicResult*, int*);
  Status (*get_ids)(void*, int, int, int, int, int, int, int, int*, int*);
  Status (*algorithm_init)(void*, int, int, int, int, int, int, int, Algorithm*);
  Status (*algorithm_check)(void*, void*, void*, void*, void*, void*, const Algorithm*, HeuristicResult*);
  Status (*capability_get)(const Algorithm*, int, void*, size_t, size_t*);
  Status (*configuration_set)(Algorithm*, int, const void*, size_t);
  Status (*configuration_get)(const Algorithm*, int, void*, size_t, size_t*);
  Status (*matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const Algorithm*, void*, size_t, Stream);
};

Library load() {
  Library f{};
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (!library) library = open_library(name);
  if (!library) {
    f.missing = "libcublasLt (13 or 12) is not in this process: install a build of torch with CUDA and import it first";
    return f;
  }
  auto find = [&](auto& slot, const char* name) {
    slot = reinterpret_cast<std::decay_t<decltype(slot)>>(dlsym(library, name));
    if (!slot && f.missing.empty()) f.missing = std::string("this libcublasLt has no ") + name;
  };
  find(f.version, "cublasLtGetVersion");
  find(f.status_name, "cublasLtGetStatusName");
  find(f.create, "cublasLtCreate");
  find(f.description_create, "cublasLtMatmulDescCreate");
  find(f.description_destroy, "cublasLtMatmulDescDestroy");
  find(f.description_set, "cublasLtMatmulDescSetAttribute");
  find(f.layout_create, "cublasLtMatrixLayoutCreate");
  find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(f.preference_create, "cublasLtMatmulPreferenceCreate");
  find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(f.get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f.get_ids, "cublasLtMatmulAlgoGetIds");
  find(f.algorithm_init, "cublasLtMatmulAlgoInit");
  find(f.algorithm_check, "cublasLtMatmulAlgoCheck");
  find(f.capability_get, "cublasLtMatmulAlgoCapGetAttribute");
  find(f.configuration_set, "cublasLtMatmulAlgoConfigSetAttribute");
  find(f.configuration_get, "cublasLtMatmulAlgoConfigGetAttribute");
  find(f.matmul, "cublasLtMatmul");
  return f;
}

const Library& loaded() {
  static const Library once = load();
  return once;
}

const Library& library() {
  if (!loaded().missing.empty()) fail(loaded().missing);
  return loaded();
}

void lt_check(Status status, const char* what) {
  if (status != 0) fail(std::string("cuBLASLt: ") + what + ": " + library().status_name(status));
}

/// One handle a device, kept for the life of the process.
void* handle_of(int device) {
  static std::map<int, void*> handles;  // guarded by the GIL
  void*& handle = handles[device];
  if (!handle) {
    const Current current(context_of(device));
    lt_check(library().create(&handle), "creating a handle");
  }
  return handle;
}

Configuration configuration_of(const Algorithm& algorithm) {
  Configuration found{};
  for (int i = 0; i < kConfigAttributes; ++i) {
    size_t written = 0;
    lt_check(library().configuration_get(&algorithm, i, &found[i], kWidth[i], &written), "reading a configuration");
  }
  return found;
}

std::vector<int> list_capability(const Algorithm& algorithm, int capability) {
  size_t bytes = 0;
  if (library().capability_get(&algorithm, capability, nullptr, 0, &bytes) != 0) return {};
  std::vector<int> values(bytes / sizeof(int));
  if (bytes) lt_check(library().capability_get(&algorithm, capability, values.data(), bytes, &bytes), "capabilities");
  return values;
}

int capability(const Algorithm& algorithm, int which) {
  int value = 0;
  size_t written = 0;
  return library().capability_get(&algorithm, which, &value, sizeof value, &written) == 0 ? value : 0;
}

}  // namespace

Product::Product(int device, int compute, bool transpose_a, bool transpose_b, const Layout& a, const Layout& b,
                 const Layout& d, int batch, int bias_type)
    : device_(device), compute_(compute), types_{a.type, b.type, d.type}, bias_type_(bias_type) {
  const Library& lt = library();
  const Current current(context_of(device));
  const RelaxedCapture relaxed;
  handle_ = handle_of(device);
  lt_check(lt.description_create(&description_, compute, kReal32), "describing a product");
  const int ta = transpose_a, tb = transpose_b;
  lt_check(lt.description_set(description_, kDescriptionTransposeA, &ta, sizeof ta), "transposing A");
  lt_check(lt.description_set(description_, kDescriptionTransposeB, &tb, sizeof tb), "transposing B");
  if (bias_type >= 0) {
    const int epilogue = kEpilogueBias;
    lt_check(lt.description_set(description_, kDescriptionEpilogue, &epilogue, sizeof epilogue), "asking for a bias");
    lt_check(lt.description_set(description_, kDescriptionBiasType, &bias_type, sizeof bias_type), "the bias's type");
  }
  const Layout* all[3] = {&a, &b, &d};
  for (int i = 0; i < 3; ++i) {
    const Layout& l = *all[i];
    lt_check(lt.layout_create(&layouts_[i], l.type, l.rows, l.columns, l.leading), "describing an operand");
    if (batch > 1) {
      lt_check(lt.layout_set(layouts_[i], kLayoutBatchCount, &batch, sizeof batch), "describing a batch");
      lt_check(lt.layout_set(layouts_[i], kLayoutBatchStride, &l.batch_stride, sizeof l.batch_stride),
               "describing a batch");
    }
  }
}

Product::~Product() {
  for (void* layout : layouts_)
    if (layout) library().layout_destroy(layout);
  if (description_) library().description_destroy(description_);
}

std::vector<Candidate> Product::heuristic(int count, int64_t workspace, int alignment) const {
  const Library& lt = library();
  const Current current(context_of(device_));
  void* preference = nullptr;
  lt_check(lt.preference_create(&preference), "preferences");
  const uint64_t bytes = workspace;
  lt.preference_set(preference, kPreferenceWorkspace, &bytes, sizeof bytes);
  const uint32_t aligned = alignment, no_reduction = 0;
  lt.preference_set(preference, kPreferenceReduction, &no_reduction, sizeof no_reduction);
  for (int i = 0; i < 4; ++i) lt.preference_set(preference, kPreferenceAlignmentA + i, &aligned, sizeof aligned);
  std::vector<HeuristicResult> results(count);
  int found = 0;
  const Status status = lt.get_heuristic(handle_, description_, layouts_[0], layouts_[1], layouts_[2], layouts_[2],
                                         preference, count, results.data(), &found);
  lt.preference_destroy(preference);
  std::vector<Candidate> candidates;
  if (status != 0) return candidates;
  for (int i = 0; i < found; ++i)
    if (results[i].state == 0)
      candidates.push_back({configuration_of(results[i].algorithm), static_cast<int64_t>(results[i].workspace),
                            results[i].waves});
  return candidates;
}

std::vector<int> Product::ids() const {
  constexpr int kMost = 512;
  const Current current(context_of(device_));
  std::vector<int> ids(kMost);
  int found = 0;
  lt_check(library().get_ids(handle_, compute_, kReal32, types_[0], types_[1], types_[2], types_[2], kMost, ids.data(),
                             &found), "listing algorithms");
  ids.resize(found);
  return ids;
}

bool Product::configure(const Configuration& configuration, Algorithm& algorithm) const {
  const Library& lt = library();
  if (lt.algorithm_init(handle_, compute_, kReal32, types_[0], types_[1], types_[2], types_[2],
                        static_cast<int>(configuration[kConfigurationId]), &algorithm) != 0)
    return false;
  for (int i = 1; i < kConfigAttributes; ++i)  // little endian: a short attribute reads the low bytes
    if (lt.configuration_set(&algorithm, i, &configuration[i], kWidth[i]) != 0) return false;
  return true;
}

std::vector<Candidate> Product::admissible(const std::vector<Configuration>& configurations) const {
  const Current current(context_of(device_));
  std::vector<Candidate> candidates;
  for (const Configuration& configuration : configurations) {
    Algorithm algorithm;
    HeuristicResult result{};
    if (!configure(configuration, algorithm)) continue;
    if (library().algorithm_check(handle_, description_, layouts_[0], layouts_[1], layouts_[2], layouts_[2],
                                  &algorithm, &result) == 0)
      candidates.push_back({configuration, static_cast<int64_t>(result.workspace), result.waves});
  }
  return candidates;
}

Product::Capabilities Product::capabilities(int id) const {
  const Current current(context_of(device_));
  Algorithm algorithm;
  if (library().algorithm_init(handle_, compute_, kReal32, types_[0], types_[1], types_[2], types_[2], id,
                               &algorithm) != 0)
    return {};
  return {list_capability(algorithm, kCapabilityTiles), list_capability(algorithm, kCapabilityStages),
          capability(algorithm, kCapabilityOptionMax), capability(algorithm, kCapabilitySwizzle)};
}

void Product::pin(const Configuration& configuration) {
  const Current current(context_of(device_));
  HeuristicResult result{};
  std::string text;
  for (int64_t value : configuration) text += (text.empty() ? "" : ", ") + std::to_string(value);
  if (!configure(configuration, algorithm_))
    fail("cuBLASLt " + std::to_string(library().version()) + " has no algorithm (" + text + ") for these types");
  const Status status = library().algorithm_check(handle_, description_, layouts_[0], layouts_[1], layouts_[2],
                                                  layouts_[2], &algorithm_, &result);
  if (status != 0)
    fail("cuBLASLt " + std::to_string(library().version()) + " refuses algorithm (" + text + ") for these shapes: " +
         library().status_name(status));
  workspace_ = static_cast<int64_t>(result.workspace);
  pinned_ = true;
}

void Product::run(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t bias, float alpha, float beta,
                  uint64_t workspace, uint64_t workspace_bytes, uint64_t stream) {
  if (!pinned_) fail("cuBLASLt: pin an algorithm before running");
  if (Recorder* record = Recorder::active()) record->spoil();
  if ((bias_type_ >= 0) != (bias != 0)) fail("cuBLASLt: this product was described with another bias");
  const Current current(context_of(device_));
  const RelaxedCapture relaxed;  // the first call loads the kernel
  auto pointer = [](uint64_t address) { return reinterpret_cast<void*>(address); };
  // The GIL stays: the description holds the bias's address until the call is over.
  if (bias) lt_check(library().description_set(description_, kDescriptionBiasPointer, &bias, sizeof bias), "bias");
  lt_check(library().matmul(handle_, description_, &alpha, pointer(a), layouts_[0], pointer(b), layouts_[1], &beta,
                            pointer(c), layouts_[2], pointer(d), layouts_[2], &algorithm_, pointer(workspace),
                            workspace_bytes, reinterpret_cast<Stream>(stream)),
           "matmul");
}

void bind_lt(nb::module_& m) {
  m.def("lt_missing", [] { return loaded().missing; }, "Why cuBLASLt cannot be used; empty if it can.");
  m.def("lt_version", [] { return library().version(); }, "Version of cuBLASLt, e.g. 130100.");
  nb::class_<Layout>(m, "Layout", "One operand, column major: type, rows, columns, leading dimension, batch stride.")
      .def(nb::init<int, int64_t, int64_t, int64_t, int64_t>(), nb::arg("type"), nb::arg("rows"), nb::arg("columns"),
           nb::arg("leading"), nb::arg("batch_stride") = 0);
  nb::class_<Candidate>(m, "Candidate", "A configuration, the workspace it needs and how often it fills the GPU.")
      .def_ro("configuration", &Candidate::configuration)
      .def_ro("workspace", &Candidate::workspace)
      .def_ro("waves", &Candidate::waves);
  nb::class_<Product::Capabilities>(m, "Capabilities", "What an algorithm may be configured with.")
      .def_ro("tiles", &Product::Capabilities::tiles)
      .def_ro("stages", &Product::Capabilities::stages)
      .def_ro("option_max", &Product::Capabilities::option_max)
      .def_ro("swizzle_max", &Product::Capabilities::swizzle_max);
  nb::class_<Product>(m, "Product", "D = alpha * op(A) @ op(B) + beta * C (+ bias) for one set of shapes and strides.")
      .def(nb::init<int, int, bool, bool, const Layout&, const Layout&, const Layout&, int, int>(), nb::arg("device"),
           nb::arg("compute"), nb::arg("transpose_a"), nb::arg("transpose_b"), nb::arg("a"), nb::arg("b"),
           nb::arg("d"), nb::arg("batch") = 1, nb::arg("bias_type") = -1)
      .def("heuristic", &Product::heuristic, nb::arg("count"), nb::arg("workspace"), nb::arg("alignment") = 16)
      .def("ids", &Product::ids)
      .def("admissible", &Product::admissible, nb::arg("configurations"))
      .def("capabilities", &Product::capabilities, nb::arg("id"))
      .def("pin", &Product::pin, nb::arg("configuration"))
      .def("run", &Product::run, nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("d"), nb::arg("bias"),
           nb::arg("alpha"), nb::arg("beta"), nb::arg("workspace"), nb::arg("workspace_bytes"), nb::arg("stream"))
      .def_prop_ro("workspace", &Product::workspace);
}

}  // namespace samebits::cuda
