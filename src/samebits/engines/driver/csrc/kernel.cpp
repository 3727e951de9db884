#include "kernel.hpp"

#include <nanobind/nanobind.h>

#include <bit>
#include <cstring>

namespace samebits::cuda {
namespace {

constexpr int kMostParameters = 128, kMostMaps = 8;
constexpr int kDefaultShared = 48 * 1024;  // more needs the function's consent
constexpr int kPortableCluster = 8;

std::string tuple(const uint32_t v[3]) {
  return "(" + std::to_string(v[0]) + ", " + std::to_string(v[1]) + ", " + std::to_string(v[2]) + ")";
}

}  // namespace

TensorMap encode(const TileFormat& tile, const Window& window) {
  const int rank = static_cast<int>(tile.box.size());
  if (rank != window.rank || rank < 1 || rank > Window::kMaxRank)
    fail("tensor descriptor: the tensor has " + std::to_string(window.rank) + " axes, the kernel's tile " +
         std::to_string(rank));
  uint64_t shape[Window::kMaxRank], strides[Window::kMaxRank];
  uint32_t box[Window::kMaxRank];
  const uint32_t ones[Window::kMaxRank] = {1, 1, 1, 1, 1};
  for (int i = 0; i < rank; ++i) {  // the driver counts axes from the innermost
    shape[rank - 1 - i] = window.shape[i];
    box[rank - 1 - i] = tile.box[i];
    if (i + 1 < rank) strides[rank - 2 - i] = window.strides[i] * tile.element_bytes;
  }
  TensorMap map;
  const Result result =
      driver().encode_tiled(&map, tile.element_type, rank, reinterpret_cast<void*>(window.address), shape, strides, box,
                            ones, 0, tile.swizzle, kPromotionL2_128B, window.nan_fill ? 1 : 0);
  if (result != 0) {
    std::string text = "tensor descriptor (16-byte aligned address and strides, innermost stride 1, boxes up to 256): address " +
                       std::to_string(window.address);
    for (int i = 0; i < rank; ++i)
      text += ", axis " + std::to_string(i) + " size " + std::to_string(window.shape[i]) + " stride " +
              std::to_string(window.strides[i]) + " box " + std::to_string(tile.box[i]);
    check(result, text);
  }
  return map;
}

Kernel::Kernel(const std::string& cubin, const std::string& name, int device, int threads, int shared, int ctas,
               bool pdl, bool cooperative, int64_t scratch, std::vector<Slot> slots)
    : name_(name), device_(device), threads_(threads), shared_(shared), ctas_(ctas), pdl_(pdl),
      cooperative_(cooperative), scratch_(scratch), slots_(std::move(slots)), context_(context_of(device)) {
  const Driver& d = driver();
  const Current current(context_);
  const RelaxedCapture relaxed;
  const std::string what = "kernel " + name;
  Device handle;
  int most_shared = 0, static_shared = 0, most_threads = 0;
  check(d.device_get(&handle, device), what);
  check(d.device_attribute(&most_shared, kDeviceMaxSharedOptin, handle), what);
  Module module;
  check(d.module_load(&module, cubin.data()), "loading " + what);
  check(d.module_function(&function_, module, name.c_str()), "loading " + what);
  check(d.function_attribute(&static_shared, kFunctionStaticShared, function_), what);
  check(d.function_attribute(&most_threads, kFunctionMaxThreads, function_), what);
  check(d.function_attribute(&registers, kFunctionRegisters, function_), what);
  check(d.function_attribute(&local_bytes, kFunctionLocalBytes, function_), what);
  if (shared + static_shared > most_shared)
    fail(what + " needs " + std::to_string(shared + static_shared) + " bytes of shared memory, a block of this GPU has " +
         std::to_string(most_shared) + ": use smaller tiles or fewer stages");
  if (threads > most_threads)
    fail(what + " runs " + std::to_string(threads) + " threads a block, but its registers allow " +
         std::to_string(most_threads) + ": use fewer warps or smaller tiles");
  if (shared > kDefaultShared) check(d.function_set_attribute(function_, kFunctionMaxDynamicShared, shared), what);
  if (ctas > kPortableCluster) check(d.function_set_attribute(function_, kFunctionNonPortableCluster, 1), what);
}

void Kernel::launch(Stream stream, const uint32_t grid[3], const std::vector<Value>& values,
                    const std::vector<Window>& windows, uint64_t scratch) const {
  if (values.size() != slots_.size())
    fail("kernel " + name_ + " takes " + std::to_string(slots_.size()) + " arguments, not " +
         std::to_string(values.size()));
  uint64_t words[kMostParameters];
  TensorMap maps[kMostMaps];
  void* parameters[kMostParameters + kMostMaps];
  int count = 0, used_words = 0, used_maps = 0;
  auto push = [&](uint64_t word) {
    if (used_words == kMostParameters) fail("kernel " + name_ + " has too many parameters");
    words[used_words] = word;
    parameters[count++] = &words[used_words++];
  };
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const Value& value = values[i];
    switch (slot.kind) {
      case Slot::kConstant: break;
      case Slot::kWord: push(value.word); break;  // little endian: a narrower parameter reads the low bytes
      case Slot::kFloat: push(std::bit_cast<uint32_t>(static_cast<float>(value.real))); break;
      case Slot::kDouble: push(std::bit_cast<uint64_t>(value.real)); break;
      case Slot::kTensorMap: {
        if (value.window < 0) fail("kernel " + name_ + ": argument " + std::to_string(i) + " must be a tensor descriptor");
        if (used_maps == kMostMaps) fail("kernel " + name_ + " has too many tensor descriptors");
        const Window& window = windows[value.window];
        maps[used_maps] = encode(slot.tile, window);
        parameters[count++] = &maps[used_maps++];
        for (int axis = 0; axis < window.rank; ++axis) push(window.shape[axis]);
        for (int axis = 0; axis < window.rank; ++axis) push(window.strides[axis]);
        break;
      }
    }
  }
  push(scratch);
  push(0);  // the profiler's scratch, which nobody asks for

  LaunchAttribute attributes[4];
  uint32_t used = 0;
  auto attribute = [&](LaunchAttribute::Id id) -> LaunchAttribute& {
    LaunchAttribute& a = attributes[used++];
    std::memset(&a, 0, sizeof a);
    a.id = id;
    return a;
  };
  if (pdl_) attribute(LaunchAttribute::kProgrammaticSerialization).flag = 1;
  if (cooperative_) attribute(LaunchAttribute::kCooperative).flag = 1;
  if (ctas_ > 1) {
    attribute(LaunchAttribute::kClusterDimension).cluster = {static_cast<uint32_t>(ctas_), 1, 1};
    attribute(LaunchAttribute::kClusterPolicy).flag = kClusterSpread;
  }
  LaunchConfig config{{grid[0] * ctas_, grid[1], grid[2]},
                      {static_cast<uint32_t>(threads_), 1, 1},
                      static_cast<uint32_t>(shared_),
                      stream,
                      attributes,
                      used};
  Result result;
  {
    const Current current(context_);
    // The driver blocks while its queue is full; other threads of Python may go on then.
    nanobind::gil_scoped_release release;
    result = driver().launch(&config, function_, parameters, nullptr);
  }
  if (result != 0) check(result, "launch of " + name_ + " with grid " + tuple(grid));
}

}  // namespace samebits::cuda
