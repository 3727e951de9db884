#include "attention.hpp"

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "parallel.hpp"

namespace samebits {
namespace {

// Buffers live as long as their thread: no allocation per task.
template <class T>
T* buffer(std::vector<T>& storage, int64_t n) {
  if (static_cast<int64_t>(storage.size()) < n) storage.resize(static_cast<size_t>(n));
  return storage.data();
}
thread_local std::vector<float> kernel_scratch, partial_scratch;
thread_local std::vector<int32_t> position_scratch;
thread_local std::vector<int64_t> k_table_scratch, v_table_scratch;
thread_local std::vector<uint8_t> seen_scratch[2];

struct Sequence {
  const char *q, *k, *v;  // head 0, row 0
  char* out;
  float* lse;
  int64_t q_len, kv_len, q_start;
  const int64_t* pages;
};

/// Keys that a row sees: positions [low, high), less those that the mask takes away.
struct Visible {
  int64_t low = 0, high = 0;
  const uint8_t* seen = nullptr;  // by position; null: all
  const void* source = nullptr;   // where the mask row lies: equal sources hold equal masks
  int64_t end = 0, count = 0;     // one past the last visible key; how many there are
  bool biased = false;            // some visible key has a bias other than zero
};

class Driver {
 public:
  Driver(const AttentionKernels& kernels, const AttentionCall& call)
      : kernels_(kernels), c_(call), group_(call.heads / call.kv_heads),
        size_(call.dtype == 0 ? 4 : 2) {}

  Sequence sequence(int64_t b) const {
    Sequence s;
    int64_t q0 = 0, k0 = 0;
    s.q_len = c_.q_len;
    s.kv_len = c_.kv_len;
    s.pages = nullptr;
    if (c_.cu_q) q0 = c_.cu_q[b], s.q_len = c_.cu_q[b + 1] - q0;
    if (c_.cu_k) k0 = c_.cu_k[b], s.kv_len = c_.cu_k[b + 1] - k0;
    if (c_.block_table) s.pages = c_.block_table + b * c_.table_stride, s.kv_len = c_.kv_lens[b];
    int64_t kb = s.pages ? 0 : b;  // pages address the whole cache
    s.q = c_.q + size_ * (b * c_.qs.batch + q0 * c_.qs.row);
    s.k = c_.k + size_ * (kb * c_.ks.batch + k0 * c_.ks.row);
    s.v = c_.v + size_ * (kb * c_.vs.batch + k0 * c_.vs.row);
    s.out = c_.out + size_ * (b * c_.os.batch + q0 * c_.os.row);
    s.lse = c_.lse ? c_.lse + b * c_.ls.batch + q0 * c_.ls.row : nullptr;
    s.q_start = c_.q_starts ? c_.q_starts[b] : c_.q_start;
    return s;
  }

  int64_t group() const { return group_; }

  Visible visible(const Sequence& s, int64_t b, int64_t head, int64_t row, int slot,
                  const Visible* last) const {
    Visible v;
    int64_t at = s.q_start + row;
    v.high = s.kv_len;
    if (c_.causal) v.high = at + 1 < v.high ? at + 1 : v.high;
    if (c_.window) {
      v.low = at - c_.window + 1 > 0 ? at - c_.window + 1 : 0;
      if (at + c_.window < v.high) v.high = at + c_.window;
    }
    if (v.high < v.low) v.high = v.low;
    v.end = v.high;
    v.count = v.high - v.low;
    if (c_.mask_kind == MaskKind::none) return v;

    int64_t offset = b * c_.ms.batch + head * c_.ms.head + row * c_.ms.row;
    v.source = c_.mask + offset * (c_.mask_kind == MaskKind::boolean ? 1 : 4);
    if (last && last->source == v.source && last->low == v.low && last->high == v.high) return *last;
    if (c_.mask_kind == MaskKind::boolean) {
      v.seen = static_cast<const uint8_t*>(v.source);
    } else {
      const float* bias = static_cast<const float*>(v.source);
      uint8_t* seen = buffer(seen_scratch[slot], s.kv_len);
      const float limit = c_.masked_at;
      int biased = 0;
      for (int64_t j = v.low; j < v.high; ++j) {
        uint8_t yes = !(bias[j] <= limit);
        seen[j] = yes;
        biased |= yes & (bias[j] != 0.0f);
      }
      v.seen = seen;
      v.biased = biased != 0;
    }
    while (v.end > v.low && !v.seen[v.end - 1]) --v.end;
    int64_t count = 0;
    for (int64_t j = v.low; j < v.end; ++j) count += v.seen[j];
    v.count = count;
    return v;
  }

  /// Whether the shorter list of keys is the beginning of the longer one.
  static bool nested(const Visible& a, const Visible& b) {
    if (a.count == 0 || b.count == 0) return true;
    if (a.low != b.low) return false;
    if (!a.seen || a.seen == b.seen) return true;
    int64_t n = (a.end < b.end ? a.end : b.end) - a.low;
    return std::memcmp(a.seen + a.low, b.seen + a.low, static_cast<size_t>(n)) == 0;
  }

  /// Calls f(task) for runs of rows [begin, end) of one KV head; row r is position r / group.
  template <class F>
  void each_task(const Sequence& s, int64_t b, int64_t kv_head, int64_t begin, int64_t end,
                 int limit, F&& f) const {
    for (int64_t r = begin; r < end;) {
      AttentionTask t;
      t.rows = 0;
      int slot = 0;
      Visible longest, row;
      bool biased = false;
      for (; r < end && t.rows < limit; ++r) {
        int64_t head = kv_head * group_ + r % group_, position = r / group_;
        bool first = t.rows == 0;
        row = visible(s, b, head, position, slot, first ? nullptr : &row);
        if (!first && !nested(longest, row)) break;
        if (first || row.count > longest.count) {
          if (row.seen && row.seen == seen_scratch[slot].data()) slot ^= 1;  // keep the longest
          longest = row;
        }
        biased |= row.biased;
        add_row(t, s, b, head, position, row.count);
      }
      finish_task(t, s, kv_head, longest, biased);
      f(t);
    }
  }

 private:
  void add_row(AttentionTask& t, const Sequence& s, int64_t b, int64_t head, int64_t row,
               int64_t count) const {
    int i = t.rows++;
    t.q[i] = s.q + size_ * (head * c_.qs.head + row * c_.qs.row);
    t.out[i] = s.out + size_ * (head * c_.os.head + row * c_.os.row);
    t.lse[i] = s.lse ? s.lse + head * c_.ls.head + row * c_.ls.row : nullptr;
    t.count[i] = count;
    t.sink[i] = c_.sinks ? c_.sinks + head : nullptr;
    t.bias[i] = reinterpret_cast<const float*>(c_.mask) + b * c_.ms.batch + head * c_.ms.head + row * c_.ms.row;
  }

  void finish_task(AttentionTask& t, const Sequence& s, int64_t kv_head, const Visible& keys,
                   bool biased) const {
    t.d = c_.d;
    t.dv = c_.dv;
    t.scale = c_.scale;
    t.cap = c_.cap;
    t.wide = c_.wide;
    t.check = c_.check;
    if (!biased) t.bias[0] = nullptr;
    t.position = nullptr;
    t.first = keys.low;
    if (keys.seen && keys.count > 0) {
      while (!keys.seen[t.first]) ++t.first;
      if (keys.end - t.first != keys.count) {  // there are holes: name each key
        int32_t* list = buffer(position_scratch, keys.count);
        int64_t n = 0;
        for (int64_t j = t.first; j < keys.end; ++j)
          if (keys.seen[j]) list[n++] = static_cast<int32_t>(j);
        t.position = list;
      }
    }
    t.k = view(s.k + size_ * kv_head * c_.ks.head, c_.ks, s, t, keys.count, k_table_scratch);
    t.v = view(s.v + size_ * kv_head * c_.vs.head, c_.vs, s, t, keys.count, v_table_scratch);
  }

  KeyView view(const char* base, const Strides& strides, const Sequence& s, const AttentionTask& t,
               int64_t count, std::vector<int64_t>& storage) const {
    if (!t.position && !s.pages) return {base + size_ * t.first * strides.row, strides.row, nullptr};
    int64_t* table = buffer(storage, count);
    for (int64_t i = 0; i < count; ++i) {
      int64_t at = t.position ? t.position[i] : t.first + i;
      table[i] = s.pages ? s.pages[at / c_.page] * strides.batch + at % c_.page * strides.row
                         : at * strides.row;
    }
    return {base, 0, table};
  }

  const AttentionKernels& kernels_;
  const AttentionCall& c_;
  int64_t group_, size_;
};

// ---- faults, where a test asks for them ----

/// Whether a leaf is to be computed at all.
bool arranged(const AttentionTask& t, int64_t leaf) { return leaf != 1 || t.check->fault != Fault::stale; }

/// Leaves between their store and the fold.
void disturb(const AttentionTask& t, float* partials, int64_t leaves) {
  const int64_t size = partial_size(t), values = values_size(t);
  const Fault fault = t.check->fault;
  if (fault == Fault::partial_bit) {
    uint32_t bits;
    float* at = partials + values - 1;  // the last o of the first leaf
    std::memcpy(&bits, at, 4);
    bits ^= 1u << 12;
    std::memcpy(at, &bits, 4);
  }
  if (fault == Fault::partial_zero) std::memset(partials, 0, static_cast<size_t>(values) * sizeof(float));
  if (fault == Fault::misplaced && leaves > 1)
    std::memcpy(partials, partials + size, static_cast<size_t>(size) * sizeof(float));
}

void run_task(const AttentionKernels& kernels, int dtype, const AttentionTask& t) {
  if (t.rows > kernels.few_rows) {
    kernels.block(dtype, t, buffer(kernel_scratch, kernels.block_scratch(t.d, t.dv)));
    return;
  }
  int64_t longest = 0;
  for (int r = 0; r < t.rows; ++r) longest = t.count[r] > longest ? t.count[r] : longest;
  int64_t leaves = (longest + kLeaf - 1) / kLeaf, size = partial_size(t);
  float* partials = buffer(partial_scratch, leaves * size);
  float* scratch = buffer(kernel_scratch, kernels.few_scratch(t.d, t.dv));
  for (int64_t leaf = 0; leaf < leaves; ++leaf)
    if (!t.check || arranged(t, leaf))
      kernels.few(dtype, t, leaf, partials + leaf * size, scratch);
  if (t.check) disturb(t, partials, leaves);
  kernels.finish(dtype, t, partials);
}

// Decode: all rows of a KV head see the same keys, so a task a leaf; the last one to arrive folds.
// Who folds varies, the order of the fold does not.
void run_leaves(const Driver& driver, const AttentionKernels& kernels, const AttentionCall& call,
                int64_t max_leaves, int threads) {
  const int64_t group = driver.group(), units = call.batch * call.kv_heads;
  const int64_t rows = group * call.q_len, size = rows * (call.dv + 2) + (call.check ? rows + 2 : 0);
  const int64_t last = max_leaves - (call.check && call.check->fault == Fault::early ? 2 : 1);
  std::unique_ptr<float[]> partials(new float[static_cast<size_t>(units * max_leaves * size)]);
  std::unique_ptr<std::atomic<int64_t>[]> done(new std::atomic<int64_t>[static_cast<size_t>(units)]());
  parallel_for(units * max_leaves, threads, [&](int64_t i) {
    if (i == 0 && call.check && call.check->fault == Fault::lost_tile) return;
    int64_t unit = i / max_leaves, leaf = i % max_leaves, b = unit / call.kv_heads;
    Sequence s = driver.sequence(b);
    driver.each_task(s, b, unit % call.kv_heads, 0, rows, static_cast<int>(rows), [&](AttentionTask& t) {
      float* own = partials.get() + unit * max_leaves * size;
      int64_t longest = 0;
      for (int r = 0; r < t.rows; ++r) longest = t.count[r] > longest ? t.count[r] : longest;
      if (leaf * kLeaf < longest && (!t.check || arranged(t, leaf)))
        kernels.few(call.dtype, t, leaf, own + leaf * size,
                    buffer(kernel_scratch, kernels.few_scratch(t.d, t.dv)));
      if (done[static_cast<size_t>(unit)].fetch_add(1, std::memory_order_acq_rel) == last) {
        if (t.check) disturb(t, own, (longest + kLeaf - 1) / kLeaf);
        kernels.finish(call.dtype, t, own);
      }
    });
  });
}

}  // namespace

int64_t attention(const AttentionKernels& kernels, const AttentionCall& call) {
  if (call.batch == 0 || call.heads == 0 || call.kv_heads == 0) return 0;
  Driver driver(kernels, call);
  int64_t most_rows = 0, longest = 0, all_rows = 0;
  double work = 0;
  for (int64_t b = 0; b < call.batch; ++b) {
    Sequence s = driver.sequence(b);
    most_rows = s.q_len > most_rows ? s.q_len : most_rows;
    longest = s.kv_len > longest ? s.kv_len : longest;
    all_rows += s.q_len * call.heads;
    double keys = static_cast<double>(s.kv_len) * (call.causal && s.q_len == s.kv_len ? 0.5 : 1.0);
    work += static_cast<double>(s.q_len) * static_cast<double>(call.heads) * keys;
  }
  work *= static_cast<double>(call.d + call.dv);
  most_rows *= driver.group();
  if (most_rows == 0) return 0;
  const int threads = threads_for(static_cast<int64_t>(work < 1e15 ? work : 1e15), 200000);

  const int64_t units = call.batch * call.kv_heads;
  const bool one_task = call.q_len == 1 && !call.cu_q && (call.mask_kind == MaskKind::none || call.ms.head == 0 || driver.group() == 1);
  if (one_task && threads > 1 && most_rows <= kernels.few_rows && longest > kLeaf) {
    run_leaves(driver, kernels, call, (longest + kLeaf - 1) / kLeaf, threads);
    return call.check ? call.check->result(all_rows) : 0;
  }
  const int64_t block = most_rows <= kernels.few_rows ? kernels.few_rows : kernels.block_rows;
  const int64_t blocks = (most_rows + block - 1) / block;
  // Late blocks of a causal prefill are the longest: they start first.
  parallel_for(blocks * units, threads, [&](int64_t i) {
    if (i == 0 && call.check && call.check->fault == Fault::lost_tile) return;
    int64_t begin = (blocks - 1 - i / units) * block, unit = i % units, b = unit / call.kv_heads;
    Sequence s = driver.sequence(b);
    int64_t rows = s.q_len * driver.group(), end = begin + block < rows ? begin + block : rows;
    driver.each_task(s, b, unit % call.kv_heads, begin, end, static_cast<int>(block),
                     [&](AttentionTask& t) { run_task(kernels, call.dtype, t); });
  });
  return call.check ? call.check->result(all_rows) : 0;
}

}  // namespace samebits
