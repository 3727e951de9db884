// cuBLASLt with a pinned algorithm: what runs is what the caller names, never what a heuristic likes today.
//
// Functions are looked up in the libcublasLt that torch ships. Numbers are those of the library's public interface.
#pragma once
#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "driver.hpp"

namespace samebits::cuda {

/// cublasLtMatmulAlgo_t: an algorithm with its configuration, valid for one version of the library.
struct Algorithm {
  uint64_t data[8] = {};
};

/// cublasLtMatmulAlgoConfigAttributes_t, in the library's order: id, tile, split-K, reduction, swizzle, option, stages,
/// inner shape, cluster shape.
constexpr int kConfigAttributes = 9;
using Configuration = std::array<int64_t, kConfigAttributes>;

/// One operand, column major as the library has it.
struct Layout {
  int type;  // cudaDataType
  int64_t rows, columns, leading;
  int64_t batch_stride;
};

/// What a candidate needs and promises.
struct Candidate {
  Configuration configuration;
  int64_t workspace;
  float waves;
};

/// D = alpha * op(A) @ op(B) + beta * C (+ bias over columns), accumulated in fp32, for one set of shapes and strides.
/// C has the layout of D. Descriptors are made once.
class Product {
 public:
  /// `compute`: cublasComputeType_t. `bias_type`: cudaDataType of a bias over D's rows, or -1.
  Product(int device, int compute, bool transpose_a, bool transpose_b, const Layout& a, const Layout& b,
          const Layout& d, int batch, int bias_type);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  /// The library's own choice first. For tuners; never at run time.
  std::vector<Candidate> heuristic(int count, int64_t workspace, int alignment) const;
  /// Ids of the algorithms that take these types.
  std::vector<int> ids() const;
  /// The configuration's needs, or nothing where the library refuses it for these shapes.
  std::vector<Candidate> admissible(const std::vector<Configuration>& configurations) const;
  /// What an algorithm may be configured with: tiles, stages, largest option, largest swizzle.
  struct Capabilities {
    std::vector<int> tiles, stages;
    int option_max, swizzle_max;
  };
  Capabilities capabilities(int id) const;

  /// Chooses the algorithm of all later runs. Throws DeviceError where the library refuses it.
  void pin(const Configuration& configuration);
  void run(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t bias, float alpha, float beta, uint64_t workspace,
           uint64_t workspace_bytes, uint64_t stream);
  /// Bytes of workspace that the pinned algorithm needs.
  int64_t workspace() const { return workspace_; }

 private:
  bool configure(const Configuration& configuration, Algorithm& algorithm) const;

  int device_, compute_, types_[3], bias_type_;
  void* handle_ = nullptr;
  void* description_ = nullptr;
  void* layouts_[3] = {};
  Algorithm algorithm_;
  bool pinned_ = false;
  int64_t workspace_ = 0;
};

void bind_lt(nanobind::module_& m);

}  // namespace samebits::cuda
