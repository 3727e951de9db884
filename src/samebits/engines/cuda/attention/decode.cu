// Decode attention for sm_90a: one query position a sequence, all query heads of a KV head together.
//
// A block walks a run of leaves of one (sequence, KV head). A producer warp keeps tiles of 64 keys in
// flight, one warpgroup multiplies: while the softmax of a step runs, the tensor core has the values
// of the step before. The query heads of the group are the first rows of a 64-row operand; padding
// it costs nothing, because decoding waits for memory. Every leaf's accumulators go to a workspace,
// and `attention_fold`, started as a dependent launch, adds them in ascending order. So a lone long
// sequence keeps the whole chip busy (Flash-Decoding, Dao et al. 2023), with leaf edges at absolute
// positions.
//
// The arithmetic is the attention contract of sm_90 (contract/attention.py), as in prefill.cu.
//
// Compile-time parameters (-D): HEAD_DIM 64 or 128, LEAF a multiple of 64, BF16 1 or 0 (fp16), BOX
// keys of one bulk copy (64, or a page's if that is shorter).
#include "number.cuh"

// d[64, 64] = a[64, 16] b[64, 16]^T (+ d), both from shared memory, k contiguous.
DEVICE void wgmma_scores(float (&d)[32], u64 a, u64 b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " N32
      ", %32, %33, add, 1, 1, 0, 0;\n}"
      : F32(d)
      : "l"(a), "l"(b), "r"((u32)add));
}

constexpr int D = HEAD_DIM, KEYS = 64, ROWS = 64, STAGES = 3, STEPS = LEAF / KEYS;
constexpr int ACC = D / 2;                               // accumulator registers of a thread
constexpr u32 CHUNK = 128 * KEYS, TILE = CHUNK * (D / 64);  // bytes of 64 columns, and of a tile
constexpr u32 Q_AT = 0, K_AT = TILE, V_AT = K_AT + STAGES * TILE, ONES_AT = V_AT + STAGES * TILE;
constexpr u32 BARRIERS_AT = ONES_AT + 256;
// Numbers of the mbarriers, and of the named barrier of the warpgroup.
constexpr int K_FULL = 0, K_EMPTY = STAGES, V_FULL = 2 * STAGES, V_EMPTY = 3 * STAGES, GROUP = 1;

DEVICE float quad_max(float x) {
  x = max_nan(x, __shfl_xor_sync(~0u, x, 1));
  return max_nan(x, __shfl_xor_sync(~0u, x, 2));
}

// How many keys a sequence's row sees, a window apart: as many for all, or by `counts`.
struct Lengths {
  const int* counts;  // [batch], or null
  int added, most;
  DEVICE int of(int batch) const { return counts ? max(0, min(counts[batch] + added, most)) : most; }
};

// Leaves of KV head `head` of a sequence that this block walks, and the keys that are seen.
struct Run {
  int batch, head, first, last, begin, end;
};

DEVICE Run find_run(const Lengths& lengths, int heads, int leaves, int run, int window) {
  const int runs = (leaves + run - 1) / run, i = blockIdx.x;
  Run r;
  r.batch = i / (runs * heads);
  r.head = i / runs % heads;
  r.end = lengths.of(r.batch);
  r.begin = window > 0 ? max(0, r.end - window) : 0;
  r.first = max(i % runs * run, r.begin / LEAF);
  r.last = min(i % runs * run + run, (r.end + LEAF - 1) / LEAF);
  return r;
}

// Tiles of the run into the ring, K and V in turns. `pages`: numbers of a paged cache, or null.
DEVICE void produce(const Run& r, int from, int stop, const TensorMap* k, const TensorMap* v,
                    const int* pages, int page, u32 smem, u32 bars) {
  for (int j = from; j < stop; ++j) {
    const int stage = (j - from) % STAGES;
    const u32 parity = ((j - from) / STAGES & 1) ^ 1;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const u32 full = bars + 8 * ((side ? V_FULL : K_FULL) + stage);
      const u32 to = smem + (side ? V_AT : K_AT) + stage * TILE;
      barrier_wait(bars + 8 * ((side ? V_EMPTY : K_EMPTY) + stage), parity);
      barrier_expect(full, TILE);
#pragma unroll
      for (int piece = 0; piece < KEYS / BOX; ++piece) {
        const int key = j * KEYS + piece * BOX;
        // Past the end any page will do: no row sees its keys.
        const int b = !pages ? r.batch : key < r.end ? pages[key / page] : 0;
#pragma unroll
        for (int c = 0; c < D / 64; ++c)
          tensor_copy(to + c * CHUNK + piece * BOX * 128, side ? v : k, full, 64 * c,
                      pages ? key % page : key, r.head, b);
      }
    }
  }
}

extern "C" __global__ void __maxnreg__(200)
    attention_decode(TENSOR(k), TENSOR(v), const u16* q, long long q_stride_b, long long q_stride_h,
                     const int* counts, int added, int most, const int* pages, int pages_stride,
                     int page, float* partial, float2* sums, int group, int leaves, int run, int window,
                     float factor) {
  extern __shared__ __align__(1024) unsigned char base[];
  const u32 smem = shared_address(base), bars = smem + BARRIERS_AT;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, heads = k_h;
  asm volatile("griddepcontrol.launch_dependents;");
  const Run r = find_run({counts, added, most}, heads, leaves, run, window);
  if (r.first >= r.last) return;
  const int from = max(r.first * STEPS, r.begin / KEYS);
  const int stop = (min(r.end, r.last * LEAF) + KEYS - 1) / KEYS;
  if (tid == 0) {
    for (int i = 0; i < 4 * STAGES; ++i)
      barrier_init(bars + 8 * i, (i >= K_EMPTY && i < V_FULL) || i >= V_EMPTY ? 4 : 1);
    fence_barrier_init();
  }
  __syncthreads();
  if (warp == 4) {
    if (lane == 0)
      produce(r, from, stop, &k, &v, pages ? pages + (long long)r.batch * pages_stride : nullptr,
              page, smem, bars);
    return;
  }
  // The query rows as the tensor core reads them (128-byte swizzle); rows past the group are zero.
  for (int i = tid; i < ROWS * D / 8; i += 128) {
    const int row = i / (D / 8), c = i % (D / 8);
    uint4 x = {0, 0, 0, 0};
    if (row < group)
      x = *(const uint4*)(q + r.batch * q_stride_b + (long long)(r.head * group + row) * q_stride_h +
                          c * 8);
    *(uint4*)(base + Q_AT + c / 8 * CHUNK + row * 128 + ((c ^ row) & 7) * 16) = x;
  }
  if (tid < 64) ((u32*)(base + ONES_AT))[tid] = ONES;
  fence_async();
  group_sync(GROUP, 128);

  const Matrix mq = swizzled_matrix(smem + Q_AT), mk = swizzled_matrix(smem + K_AT);
  const Matrix mv = swizzled_matrix(smem + V_AT, CHUNK);
  const Matrix ones = plain_matrix(smem + ONES_AT, 128, 128);
  // A thread holds rows `row` and row + 8, of them columns `column` and column + 1 of every eight.
  const int row = 16 * warp + lane / 4, column = lane % 4 * 2;
  float s[32], o[ACC], l[4], m[2] = {NOTHING, NOTHING};
  u32 p[16];
#pragma unroll
  for (int i = 0; i < ACC; ++i) o[i] = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) p[i] = 0;  // rows past the group keep this
  l[0] = l[1] = l[2] = l[3] = 0;

  const auto release = [&](int bar) {
    if (lane == 0) barrier_arrive(bars + 8 * bar);
  };
  const auto scores = [&](int stage) {
    touch(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const u32 at = i / 4 * CHUNK + i % 4 * 32;
      wgmma_scores(s, mq.at(at), mk.at(stage * TILE + at), i > 0);
    }
    wgmma_commit();
  };
  // What a leaf came to, to the workspace.
  const auto keep = [&](int leaf, const float (&top)[2]) {
    const long long at = ((long long)(r.batch * heads + r.head) * leaves + leaf) * group;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row + 8 * h >= group) continue;
      float* to = partial + (at + row + 8 * h) * D + column;
#pragma unroll
      for (int i = 0; i < ACC / 4; ++i)
        *(float2*)(to + 8 * i) = make_float2(o[4 * i + 2 * h], o[4 * i + 2 * h + 1]);
      if (lane % 4 == 0) sums[at + row + 8 * h] = make_float2(top[h], l[2 * h]);
    }
  };
  // Step j of 64 keys; `more`: another one follows, its scores are to be under way after this.
  const auto step = [&](int j, bool more) {
    const int n = j - from, stage = n % STAGES;
    const bool fresh = j % STEPS == 0 || n == 0;
    const bool partly = r.end - j * KEYS < KEYS || r.begin > j * KEYS;
    const float before[2] = {m[0], m[1]};
    float shrink[2] = {1.0f, 1.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (16 * warp + 8 * h >= group) continue;
      if (partly) {
        const int low = r.begin - j * KEYS - column, high = r.end - j * KEYS - column;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int key = i / 2 * 8 + (i & 1);
          if (key < low || key >= high) s[i / 2 * 4 + 2 * h + (i & 1)] = NOTHING;
        }
      }
      float top = max_nan(s[2 * h], s[2 * h + 1]), other = max_nan(s[4 + 2 * h], s[5 + 2 * h]);
#pragma unroll
      for (int i = 2; i < 8; i += 2) {
        top = max_nan(top, max_nan(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
        other = max_nan(other, max_nan(s[4 * i + 4 + 2 * h], s[4 * i + 5 + 2 * h]));
      }
      const float held = fresh ? NOTHING : m[h];
      m[h] = max_nan(held, ceilf(quad_max(max_nan(top, other)) * factor));
      shrink[h] = m[h] == held ? 1.0f : power(held - m[h]);
      const float origin = m[h] == NOTHING ? 0.0f : m[h];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        s[4 * i + 2 * h] = exp2_of(s[4 * i + 2 * h], factor, origin);
        s[4 * i + 2 * h + 1] = exp2_of(s[4 * i + 2 * h + 1], factor, origin);
      }
    }
    wgmma_wait<0>();  // the values of the step before
    touch(o);
    touch(l);
    if (n > 0) {
      release(V_EMPTY + (n - 1) % STAGES);
      if (fresh) {
        keep(j / STEPS - 1, before);
      } else if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < ACC; ++i) o[i] *= shrink[i / 2 & 1];
#pragma unroll
        for (int i = 0; i < 4; ++i) l[i] *= shrink[i / 2 & 1];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (16 * warp + 8 * h >= group) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) p[2 * i + h] = pack(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]);
    }
    touch(p);
    if (more) {
      const int next = (n + 1) % STAGES;
      barrier_wait(bars + 8 * (K_FULL + next), (n + 1) / STAGES & 1);
      scores(next);
    }
    barrier_wait(bars + 8 * (V_FULL + stage), n / STAGES & 1);
    if (partly) {
      // Values of keys that no row sees may be anything; the tensor core must meet zeros.
      for (int i = tid; i < KEYS * D / 8; i += 128) {
        const int key = i % KEYS, at = j * KEYS + key, c = i / KEYS;
        if (at < r.begin || at >= r.end)
          *(uint4*)(base + V_AT + stage * TILE + c / 8 * CHUNK + key * 128 + c % 8 * 16) = {0, 0, 0, 0};
      }
      fence_async();
      group_sync(GROUP, 128);
    }
    touch(o);
    touch(l);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_pv(o, p + 4 * i, mv.at(stage * TILE + i * 2048), !fresh || i > 0);
      wgmma_pv(l, p + 4 * i, ones.at(0), !fresh || i > 0);
    }
    wgmma_commit();
    if (more) {
      wgmma_wait<1>();
      touch(s);
      release(K_EMPTY + (n + 1) % STAGES);
    }
  };

  barrier_wait(bars + 8 * K_FULL, 0);
  scores(0);
  wgmma_wait<0>();
  touch(s);
  release(K_EMPTY);
  for (int j = from; j + 1 < stop; ++j) step(j, true);
  step(stop - 1, false);
  wgmma_wait<0>();
  touch(o);
  touch(l);
  keep((stop - 1) / STEPS, m);
}

// Factors of the leaves so far and of the next one; -0 makes a side that has seen no key nothing.
DEVICE float2 fold_factors(float& total, float leaf) {
  const float top = max_nan(total, leaf);
  const float now = leaf == NOTHING ? -0.0f : power(leaf - top);
  const float old = total == NOTHING && leaf != NOTHING ? -0.0f
                    : total == top                      ? 1.0f
                                                        : power(total - top);
  total = top;
  return make_float2(old, now);
}

// 32 columns of one row: its leaves' partial results folded in ascending order, then o / l.
constexpr int BATCH = 128;  // leaves in flight
extern "C" __global__ void __launch_bounds__(128)
    attention_fold(u16* out, long long out_stride_b, long long out_stride_h, const int* counts,
                   int added, int most, const float* partial, const float2* sums, int heads,
                   int group, int leaves, int window) {
  __shared__ float tile[BATCH][32], l[BATCH];
  __shared__ float2 by[BATCH];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int piece = blockIdx.x % (D / 32), head = blockIdx.x / (D / 32) % (heads * group);
  const int batch = blockIdx.x / (D / 32) / (heads * group);
  const int end = Lengths{counts, added, most}.of(batch), last = (end + LEAF - 1) / LEAF;
  const int first = window > 0 ? max(0, end - window) / LEAF : 0;
  const long long at = (long long)(batch * heads + head / group) * leaves * group + head % group;
  const float* from = partial + at * D + piece * 32 + lane;
  float x[BATCH / 4];
  float2 a[BATCH / 32];
  const auto load = [&](int start) {
#pragma unroll
    for (int i = 0; i < BATCH / 4; ++i) {
      const int leaf = start + 4 * i + warp;
      x[i] = leaf < last ? __ldcg(from + (long long)leaf * group * D) : 0.0f;
    }
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < BATCH / 32; ++i) {
        const int leaf = start + BATCH / 32 * lane + i;
        a[i] = leaf < last ? __ldcg(sums + at + (long long)leaf * group) : make_float2(NOTHING, 0);
      }
    }
  };
  asm volatile("griddepcontrol.wait;" ::: "memory");
  float acc = -0.0f, sum = -0.0f, top = NOTHING;
  load(first);
  for (int start = first; start < last; start += BATCH) {
    if (warp == 0) {  // a running maximum rounds nothing, so it may be a scan
      float most = a[0].x;
#pragma unroll
      for (int i = 1; i < BATCH / 32; ++i) most = max_nan(most, a[i].x);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(~0u, most, d);
        if (lane >= d) most = max_nan(most, other);
      }
      float before = __shfl_up_sync(~0u, most, 1);
      before = lane ? max_nan(top, before) : top;
#pragma unroll
      for (int i = 0; i < BATCH / 32; ++i) {
        by[BATCH / 32 * lane + i] = fold_factors(before, a[i].x);
        l[BATCH / 32 * lane + i] = a[i].y;
      }
      top = max_nan(top, __shfl_sync(~0u, most, 31));
    }
#pragma unroll
    for (int i = 0; i < BATCH / 4; ++i) tile[4 * i + warp][lane] = x[i];
    __syncthreads();
    load(start + BATCH);  // on its way while these are added
    if (warp == 0) {
      const int count = min(BATCH, last - start);
#pragma unroll 16
      for (int i = 0; i < count; ++i) {
        acc = __fmaf_rn(acc, by[i].x, tile[i][lane] * by[i].y);
        sum = __fmaf_rn(sum, by[i].x, l[i] * by[i].y);
      }
    }
    __syncthreads();
  }
  if (warp != 0) return;
  // A NaN or an infinite maximum makes the row NaN; a row that has seen no key is +0.
  if (top != top || top == -NOTHING) sum = __int_as_float(0x7FFFFFFF);
  const float y = top == NOTHING ? 0.0f : __fdiv_rn(acc, sum);
  const float right = __shfl_down_sync(~0u, y, 1);
  if (lane % 2 == 0)
    *(u32*)(out + batch * out_stride_b + head * out_stride_h + piece * 32 + lane) = pack(y, right);
}
