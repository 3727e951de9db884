// Packed bf16 by vdpbf16ps: two steps of a chain in one instruction. Intel's manual gives it as
// acc = rne(acc + x.upper * w.upper), then the same with the lower halves, whatever MXCSR says, with
// subnormals as zeros. A processor is asked before it is believed.
#include "kernels/packed_tile.hpp"
#include "kernels/strip_tile.hpp"

namespace samebits::SB_ISA {
namespace {

F16 dot(F16 a, I16 x, I16 w) {
  return {_mm512_dpbf16_ps(a.v, reinterpret_cast<__m512bh>(x.v), reinterpret_cast<__m512bh>(w.v))};
}

struct Dot {
  using X = int32_t;
  using W = int32_t;
  static constexpr bool kHalves = false;
  // A step that is not there adds +0 * +0; it changes -0 alone, which no sum is (see dot_keeps_bits).
  static int64_t whole(const PackedShape& s) { return s.units; }
  static I16 load(const int32_t* w) { return load_i(w); }
  static F16 add(F16 a, int32_t x, I16 w) { return dot(a, set1_i(x), w); }
  static F16 add_first(F16 a, int32_t, I16) { return a; }
};

F16 half(I16 v, bool upper) {
  return as_float(upper ? and_i(v, set1_i(static_cast<int32_t>(0xffff0000u))) : shl<16>(v));
}

}  // namespace

void run_dot(const PackedTile& t) { run_tile<Dot>(t); }
void run_dot_strip(const StripTile& t) { strip_run<Dot, kStripLanes>(t); }

bool dot_is_two_steps() {
  uint64_t state = 0x9e3779b97f4a7c15u;
  auto next = [&] {  // xorshift64 (Marsaglia, 2003)
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<uint32_t>(state >> 32);
  };
  auto number = [&](uint32_t spread) {  // of either sign, exponents around 127
    return (next() & 0x807fffffu) | ((127 - spread + next() % (2 * spread + 1)) << 23);
  };
  for (int i = 0; i < 4096; ++i) {
    const uint32_t spread = i % 4 == 0 ? 1 : i % 4 == 1 ? 4 : i % 4 == 2 ? 12 : 30;
    int32_t x[16], w[16];
    float start[16];
    for (int l = 0; l < 16; ++l) {
      x[l] = static_cast<int32_t>((number(spread) & 0xffff0000u) | number(spread) >> 16);
      w[l] = static_cast<int32_t>((number(spread) & 0xffff0000u) | number(spread) >> 16);
      start[l] = bit_float(number(2 * spread));
    }
    I16 xv = load_i(x), wv = load_i(w);
    F16 a = load_f32(start);
    if (i % 8 > 5) {  // sums that nearly vanish
      const bool upper = i % 8 == 6;
      a = add(neg(mul(half(xv, upper), half(wv, upper))), mul(a, set1(i % 16 > 7 ? 0.0f : 0x1p-20f)));
    }
    F16 expected = fma(half(xv, false), half(wv, false), fma(half(xv, true), half(wv, true), a));
    int32_t e[16], d[16];
    store_i(e, as_int(expected));
    store_i(d, as_int(dot(a, xv, wv)));
    if (std::memcmp(e, d, sizeof e) != 0) return false;
  }
  return true;
}

}  // namespace samebits::SB_ISA
