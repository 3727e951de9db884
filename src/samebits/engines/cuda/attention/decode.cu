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
// keys of one bulk copy (64, or a page's if that is shorter), CHECK (path.cuh).
#include "leaves.cuh"
#include "path.cuh"

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
constexpr int SLICE = 32;  // columns of a fold's block: partial is [batch, heads, D / SLICE, leaves, SLICE]
// With CHECK a leaf of a row has a seal: its word in the path, the sum of the views of its maximum and
// denominator, and those of its slices' numbers. seals: [batch, heads, SEAL, leaves].
constexpr int SEAL = 2 + D / SLICE;
// Numbers of the mbarriers, and of the named barrier of the warpgroup.
constexpr int K_FULL = 0, K_EMPTY = STAGES, V_FULL = 2 * STAGES, V_EMPTY = 3 * STAGES, GROUP = 1;

// Leaves of KV head `head` of a sequence that this block walks, and the keys that are seen.
struct Run {
  int batch, head, first, last, begin, end;
};

// `runs` blocks share the leaves that a row sees: how many those are, only the device knows.
DEVICE Run find_run(const Lengths& lengths, int heads, int runs, int window) {
  const int i = blockIdx.x;
  Run r;
  r.batch = i / (runs * heads);
  r.head = i / runs % heads;
  r.end = lengths.of(r.batch);
  r.begin = window > 0 ? max(0, r.end - window) : 0;
  const int first = r.begin / LEAF, stop = (r.end + LEAF - 1) / LEAF, run = (stop - first + runs - 1) / runs;
  r.first = first + i % runs * run;
  r.last = min(r.first + run, stop);
  return r;
}

// Tiles of the run into the ring, K and V in turns. `pages`: numbers of a paged cache, or null.
DEVICE void produce(const Run& r, int from, int stop, const TensorMap* k, const TensorMap* v,
                    const int* pages, int page, u32 smem, u32 bars) {
  const u64 policy = once();  // and so the workspace stays in the L2
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
                      pages ? key % page : key, r.head, b, policy);
      }
    }
  }
}

extern "C" __global__ void __maxnreg__(200)
    attention_decode(TENSOR(k), TENSOR(v), const u16* q, long long q_stride_b, long long q_stride_h,
                     const int* counts, int added, int most, const int* pages, int pages_stride,
                     int page, float* partial, float2* sums, int group, int leaves, int runs, int window,
                     float factor SEALS) {
  extern __shared__ __align__(1024) unsigned char base[];
  const u32 smem = shared_address(base), bars = smem + BARRIERS_AT;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, heads = k_h;
  if (tid == 0) {
    for (int i = 0; i < 4 * STAGES; ++i)
      barrier_init(bars + 8 * i, (i >= K_EMPTY && i < V_FULL) || i >= V_EMPTY ? 4 : 1);
    fence_barrier_init();
  }
  __syncthreads();
  await_predecessor();
  admit_successor();  // not earlier: the one after it would come too, and crowd some processors
  const Run r = find_run({counts, added, most}, heads, runs, window);
  if (r.first >= r.last) return;
  const int from = max(r.first * STEPS, r.begin / KEYS);
  const int stop = (min(r.end, r.last * LEAF) + KEYS - 1) / KEYS;
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
  int opened = from, taken_steps = 0;  // of the leaf at hand, with CHECK: its first step, and how many were taken
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
    const int first = (r.batch * heads + r.head) * group;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const long long at = (long long)(first + row + 8 * h) * leaves;
      const bool none = top[h] == NOTHING;  // every score is -Inf: no NaN may be left of 0 * Inf
#if CHECK
      if (16 * warp + 8 * h >= group) continue;
      const bool first_of_four = lane % 4 == 0 && row + 8 * h < group;
      long long* seal = seals + at * SEAL + leaf;
#pragma unroll
      for (int slice = 0; slice < D / SLICE; ++slice) {
        long long sum = 0;
#pragma unroll
        for (int i = 0; i < SLICE / 8; ++i) {  // a factor for eight columns
          const int from = slice * (SLICE / 2) + 4 * i + 2 * h;
          sum += taken(o[from], i) + taken(o[from + 1], i);
        }
        if (none) sum = 0;
        sum += __shfl_xor_sync(~0u, sum, 1);  // all lanes take part
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (first_of_four) seal[(2 + slice) * leaves] = sum;
      }
      if (first_of_four) {
        seal[0] = path_leaf(max(r.begin, opened * KEYS), min(r.end, (opened + taken_steps) * KEYS));
        seal[leaves] = view(top[h]) + view(l[2 * h]);
      }
#endif
      if (row + 8 * h >= group) continue;
      float* to = partial + at * D + leaf * SLICE + column;
#pragma unroll
      for (int i = 0; i < ACC / 4; ++i) {
        const float x = none ? 0.0f : o[4 * i + 2 * h], y = none ? 0.0f : o[4 * i + 2 * h + 1];
        *(float2*)(to + (long long)(8 * i / SLICE) * leaves * SLICE + 8 * i % SLICE) = make_float2(x, y);
      }
      if (lane % 4 == 0) sums[at + leaf] = make_float2(top[h], l[2 * h]);
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
        opened = j, taken_steps = 0;
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
    ++taken_steps;
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

// SLICE columns of one row: its leaves' partial results folded in ascending order, then o / l. Leaves
// come in blocks of BLOCK by bulk copies, the next one while one is added. Warp 0 adds values, warp 1
// denominators, and that one finds the factors of the block after (a running maximum rounds nothing,
// so it may be a scan).
template <int BLOCK>
DEVICE void fold(u16* out, long long out_stride_b, long long out_stride_h, const int* counts, int added,
                 int most, const float* partial, const float2* sums, int heads, int group, int leaves,
                 int window SEALS) {
  constexpr int EACH = BLOCK / 32;  // leaves of a lane
  __shared__ __align__(128) float tile[2][BLOCK][SLICE];
  __shared__ float2 by[2][BLOCK];
  __shared__ float2 total;  // denominator and maximum
  __shared__ u64 full[2];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int slice = blockIdx.x % (D / SLICE), row = blockIdx.x / (D / SLICE);
  const int head = row % (heads * group), batch = row / (heads * group);
  const u32 bars = shared_address(full);
  if (threadIdx.x == 0) {
    barrier_init(bars, 1);
    barrier_init(bars + 8, 1);
    fence_barrier_init();
  }
#if CHECK
  const Ticket agreed = read_ticket(ticket);
#endif
  await_predecessor();
  admit_successor();  // not earlier: the one after it would come too, and crowd some processors
  const int end = Lengths{counts, added, most}.of(batch), last = (end + LEAF - 1) / LEAF;
  const int first = window > 0 ? max(0, end - window) / LEAF : 0;
  partial += ((long long)row * (D / SLICE) + slice) * leaves * SLICE;
  sums += (long long)row * leaves;
#if CHECK
  seals += (long long)row * leaves * SEAL;
  // Numbers that are folded, and those that were sealed: a lane's share. And how many leaves were taken.
  long long folded = 0, off = 0;
  int nth = 0;
  bool sound = true;
  const int begin = window > 0 ? max(0, end - window) : 0;
  // Seals of this lane's leaves of a block: for warp 0 of its columns, for warp 1 of maximum and denominator.
  long long sealed[EACH], words[EACH];
  const auto load_seals = [&](int from) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int leaf = from + EACH * lane + i;
      if (leaf >= last) continue;
      sealed[i] = __ldcg(seals + (warp ? 1 : 2 + slice) * leaves + leaf);
      if (warp) words[i] = __ldcg(seals + leaf);
    }
  };
#endif
  const auto fetch = [&](int from) {
    const u32 bytes = min(BLOCK, last - from) * SLICE * 4, at = (from - first) / BLOCK & 1;
    if (from >= last) return;
    barrier_expect(bars + 8 * at, bytes);
    bulk_copy(shared_address(tile[at]), partial + from * SLICE, bytes, bars + 8 * at);
  };
  if (threadIdx.x == 0) {
    fetch(first);
    fetch(first + BLOCK);
  }
  float acc = -0.0f, sum = -0.0f, top = NOTHING;
  float2 next[EACH];  // maximum and denominator of this lane's leaves of the block after
  const auto load = [&](int from) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int leaf = from + EACH * lane + i;
      next[i] = leaf < last ? __ldcg(sums + leaf) : make_float2(NOTHING, 0);
    }
  };
  const auto factors = [&](float2* to) {
    float most = next[0].x;
#pragma unroll
    for (int i = 1; i < EACH; ++i) most = max_nan(most, next[i].x);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const float other = __shfl_up_sync(~0u, most, d);
      if (lane >= d) most = max_nan(most, other);
    }
    float before = __shfl_up_sync(~0u, most, 1);
    before = lane ? max_nan(top, before) : top;
#pragma unroll
    for (int i = 0; i < EACH; ++i) to[EACH * lane + i] = fold_factors(before, next[i].x);
    top = max_nan(top, __shfl_sync(~0u, most, 31));
  };
  if (warp == 1) load(first);
#if CHECK
  load_seals(first);
#endif
  if (warp == 1) factors(by[0]);
  __syncthreads();
  for (int from = first, n = 0; from < last; from += BLOCK, ++n) {
    const int count = min(BLOCK, last - from);
    const float2* f = by[n & 1];
    if (warp == 0) {
      barrier_wait(bars + 8 * (n & 1), n / 2 & 1);
#pragma unroll 16
      for (int i = 0; i < count; ++i) {
        const float x = tile[n & 1][i][lane];
        acc = __fmaf_rn(acc, f[i].x, x * f[i].y);
#if CHECK
        folded += taken(x, nth++);
#endif
      }
#if CHECK
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int leaf = from + EACH * lane + i;
        if (leaf >= last) continue;
        off -= taken(sealed[i], leaf - first);
        seals[(2 + slice) * leaves + leaf] = ~sealed[i];  // broken: nothing is folded twice
      }
      load_seals(from + BLOCK);
#endif
      __syncwarp();
      if (lane == 0) fetch(from + 2 * BLOCK);
    } else {
      float l[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i) l[i] = next[i].y;
#if CHECK
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int leaf = from + EACH * lane + i, edge = leaf * agreed.length;
        if (leaf >= last) continue;
        off -= taken(sealed[i] - view(next[i].x), leaf - first);
        sound &= (u32)words[i] == path_leaf(max(begin, edge), min(end, edge + agreed.length));
      }
      load_seals(from + BLOCK);
#endif
      load(from + BLOCK);
#pragma unroll 2
      for (int i = 0; i < count; i += EACH) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
          const float x = __shfl_sync(~0u, l[j], i / EACH);
          if (i + j >= count) continue;
          sum = __fmaf_rn(sum, f[i + j].x, x * f[i + j].y);
#if CHECK
          folded += taken(x, nth++);
#endif
        }
      }
      factors(by[~n & 1]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 32) total = make_float2(sum, top);
  __syncthreads();
  if (warp == 0) {
    const float y = quotient(acc, total.x, total.y), right = __shfl_down_sync(~0u, y, 1);
    if (lane % 2 == 0)
      *(u32*)(out + batch * out_stride_b + head * out_stride_h + slice * SLICE + lane) = pack(y, right);
  }
#if CHECK
  // The contract's leaves: as many as have edges between the first key that is seen and the last.
  const int length = agreed.length;
  sound &= begin - first * length < length && begin >= first * length && end <= last * length &&
           end > last * length - length && nth == last - first;
  // A lane of warp 0 has a column; each one of warp 1 has all denominators.
  off += warp ? (lane ? 0 : folded) : taken(folded, lane / 8);
  sound = __all_sync(~0u, sound) && all_gone(off);
  if (lane == 0) agreed.judge(sound);
#endif
}

#define FOLD(name, BLOCK)                                                                              \
  extern "C" __global__ void __launch_bounds__(64)                                                     \
      name(u16* out, long long out_stride_b, long long out_stride_h, const int* counts, int added,     \
           int most, const float* partial, const float2* sums, int heads, int group, int leaves,       \
           int window SEALS) {                                                                         \
    fold<BLOCK>(out, out_stride_b, out_stride_h, counts, added, most, partial, sums, heads, group,     \
                leaves, window HAND_SEALS);                                                            \
  }
FOLD(attention_fold, 32)
FOLD(attention_fold_long, 128)
