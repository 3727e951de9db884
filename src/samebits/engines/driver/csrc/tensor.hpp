// What a torch tensor is, without asking Python: through the DLPack exchange functions that torch publishes.
#pragma once
#include <Python.h>

#include <cstdint>

#include "driver.hpp"

namespace samebits::cuda {

/// DLTensor of DLPack 1.x. The shape and the strides belong to the tensor.
struct Tensor {
  void* data;
  int32_t device_type, device;
  int32_t rank;
  uint8_t code, bits;  // of an element
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // elements
  uint64_t byte_offset;

  static constexpr int32_t kCuda = 2;
  bool on_gpu() const { return device_type == kCuda; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(data) + byte_offset; }
  bool aligned() const { return address() % 16 == 0; }
  /// It has elements and no memory: its storage was freed, or it stands for zeros.
  bool hollow() const {
    int64_t elements = data ? 0 : 1;
    for (int i = 0; i < rank; ++i) elements *= shape[i];
    return elements > 0;
  }
  uint32_t dtype() const { return code << 8 | bits; }
};
static_assert(sizeof(Tensor) == 48);

bool is_tensor(PyObject* object);
/// Valid while the tensor lives and keeps its shape.
Tensor view(PyObject* tensor);
/// The same; false, and no error, for a tensor without plain memory (sparse, meta, fake).
bool view_if_plain(PyObject* tensor, Tensor& out);
/// torch's current stream of a device.
Stream current_stream(int device);

}  // namespace samebits::cuda
