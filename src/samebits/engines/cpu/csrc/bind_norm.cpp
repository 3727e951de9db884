// Softmax, normalisations and scans: which rows run in which task.
#include "bind.hpp"
#include "kernels/norm.hpp"

namespace samebits {
SB_KERNEL_TABLE(NormKernels, norm_kernels)

namespace {

constexpr int64_t kPerThread = 65536;

/// f(first, last) over `count` rows of `cost` each, in blocks of a multiple of `unit` rows.
template <class F>
void in_blocks(int64_t count, int64_t cost, int64_t unit, F&& f) {
  const int threads = threads_for(count * cost, kPerThread);
  int64_t block = count;
  if (threads > 1) {
    block = (count + 4 * threads - 1) / (4 * threads);
    block = (block + unit - 1) / unit * unit;
  }
  if (block < 1) block = 1;
  parallel_for((count + block - 1) / block, threads, [&](int64_t i) {
    const int64_t first = i * block, last = first + block < count ? first + block : count;
    f(first, last);
  });
}

NormArgs rows_of(uintptr_t x, int in, int64_t rows, int64_t n, int64_t stride, uintptr_t out, int to, bool wide) {
  need_memory(rows * n, {x});
  NormArgs a{};
  a.x = ptr<void>(x);
  a.out = ptr<void>(out);
  a.rows = rows;
  a.n = n;
  a.stride = stride;
  a.in = static_cast<DType>(in);
  a.to = static_cast<DType>(to);
  a.wide = wide;
  return a;
}

void softmax(uintptr_t x, int in, int64_t rows, int64_t n, int64_t stride, uintptr_t out, int to, bool log, bool wide) {
  NormArgs a = rows_of(x, in, rows, n, stride, out, to, wide);
  a.log = log;
  const auto run = norm_kernels().softmax;
  in_blocks(rows, 4 * n, 1, [&](int64_t r0, int64_t r1) { run(a, r0, r1); });
}

void softmax_apply(uintptr_t x, int in, int64_t outer, int64_t n, int64_t inner, uintptr_t m, uintptr_t s,
                   uintptr_t out, int to, bool log) {
  need_memory(outer * n * inner, {x});
  const SoftmaxApplyArgs a{ptr<void>(x), ptr<void>(out), ptr<float>(m), ptr<float>(s), outer, n, inner,
                           static_cast<DType>(in), static_cast<DType>(to), log};
  const auto run = norm_kernels().softmax_apply;
  const int threads = threads_for(2 * outer * n * inner, kPerThread);
  const int64_t parts = threads == 1 ? 1 : outer >= 2 * threads ? 1 : 4 * threads;
  const int64_t length = (n + parts - 1) / parts;
  parallel_for(outer * parts, threads, [&](int64_t task) {
    const int64_t k0 = task % parts * length, k1 = k0 + length < n ? k0 + length : n;
    if (k0 < k1) run(a, task / parts, k0, k1);
  });
}

/// Returns false, with nothing written, if a token is not in [0, n).
bool token_logprob(uintptr_t x, int in, int64_t rows, int64_t n, int64_t stride, uintptr_t ids, uintptr_t out, int to,
                   bool wide) {
  NormArgs a = rows_of(x, in, rows, n, stride, out, to, wide);
  a.ids = ptr<int64_t>(ids);
  for (int64_t r = 0; r < rows; ++r)
    if (a.ids[r] < 0 || a.ids[r] >= n) return false;
  const auto run = norm_kernels().token_logprob;
  in_blocks(rows, 4 * n, 1, [&](int64_t r0, int64_t r1) { run(a, r0, r1); });
  return true;
}

/// logsumexp of rows along the wide tree; along the narrow one it is a reduction (bind_reduce.cpp).
void wide_logsumexp(uintptr_t x, int in, int64_t rows, int64_t n, int64_t stride, uintptr_t out, int to) {
  const NormArgs a = rows_of(x, in, rows, n, stride, out, to, true);
  const auto run = norm_kernels().token_logprob;
  in_blocks(rows, 4 * n, 1, [&](int64_t r0, int64_t r1) { run(a, r0, r1); });
}

void norm(bool centred, uintptr_t x, int in, int64_t rows, int64_t n, int64_t stride, uintptr_t weight,
          uintptr_t bias, bool same_type, double eps, uintptr_t out, uintptr_t mean, uintptr_t rstd, bool wide) {
  NormArgs a = rows_of(x, in, rows, n, stride, out, in, wide);
  a.weight = ptr<void>(weight);
  a.bias = ptr<void>(bias);
  a.same_type = same_type;
  a.eps = static_cast<float>(eps);
  a.mean = ptr<float>(mean);
  a.rstd = ptr<float>(rstd);
  const auto run = centred ? norm_kernels().layer_norm : norm_kernels().rms_norm;
  in_blocks(rows, 2 * n, 4, [&](int64_t r0, int64_t r1) { run(a, r0, r1); });
}

void reciprocal_deviation(uintptr_t var, uintptr_t out, int64_t n, double eps) {
  parallel_for(1, 1, [&](int64_t) {
    norm_kernels().reciprocal_deviation(ptr<float>(var), ptr<float>(out), n, static_cast<float>(eps));
  });
}

void affine(uintptr_t x, int type, int64_t batch, int64_t channels, int64_t space, int64_t groups, uintptr_t mean,
            uintptr_t rstd, uintptr_t weight, uintptr_t bias, uintptr_t out) {
  need_memory(batch * channels * space, {x});
  const AffineArgs a{ptr<void>(x), ptr<void>(out), ptr<float>(mean), ptr<float>(rstd), ptr<float>(weight),
                     ptr<float>(bias), channels, space, groups, static_cast<DType>(type)};
  const auto run = norm_kernels().affine;
  in_blocks(batch * channels, space, 1, [&](int64_t c0, int64_t c1) { run(a, c0, c1); });
}

void scan(bool product, uintptr_t x, int in, int64_t outer, int64_t n, int64_t inner, uintptr_t out, int to) {
  need_memory(outer * n * inner, {x});
  const ScanArgs a{ptr<void>(x), ptr<void>(out), n, inner, static_cast<DType>(in), static_cast<DType>(to), product};
  const auto run = norm_kernels().scan;
  in_blocks(outer * inner, n, inner > 1 ? 16 : 8, [&](int64_t u0, int64_t u1) { run(a, u0, u1); });
}

}  // namespace

void bind_norm(nb::module_& m) {
  m.def("softmax", softmax, NoGil());
  m.def("softmax_apply", softmax_apply, NoGil());
  m.def("token_logprob", token_logprob, NoGil());
  m.def("wide_logsumexp", wide_logsumexp, NoGil());
  m.def("norm", norm, NoGil());
  m.def("reciprocal_deviation", reciprocal_deviation, NoGil());
  m.def("affine", affine, NoGil());
  m.def("scan", scan, NoGil());
}
}  // namespace samebits
