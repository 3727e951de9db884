// Products with packed weights by fused multiply-adds, and the packing; see packed.hpp.
#include "kernels/packed_tile.hpp"
#include "kernels/product_steps.hpp"

namespace samebits::SB_ISA {
namespace {

// ---- packing ----
void put(float* to, F16 v) { store_f32(to, v); }
void put(f16* to, F16 v) { store_f16(to, v); }
void put(bf16* to, F16 v) { store_f32(reinterpret_cast<float*>(to), v); }
template <class T>
constexpr bool paired = std::is_same_v<T, bf16>;
template <class T>
constexpr int64_t kWord = paired<T> ? 4 : sizeof(T);

template <class T>
Range pack_w_of(const GemmArgs& g, int64_t panel, char* to) {
  const PackedShape shape(g.in_type, g.n, g.k);
  const T* w = static_cast<const T*>(g.w) + 16 * panel * g.w_row;
  const int64_t columns = g.n - 16 * panel;
  Exponents seen;
  for (int64_t u = 0; u < shape.units; ++u) {
    F16 v[16];
    for (int c = 0; c < 16; ++c) {
      v[c] = c < columns ? words(w + c * g.w_row, g.w_col, u, g.k, paired<T>) : zero();
      if (g.in_type == DType::bf16) seen.see(as_int(v[c]));
    }
    transpose16(v);
    for (int l = 0; l < 16; ++l, to += 16 * kWord<T>) put(reinterpret_cast<T*>(to), v[l]);
  }
  return seen.range();
}

template <class T>
Range pack_x_of(const GemmArgs& g, int64_t row, int64_t rows, float* to) {
  const PackedShape shape(g.in_type, g.n, g.k);
  Exponents seen;
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = static_cast<const T*>(g.x) + (row + r) * g.x_row;
    for (int64_t u = 0; u < shape.units; ++u) {
      F16 v = words(x, g.x_col, u, g.k, paired<T>);
      store_f32(to + 16 * (u * rows + r), v);
      if (g.in_type == DType::bf16) seen.see(as_int(v));
    }
  }
  return seen.range();
}

Range pack_w(const GemmArgs& g, int64_t panel, void* to) {
  char* at = static_cast<char*>(to);
  switch (g.in_type) {
    case DType::f32: return pack_w_of<float>(g, panel, at);
    case DType::bf16: return pack_w_of<bf16>(g, panel, at);
    default: return pack_w_of<f16>(g, panel, at);
  }
}
Range pack_x(const GemmArgs& g, int64_t row, int64_t rows, void* to) {
  float* at = static_cast<float*>(to);
  switch (g.in_type) {
    case DType::f32: return pack_x_of<float>(g, row, rows, at);
    case DType::bf16: return pack_x_of<bf16>(g, row, rows, at);
    default: return pack_x_of<f16>(g, row, rows, at);
  }
}
void run(const PackedTile& t) {
  switch (t.g->in_type) {
    case DType::f32: return run_tile<Single<float>>(t);
    case DType::bf16: return run_tile<Pair>(t);
    case DType::f16: return run_tile<Single<f16>>(t);
  }
}

}  // namespace

const PackedKernels& packed_kernels();
const PackedKernels& packed_kernels() {
  static const PackedKernels table{kTileRows, kTilesUpTo, pack_w, pack_x, run};
  return table;
}

}  // namespace samebits::SB_ISA
