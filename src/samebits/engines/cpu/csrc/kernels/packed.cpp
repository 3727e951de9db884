// Products with packed weights by fused multiply-adds, and the packing; see packed.hpp.
#include "kernels/packed_tile.hpp"

namespace samebits::SB_ISA {
namespace {

// A unit is a step of 16 k; x is fp32.
template <class T>
struct Single {
  using X = float;
  using W = T;
  static int64_t whole(const PackedShape& s) { return s.units; }
  static F16 load(const T* w) { return SB_ISA::load(w); }
  static F16 add(F16 a, float x, F16 w) { return fma(set1(x), w, a); }
  static F16 add_first(F16 a, float, F16) { return a; }
};

// A unit is two steps of bf16, the first in the upper halves.
struct Pair {
  using X = int32_t;
  using W = int32_t;
  struct Both {
    F16 upper, lower;
  };
  static F16 upper(I16 v) { return as_float(and_i(v, set1_i(static_cast<int32_t>(0xffff0000u)))); }
  static F16 lower(I16 v) { return as_float(shl<16>(v)); }
  static int64_t whole(const PackedShape& s) { return s.steps / 2; }
  static Both load(const int32_t* w) {
    I16 v = load_i(w);
    return {upper(v), lower(v)};
  }
  static F16 add(F16 a, int32_t x, Both w) {
    a = add_first(a, x, w);
    return fma(set1(bit_float(static_cast<uint32_t>(x) << 16)), w.lower, a);
  }
  static F16 add_first(F16 a, int32_t x, Both w) {
    return fma(set1(bit_float(static_cast<uint32_t>(x) & 0xffff0000u)), w.upper, a);
  }
};

// ---- packing ----
// Exponents of bf16 numbers, upper and lower halves alike.
class Exponents {
 public:
  void see(I16 v) {
    one(shr<16>(v));
    one(v);
  }
  Range range() const {
    int32_t low[16], high[16];
    store_i(low, low_);
    store_i(high, high_);
    Range r{255, 0};
    for (int i = 0; i < 16; ++i) {
      if (low[i] < r.low) r.low = static_cast<uint8_t>(low[i]);
      if (high[i] > r.high) r.high = static_cast<uint8_t>(high[i]);
    }
    return r;
  }

 private:
  void one(I16 v) {
    I16 size = and_i(v, set1_i(0x7fff)), e = shr<7>(size);
    I16 counted = select_i(eq_i(size, set1_i(0)), set1_i(255), e);
    low_ = select_i(lt_i(counted, low_), counted, low_);
    high_ = select_i(lt_i(high_, e), e, high_);
  }
  I16 low_ = set1_i(255), high_ = set1_i(0);
};

// Sixteen numbers from k on, missing ones as +0, widened.
template <class T>
F16 sixteen(const T* row, int64_t col, int64_t k, int64_t end) {
  int n = static_cast<int>(end - k < 16 ? (end - k > 0 ? end - k : 0) : 16);
  if (col == 1) return n == 16 ? load(row + k) : load_part(row + k, n);
  float t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = to_float(row[(k + i) * col]);
  return load_f32(t);
}
// Words of a unit: fp32, or two steps of bf16.
template <class T>
F16 words(const T* row, int64_t col, int64_t unit, int64_t end) {
  return sixteen(row, col, 16 * unit, end);
}
F16 words(const bf16* row, int64_t col, int64_t unit, int64_t end) {
  F16 upper = sixteen(row, col, 32 * unit, end), lower = sixteen(row, col, 32 * unit + 16, end);
  return as_float(or_i(as_int(upper), shr<16>(as_int(lower))));
}
void put(float* to, F16 v) { store_f32(to, v); }
void put(f16* to, F16 v) { store_f16(to, v); }
void put(bf16* to, F16 v) { store_f32(reinterpret_cast<float*>(to), v); }
template <class T>
constexpr int64_t kWord = sizeof(T);
template <>
constexpr int64_t kWord<bf16> = 4;  // a pair

template <class T>
Range pack_w_of(const GemmArgs& g, int64_t panel, char* to) {
  const PackedShape shape(g.in_type, g.n, g.k);
  const T* w = static_cast<const T*>(g.w) + 16 * panel * g.w_row;
  const int64_t columns = g.n - 16 * panel;
  Exponents seen;
  for (int64_t u = 0; u < shape.units; ++u) {
    F16 v[16];
    for (int c = 0; c < 16; ++c) {
      v[c] = c < columns ? words(w + c * g.w_row, g.w_col, u, g.k) : zero();
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
      F16 v = words(x, g.x_col, u, g.k);
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
  static const PackedKernels table{kTileRows, pack_w, pack_x, run};
  return table;
}

}  // namespace samebits::SB_ISA
