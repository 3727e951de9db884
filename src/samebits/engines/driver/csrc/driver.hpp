// The few functions and structures of the CUDA driver that a launch needs.
//
// They are declared here and looked up in libcuda.so.1 at run time, so the extension builds without a CUDA toolkit and
// imports on a machine without a GPU. Layouts and numbers are those of the driver's public binary interface.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace samebits::cuda {

using Result = int;  // CUresult; 0 is success
using Device = int;
using Pointer = uint64_t;
struct ContextTag;
struct ModuleTag;
struct FunctionTag;
struct StreamTag;
using Context = ContextTag*;
using Module = ModuleTag*;
using Function = FunctionTag*;
using Stream = StreamTag*;

/// CUtensorMap: how the copy engine reads tiles of a tensor. Passed to kernels by value.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
static_assert(sizeof(TensorMap) == 128);

/// CUlaunchAttribute.
struct LaunchAttribute {
  enum Id : uint32_t { kCooperative = 2, kClusterDimension = 4, kClusterPolicy = 5, kProgrammaticSerialization = 6 };
  uint32_t id;
  uint32_t pad;
  union {
    char space[64];
    struct { uint32_t x, y, z; } cluster;
    int32_t flag;
  };
};
static_assert(sizeof(LaunchAttribute) == 72);

/// CUlaunchConfig.
struct LaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared;
  Stream stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

enum : int {
  kDeviceMaxSharedOptin = 97,  // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
  kFunctionMaxThreads = 0,     // CU_FUNC_ATTRIBUTE_*
  kFunctionStaticShared = 1,
  kFunctionLocalBytes = 3,
  kFunctionRegisters = 4,
  kFunctionMaxDynamicShared = 8,
  kFunctionNonPortableCluster = 14,
  kCaptureRelaxed = 2,         // CU_STREAM_CAPTURE_MODE_RELAXED
  kClusterSpread = 1,          // CU_CLUSTER_SCHEDULING_POLICY_SPREAD
  kPromotionL2_128B = 2,       // CU_TENSOR_MAP_L2_PROMOTION_L2_128B
};

/// Functions of libcuda.so.1 by name.
struct Driver {
  Result (*init)(unsigned);
  Result (*get_error_name)(Result, const char**);
  Result (*get_error_string)(Result, const char**);
  Result (*driver_version)(int*);
  Result (*device_get)(Device*, int);
  Result (*device_attribute)(int*, int, Device);
  Result (*primary_context_retain)(Context*, Device);
  Result (*context_current)(Context*);
  Result (*context_push)(Context);
  Result (*context_pop)(Context*);
  Result (*module_load)(Module*, const void*);
  Result (*module_function)(Function*, Module, const char*);
  Result (*function_attribute)(int*, int, Function);
  Result (*function_set_attribute)(Function, int, int);
  Result (*exchange_capture_mode)(int*);
  Result (*launch)(const LaunchConfig*, Function, void**, void**);
  Result (*encode_tiled)(TensorMap*, int type, uint32_t rank, void* address, const uint64_t* shape,
                         const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave,
                         int swizzle, int promotion, int fill);
};

/// The driver, looked up once. Throws DeviceError where there is none.
const Driver& driver();
/// Why `driver()` throws; empty where it does not.
const std::string& driver_missing();

/// samebits.errors.DeviceError with this text, as a C++ exception.
[[noreturn]] void fail(const std::string& text);
/// Throws DeviceError "WHAT: NAME (description)" unless `result` is success.
void check(Result result, const std::string& what);

/// The primary context of a device, kept for the life of the process.
Context context_of(int device);

/// Makes a device's context current for a scope, where it is not already.
class Current {
 public:
  explicit Current(Context wanted);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pushed_ = false;
};

/// Loading code is forbidden while a stream is captured, although it orders nothing: allows it for a scope.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver().exchange_capture_mode(&mode_); }
  ~RelaxedCapture() { driver().exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = kCaptureRelaxed;
};

/// A shared library that is loaded already or can be found; null otherwise.
void* open_library(const char* name);

}  // namespace samebits::cuda
