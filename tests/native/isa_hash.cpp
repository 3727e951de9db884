// Prints one hash per kernel area and operation for one instruction set: the bits that a machine
// computes for fixed inputs. tests/native/run.sh compares them across instruction sets and machines.
//
// Built once per instruction set with -DSB_ISA=<name>; inputs come from integer arithmetic alone.
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/gemm.hpp"
#include "kernels/norm.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/probe.hpp"
#include "kernels/reduce.hpp"

namespace samebits::SB_ISA {
const ProbeKernels& probe_kernels();
const PointwiseKernels& pointwise_kernels();
const GemmKernels& gemm_kernels();
const AttentionKernels& attention_kernels();
const ReduceKernels& reduce_kernels();
const NormKernels& norm_kernels();
}  // namespace samebits::SB_ISA

using namespace samebits;
namespace isa = samebits::SB_ISA;

namespace {

uint64_t state = 0x9e3779b97f4a7c15ull;
uint32_t random_word() {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}
float from_word(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }

/// fp32 inputs: any word, usual magnitudes, values in [0, 1], and specials.
std::vector<float> inputs(size_t n) {
  static const uint32_t special[] = {0u, 0x80000000u, 0x3f800000u, 0xbf800000u, 0x7f800000u, 0xff800000u,
                                     0x7fc00000u, 1u, 0x80000001u, 0x7f7fffffu, 0x00800000u, 0x3f000000u};
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) {
    uint32_t u = random_word();
    switch (i % 4) {
      case 0: v[i] = from_word(u); break;
      case 1: v[i] = from_word((u & 0x807fffffu) | ((115 + (u >> 8) % 20) << 23)); break;
      case 2: v[i] = static_cast<float>(u >> 8) * 0x1p-24f; break;
      default: v[i] = u % 7 ? static_cast<float>(static_cast<int32_t>(u) >> 16) * 0x1p-11f : from_word(special[u % 12]);
    }
  }
  return v;
}
/// Finite inputs of usual magnitude.
std::vector<float> tame(size_t n) {
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(static_cast<int32_t>(random_word()) >> 8) * 0x1p-22f;
  return v;
}
/// Words of `n` elements of a dtype: fp32 inputs, or 16-bit words.
std::vector<uint8_t> typed(int dtype, size_t n) {
  std::vector<uint8_t> bytes(n * (dtype ? 2 : 4));
  if (dtype == 0) {
    auto v = inputs(n);
    std::memcpy(bytes.data(), v.data(), bytes.size());
  } else {
    for (size_t i = 0; i < n; ++i) {
      uint16_t w = static_cast<uint16_t>(random_word() >> 16);
      std::memcpy(bytes.data() + 2 * i, &w, 2);
    }
  }
  return bytes;
}

void report(const char* area, const char* what, int dtype, const void* data, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) h = (h ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3ull;
  std::printf("%s %s %d %016llx\n", area, what, dtype, static_cast<unsigned long long>(h));
}

void probe() {
  const auto& k = isa::probe_kernels();
  for (int op = 0; op < 22; ++op) {
    std::vector<float> out;
    char name[16];
    std::snprintf(name, sizeof name, "%d", op);
    state = 1000 + op;
    for (int rep = 0; rep < 200; ++rep) {
      auto a = inputs(16), b = inputs(16), c = inputs(16), r = std::vector<float>(16);
      k.binary(op, a.data(), b.data(), c.data(), r.data());
      out.insert(out.end(), r.begin(), r.end());
    }
    report("probe", name, 0, out.data(), out.size() * 4);
  }
}

void pointwise() {
  const auto& k = isa::pointwise_kernels();
  const size_t n = 20011;
  const float params[] = {0.7f, 1.1f, 0.9f};
  static const char* unary[] = {
#define X(name, count) #name,
      SB_UNARY_OPS(X)
  };
  static const char* binary[] = {SB_BINARY_OPS(X)
#undef X
  };
  for (int dtype = 0; dtype < 3; ++dtype) {
    const size_t size = dtype ? 2 : 4;
    std::vector<uint8_t> y(n * size);
    for (size_t op = 0; op < sizeof unary / sizeof *unary; ++op) {
      if (!std::strcmp(unary[op], "exp2_flush")) continue;  // not defined above 127
      state = op;
      auto x = typed(dtype, n);
      k.unary(static_cast<int>(op), dtype, x.data(), y.data(), n, params);
      report("unary", unary[op], dtype, y.data(), y.size());
    }
    for (size_t op = 0; op < sizeof binary / sizeof *binary; ++op) {
      state = op;
      auto a = typed(dtype, n), b = typed(dtype, n);
      k.binary(static_cast<int>(op), dtype, a.data(), b.data(), y.data(), n, params);
      report("binary", binary[op], dtype, y.data(), y.size());
    }
  }
}

void gemm() {
  const auto& k = isa::gemm_kernels();
  const int64_t shapes[][3] = {{1, 33, 70}, {7, 48, 129}, {40, 65, 300}};
  for (const auto& [m, n, depth] : shapes) {
    state = static_cast<uint64_t>(m);
    auto x = tame(m * depth), w = tame(n * depth);
    std::vector<float> y(m * n);
    GemmArgs a{};
    a.x = x.data(), a.w = w.data(), a.out = y.data();
    a.batch = 1, a.m = m, a.n = n, a.k = depth;
    a.x_row = depth, a.x_col = 1, a.w_row = depth, a.w_col = 1, a.out_row = n, a.out_col = 1;
    a.alpha = 1;
    GemmPlan p = k.plan(a, 1);
    const int64_t units = a.batch * p.row_units;
    std::vector<float> packed(p.unit_floats ? p.unit_floats : 1), scratch(p.scratch_floats + 64);
    for (int64_t u = 0; u < units; ++u) {
      if (p.unit_floats)
        for (int64_t c = 0; c < p.pieces; ++c) k.pack(a, p, u, c, packed.data());
      for (int64_t b = 0; b < p.col_blocks; ++b)
        k.run(a, p, u, b, p.unit_floats ? packed.data() : nullptr, scratch.data(), nullptr);
    }
    char name[32];
    std::snprintf(name, sizeof name, "%dx%dx%d", int(m), int(n), int(depth));
    report("gemm", name, 0, y.data(), y.size() * 4);
  }
}

void attention() {
  const auto& k = isa::attention_kernels();
  const int64_t d = 40, keys = 700;
  for (int dtype = 0; dtype < 3; ++dtype)
    for (float cap : {0.0f, 8.0f}) {
      state = 77;
      std::vector<uint8_t> storage[3];  // q, k, v: fp32, or words of bf16 and fp16 below 4
      for (auto& bytes : storage) {
        auto values = tame(keys * d);
        bytes.resize(values.size() * (dtype ? 2 : 4));
        for (size_t i = 0; i < values.size(); ++i) {
          uint32_t u;
          std::memcpy(&u, &values[i], 4);
          const uint16_t word = dtype == 1 ? u >> 16 : (u >> 16 & 0x8000u) | (u >> 8 & 0x3fffu);
          std::memcpy(bytes.data() + i * (dtype ? 2 : 4), dtype ? static_cast<const void*>(&word) : &u, dtype ? 2 : 4);
        }
      }
      const int rows = k.few_rows < 3 ? k.few_rows : 3;
      std::vector<uint8_t> out(rows * d * 4);
      AttentionTask t{};
      t.rows = rows, t.d = d, t.dv = d, t.scale = 0.158f, t.cap = cap;
      for (int r = 0; r < rows; ++r) {
        t.q[r] = storage[0].data() + r * d * (dtype ? 2 : 4);
        t.out[r] = out.data() + r * d * (dtype ? 2 : 4);
        t.count[r] = keys - 9 * (rows - 1 - r);
      }
      t.k = {storage[1].data(), d, nullptr}, t.v = {storage[2].data(), d, nullptr};
      std::vector<float> scratch(k.block_scratch(d, d) + k.few_scratch(d, d) + 64);
      k.block(dtype, t, scratch.data());
      report("attention", cap > 0 ? "softcap" : "plain", dtype, out.data(), out.size());
      const int64_t leaves = (keys + kLeaf - 1) / kLeaf;
      std::vector<float> partials(leaves * partial_size(t));
      for (int64_t leaf = 0; leaf < leaves; ++leaf)
        k.few(dtype, t, leaf, partials.data() + leaf * partial_size(t), scratch.data());
      std::memset(out.data(), 0, out.size());
      k.finish(dtype, t, partials.data());
      report("attention", cap > 0 ? "softcap by leaf" : "plain by leaf", dtype, out.data(), out.size());
    }
}

void rows() {
  const auto& norms = isa::norm_kernels();
  const auto& reduce = isa::reduce_kernels();
  for (int64_t n : {1, 17, 1024, 3001}) {
    state = static_cast<uint64_t>(n);
    const int64_t rows = 3;
    auto x = tame(rows * n), weight = tame(n), bias = tame(n);
    std::vector<float> y(rows * n);
    NormArgs a{};
    a.x = x.data(), a.out = y.data(), a.rows = rows, a.n = n, a.stride = n, a.eps = 1e-5f;
    a.in = a.to = DType::f32, a.same_type = true;
    char name[16];
    std::snprintf(name, sizeof name, "%d", int(n));
    norms.softmax(a, 0, rows);
    report("softmax", name, 0, y.data(), y.size() * 4);
    a.log = true;
    norms.softmax(a, 0, rows);
    report("log_softmax", name, 0, y.data(), y.size() * 4);
    a.weight = weight.data(), a.bias = bias.data();
    norms.layer_norm(a, 0, rows);
    report("layer_norm", name, 0, y.data(), y.size() * 4);
    a.bias = nullptr;
    norms.rms_norm(a, 0, rows);
    report("rms_norm", name, 0, y.data(), y.size() * 4);

    std::vector<float> sums(rows), partials(rows);
    ReduceArgs r{};
    r.x = x.data(), r.out = sums.data(), r.outputs = rows, r.n = n, r.divisor = static_cast<float>(n);
    r.kept.count = 1, r.kept.size[0] = rows, r.kept.stride[0] = n;
    r.reduced.count = 1, r.reduced.size[0] = n, r.reduced.stride[0] = 1;
    for (Reduce op : {Reduce::sum, Reduce::square, Reduce::maximum}) {
      r.op = op;
      reduce.partial(r, 0, rows, 0, n, partials.data());
      reduce.finish(r, 0, rows, partials.data(), 1, rows);
      report("reduce", op == Reduce::sum ? "sum" : op == Reduce::square ? "square" : "maximum", int(n), sums.data(), 4 * rows);
    }
  }
}

}  // namespace

int main() {
  probe();
  pointwise();
  gemm();
  attention();
  rows();
}
