// Reductions of strided tensors: coalesces axes, cuts work into tasks, chains the passes of an op.
#include <cmath>

#include "bind.hpp"
#include "kernels/reduce.hpp"

namespace samebits {
SB_KERNEL_TABLE(ReduceKernels, reduce_kernels)

namespace {

constexpr int64_t kBlock = 1024, kPerThread = 131072;

void append(Dims& d, int64_t size, int64_t stride) {
  if (size == 1) return;
  if (d.count > 0 && d.stride[d.count - 1] == size * stride) {
    d.size[d.count - 1] *= size;
    d.stride[d.count - 1] = stride;
  } else {
    d.size[d.count] = size;
    d.stride[d.count++] = stride;
  }
}

void close(Dims& d) {
  if (d.count > 0) return;
  d.size[0] = d.stride[0] = 1;
  d.count = 1;
}

int64_t item(nb::handle tuple, Py_ssize_t i) {
  return PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
}

/// Splits the axes of a tensor into kept and reduced ones. `axes` holds each reduced axis once,
/// counted from the front.
void layout(ReduceArgs& a, nb::tuple shape, nb::tuple strides, nb::tuple axes) {
  const Py_ssize_t rank = PyTuple_GET_SIZE(shape.ptr());
  uint64_t mask = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(axes.ptr()); ++i) mask |= uint64_t{1} << item(axes, i);
  a.outputs = a.n = 1;
  for (Py_ssize_t i = 0; i < rank; ++i) {
    const int64_t size = item(shape, i), stride = item(strides, i);
    const bool is_reduced = (mask >> i) & 1;
    (is_reduced ? a.n : a.outputs) *= size;
    append(is_reduced ? a.reduced : a.kept, size, stride);
  }
  close(a.kept);
  close(a.reduced);
  const int last = a.kept.count - 1;
  a.columns = a.reduced.count == 1 && a.reduced.stride[0] != 1 && a.n > 1 &&
              a.kept.stride[last] == 1 && a.kept.size[last] > 3;
}

/// One pass. Rows and, if there are few of them, aligned groups of leaves go to the threads.
void pass(const ReduceArgs& a) {
  const ReduceKernels& k = reduce_kernels();
  if (a.outputs == 0) return;
  const int64_t leaf = a.wide ? 8192 : 1024;
  const int64_t unit = a.columns ? 128 : 4, units = (a.outputs + unit - 1) / unit;
  const int threads = threads_for(a.outputs * a.n, kPerThread);
  int64_t block = kBlock, leaves = (a.n + leaf - 1) / leaf, group = leaves;
  if (threads > 1) {
    block = (units + 4 * threads - 1) / (4 * threads) * unit;
    if (block > kBlock) block = kBlock;
    if (units < 2 * threads && leaves > 1) {
      const int64_t wanted = (4 * threads + units - 1) / units;
      for (group = 1; leaves / (2 * group) >= wanted;) group *= 2;
    }
  }
  const int64_t blocks = (a.outputs + block - 1) / block;
  if (group >= leaves) {
    parallel_for(blocks, threads, [&](int64_t b) {
      float partials[kBlock];
      const int64_t u0 = b * block, u1 = std::min(a.outputs, u0 + block);
      k.partial(a, u0, u1, 0, a.n, partials);
      k.finish(a, u0, u1, partials, 1, 0);
    });
    return;
  }
  const int64_t groups = (leaves + group - 1) / group;
  std::vector<float> partials(static_cast<size_t>(groups * a.outputs));
  parallel_for(blocks * groups, threads, [&](int64_t task) {
    const int64_t g = task % groups, u0 = task / groups * block, k0 = g * group * leaf;
    k.partial(a, u0, std::min(a.outputs, u0 + block), k0, std::min(a.n, k0 + group * leaf),
              partials.data() + g * a.outputs + u0);
  });
  parallel_for(1, 1, [&](int64_t) { k.finish(a, 0, a.outputs, partials.data(), groups, a.outputs); });
}

/// A pass whose results stay in fp32 and become the parameter of the next one.
void pass_to(ReduceArgs a, Reduce op, Finish finish, float divisor, std::vector<float>& values) {
  values.resize(static_cast<size_t>(a.outputs));
  a.op = op;
  a.finish = finish;
  a.divisor = divisor;
  a.param = nullptr;
  a.out = values.data();
  a.to = DType::f32;
  pass(a);
}

// Kinds, as engines/cpu/reduce.py numbers them.
enum class Kind : int {
  sum, mean, var, std, product, nan_sum, norm0, norm1, norm2, norm_max, norm_min, logsumexp, maximum, exp_sum
};

/// Rounds fp32 values to the output type of `a`, as sums of one number each.
void copy_out(ReduceArgs a, const std::vector<float>& values, void* out) {
  a.x = values.data();
  a.out = out;
  a.in = DType::f32;
  a.op = Reduce::sum;
  a.finish = Finish::none;
  a.param = nullptr;
  a.n = 1;
  a.columns = false;
  a.kept.count = a.reduced.count = 1;
  a.kept.size[0] = a.outputs;
  a.kept.stride[0] = a.reduced.size[0] = a.reduced.stride[0] = 1;
  pass(a);
}

void reduce(int kind, uintptr_t x, int in, nb::tuple shape, nb::tuple strides, nb::tuple axes,
            uintptr_t out, int to, double correction, uintptr_t mean_out, bool wide) {
  ReduceArgs a{};
  a.wide = wide;
  a.x = ptr<void>(x);
  a.out = ptr<void>(out);
  a.in = static_cast<DType>(in);
  a.to = static_cast<DType>(to);
  layout(a, shape, strides, axes);
  need_memory(a.n * a.outputs, {x});
  nb::gil_scoped_release release;
  const float n = static_cast<float>(a.n);
  std::vector<float> param;
  switch (static_cast<Kind>(kind)) {
    case Kind::sum: a.op = Reduce::sum; break;
    case Kind::mean:
      a.op = Reduce::sum;
      a.finish = Finish::divide;
      a.divisor = n;
      break;
    case Kind::var:
    case Kind::std: {
      pass_to(a, Reduce::sum, Finish::divide, n, param);
      if (mean_out) copy_out(a, param, ptr<void>(mean_out));
      const double freedom = static_cast<double>(a.n) - correction;
      a.op = Reduce::centred;
      a.param = param.data();
      a.finish = static_cast<Kind>(kind) == Kind::var ? Finish::divide : Finish::divide_sqrt;
      a.divisor = static_cast<float>(freedom > 0 ? freedom : 0);
      break;
    }
    case Kind::product: a.op = Reduce::product; break;
    case Kind::nan_sum: a.op = Reduce::nan_sum; break;
    case Kind::norm0: a.op = Reduce::nonzero; break;
    case Kind::norm1: a.op = Reduce::absolute; break;
    case Kind::norm2:
      a.op = Reduce::square;
      a.finish = Finish::sqrt;
      break;
    case Kind::norm_max: a.op = Reduce::max_abs; break;
    case Kind::norm_min: a.op = Reduce::min_abs; break;
    case Kind::logsumexp:
      pass_to(a, Reduce::maximum, Finish::plus_zero, 0, param);
      for (float& m : param)
        if (std::isinf(m)) m = 0;  // so that rows of -inf give -inf, and +inf gives +inf
      a.op = Reduce::exponential;
      a.param = param.data();
      a.finish = Finish::log_plus_param;
      break;
    case Kind::maximum:
      a.op = Reduce::maximum;
      a.finish = Finish::plus_zero;
      break;
    case Kind::exp_sum:
      pass_to(a, Reduce::maximum, Finish::plus_zero, 0, param);
      copy_out(a, param, ptr<void>(mean_out));
      a.op = Reduce::exponential;
      a.param = param.data();
      break;
  }
  pass(a);
}

}  // namespace

void bind_reduce(nb::module_& m) { m.def("reduce", reduce); }
}  // namespace samebits
