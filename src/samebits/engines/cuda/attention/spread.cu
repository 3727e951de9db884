// Decode attention for sm_90a where leaves are few. A block a leaf would leave most of the chip idle and
// take the time of one leaf, step after step; but only the chain over a leaf's keys is serial, for each
// row and column by itself. So a cluster of blocks takes a (sequence, KV head), SLICES of them a leaf.
// Each computes the scores of its share of the keys, gives them to the others through distributed shared
// memory, and then computes its share of the columns of the values; the blocks of the first leaf fold
// what those of the others send. One launch, no workspace.
//
// The arithmetic is the attention contract of sm_90 (contract/attention.py), as in decode.cu. The
// products are `mma`: it has the block of 16 of `wgmma`, so the same bits.
//
// Compile-time parameters (-D): HEAD_DIM 64 or 128, LEAF a multiple of 64, BF16 1 or 0 (fp16), SLICES 2 or
// 4, LEAVES that a row can see, CHECK (path.cuh).
#include "leaves.cuh"
#include "path.cuh"

constexpr int D = HEAD_DIM, ROWS = 16, THREADS = 128, STEPS = LEAF / 64, CLUSTER = SLICES * LEAVES;
constexpr int KEYS = LEAF / SLICES, COLUMNS = D / SLICES;  // a block's share
constexpr int TILES = KEYS / 32;                           // of 8 keys, of a warp's scores
constexpr int WIDTH = COLUMNS > 32 ? COLUMNS / 32 : 1;     // tiles of 8 columns, of a warp's values
constexpr int PITCH = LEAF + 8;                            // of scores: eight rows lie in other banks

#if CHECK
// In the blocks of the first leaf: of each leaf and row the sum of the views of its numbers, one a warp, and of
// maximum and denominator; the leaf's keys.
struct Seals {
  long long sums[LEAVES][ROWS][5];
  int2 ends[LEAVES];
};
#else
struct Seals {};
#endif

struct Shared {
  uint4 k[KEYS * D / 8];  // later probabilities, [ROWS][LEAF]
  uint4 v[LEAF * COLUMNS / 8];
  union {
    uint4 q[ROWS * D / 8];
    Seals seals;  // when all blocks are done with q: with more memory fewer clusters run at a time
  };
  float scores[ROWS][PITCH], tops[ROWS][LEAF / 32];  // with the largest of every 32
  float shrink[ROWS][STEPS], m[ROWS];                // of accumulators before a step; the leaf's maximum
  float part[LEAVES][ROWS][COLUMNS];                 // in the blocks of the first leaf: o of each leaf
  float2 sums[LEAVES][ROWS];                         // and its maximum and denominator
};

// Place of the 16-byte piece c of a row of `PIECES`: eight rows' pieces c lie in different banks.
template <int PIECES>
DEVICE u32 place(int row, int c) {
  constexpr int together = PIECES < 8 ? 8 / PIECES : 1, mask = PIECES < 8 ? PIECES - 1 : 7;
  return (row * PIECES + (c ^ (row / together & mask))) * 16;
}

// Where the keys of a sequence are, and which of them its row sees.
struct Keys {
  int batch, begin, end;
  const int* pages;  // numbers of a paged cache's pages, or null
  int page;
  DEVICE bool seen(int key) const { return key >= begin && key < end; }
};

// COUNT rows of PIECES 16-byte pieces, from row `first` of the keys on. Keys that the row does not see come
// as zeros: what lies there may be anything.
template <int PIECES, int COUNT>
DEVICE void fetch(const Keys& keys, u32 to, const u16* x, long long stride_b, long long stride_t, int first) {
  constexpr int TOGETHER = THREADS / PIECES;  // rows; their places repeat
  const int c = threadIdx.x % PIECES, row = threadIdx.x / PIECES;
  x += 8 * c;
  to += place<PIECES>(row, c);
  first += row;
  if (keys.pages) {
#pragma unroll 4
    for (int i = 0; i < COUNT / TOGETHER; ++i) {
      const int key = first + i * TOGETHER;
      const bool seen = keys.seen(key);
      const u16* from = x;
      if (seen) from += keys.pages[key / keys.page] * stride_b + key % keys.page * stride_t;
      copy_16(to + i * TOGETHER * PIECES * 16, from, seen);
    }
  } else {
    const u16* from = x + keys.batch * stride_b + first * stride_t;
#pragma unroll
    for (int i = 0; i < COUNT / TOGETHER; ++i, from += TOGETHER * stride_t) {
      const bool seen = keys.seen(first + i * TOGETHER);
      copy_16(to + i * TOGETHER * PIECES * 16, seen ? from : x, seen);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_spread(const u16* q, long long q_stride_b, long long q_stride_h, const u16* k,
                     long long k_stride_b, long long k_stride_h, long long k_stride_t, const u16* v,
                     long long v_stride_b, long long v_stride_h, long long v_stride_t, u16* out,
                     long long out_stride_b, long long out_stride_h, const int* counts, int added,
                     int most, const int* pages, int pages_stride, int page, int heads, int group,
                     int window, float factor TICKET) {
  extern __shared__ __align__(128) unsigned char base[];
  Shared& own = *(Shared*)base;
  const u32 p_at = shared_address(own.k), k_at = p_at, v_at = shared_address(own.v);
  const u32 q_at = shared_address(own.q);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int rank = cluster_rank(), leaf = rank / SLICES, slice = rank % SLICES;
  const int batch = blockIdx.x / CLUSTER / heads, head = blockIdx.x / CLUSTER % heads;
  cluster_arrive();  // nobody writes to a block that has not started
#if CHECK
  const Ticket agreed = read_ticket(ticket);
#endif
  await_predecessor();
  admit_successor();  // not earlier: the one after it would come too, and crowd some processors
  const int end = Lengths{counts, added, most}.of(batch);
  const int begin = window > 0 ? max(0, end - window) : 0;
  const int first = begin / LEAF, start = (first + leaf) * LEAF;
  const int steps = max(0, min(STEPS, (end - start + 63) / 64));

#pragma unroll
  for (int i = tid; i < ROWS * D / 8; i += THREADS) {
    const int row = i / (D / 8), c = i % (D / 8);
    const u16* from = q + batch * q_stride_b + (long long)(head * group + row) * q_stride_h + 8 * c;
    copy_16(q_at + place<D / 8>(row, c), row < group ? from : q, row < group);
  }
  const Keys keys = {batch, begin, end, pages ? pages + (long long)batch * pages_stride : nullptr, page};
  fetch<D / 8, KEYS>(keys, k_at, k + head * k_stride_h, k_stride_b, k_stride_t, start + slice * KEYS);
  copies_commit();
  fetch<COLUMNS / 8, LEAF>(keys, v_at, v + head * v_stride_h + slice * COLUMNS, v_stride_b, v_stride_t, start);
  copies_commit();

  // Scores of this warp's keys, from `at` of the leaf on: to all blocks of the leaf.
  const int at = slice * KEYS + warp * (KEYS / 4);
  float s[TILES][4] = {};
  copies_wait<1>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    u32 a[4], b[4];
    load_matrices(a, q_at + place<D / 8>(lane & 15, 2 * i + (lane >> 4)));
#pragma unroll
    for (int j = 0; j < TILES; j += 2) {
      const int key = warp * (KEYS / 4) + 8 * (j + (lane >> 4)) + (lane & 7);
      load_matrices(b, k_at + place<D / 8>(key, 2 * i + (lane >> 3 & 1)));
      mma(s[j], a, b[0], b[1]);
      mma(s[j + 1], a, b[2], b[3]);
    }
  }
  cluster_wait();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h, column = at + lane % 4 * 2;
    float top[TILES / 4];
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      float &x = s[j][2 * h], &y = s[j][2 * h + 1];
      if (!keys.seen(start + column + 8 * j)) x = NOTHING;
      if (!keys.seen(start + column + 8 * j + 1)) y = NOTHING;
      top[j / 4] = j % 4 ? max_nan(top[j / 4], max_nan(x, y)) : max_nan(x, y);
    }
#pragma unroll
    for (int i = 0; i < TILES / 4; ++i) top[i] = quad_max(top[i]);
    if (row < group) {
#pragma unroll
      for (int t = 0; t < SLICES; ++t) {
        const u32 away = shared_of(p_at, rank - slice + t) - p_at;
#pragma unroll
        for (int j = 0; j < TILES; ++j)
          store_there(shared_address(&own.scores[row][column + 8 * j]) + away, s[j][2 * h], s[j][2 * h + 1]);
#pragma unroll
        for (int i = 0; i < TILES / 4; ++i)
          if (lane % 4 == 0) store_there(shared_address(&own.tops[row][at / 32 + i]) + away, top[i]);
      }
    }
  }
  cluster_arrive();
  // This warp's columns of the values, while the others' scores come.
  copies_wait<0>();
  __syncthreads();
  const bool works = steps > 0 && warp * 8 * WIDTH < COLUMNS;
  u32 b[LEAF / 32][WIDTH][4];
#pragma unroll
  for (int i = 0; i < LEAF / 32; ++i) {
#pragma unroll
    for (int t = 0; t < WIDTH; ++t)
      if (works) load_transposed(b[i][t], v_at + place<COLUMNS / 8>(32 * i + lane, warp * WIDTH + t));
  }
  cluster_wait();

  // Probabilities of the leaf: a warp takes every fourth row, a lane two keys of every step. Lane j holds
  // the maximum after step j.
  for (int row = warp; row < group; row += THREADS / 32) {
    float m = NOTHING;
    if (lane < STEPS) {
      const float2 top = ((const float2*)own.tops[row])[lane];
      m = ceilf(max_nan(top.x, top.y) * factor);
    }
#pragma unroll
    for (int n = 1; n < STEPS; n *= 2) {
      const float before = __shfl_up_sync(~0u, m, n);
      if (lane >= n) m = max_nan(m, before);
    }
    float held = __shfl_up_sync(~0u, m, 1);
    if (lane == 0) held = NOTHING;
    if (lane < STEPS) own.shrink[row][lane] = m == held ? 1.0f : power(held - m);
    if (lane == STEPS - 1) own.m[row] = m;
    const float origin = m == NOTHING ? 0.0f : m;
#pragma unroll
    for (int j = 0; j < STEPS; ++j) {
      const float2 x = ((const float2*)own.scores[row])[32 * j + lane];
      const float from = __shfl_sync(~0u, origin, j);
      *(u32*)(base + place<LEAF / 8>(row, 8 * j + lane / 4) + lane % 4 * 4) =
          pack(exp2_of(x.x, factor, from), exp2_of(x.y, factor, from));
    }
  }
  __syncthreads();

  // The chains over the leaf: this warp's columns, and denominators.
  if (works) {
    float o[WIDTH][4] = {}, l[4] = {};
    const int r = lane / 4;
#pragma unroll
    for (int j = 0; j < STEPS; ++j) {
      if (j > 0) {
        const float by[2] = {own.shrink[r][j], own.shrink[r + 8][j]};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int t = 0; t < WIDTH; ++t) o[t][e] *= by[e / 2];
          l[e] *= by[e / 2];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 2 * j + i / 2, at = i % 2 * 2;
        u32 a[4];
        load_matrices(a, p_at + place<LEAF / 8>(lane & 15, 8 * j + 2 * i + (lane >> 4)));
#pragma unroll
        for (int t = 0; t < WIDTH; ++t) mma(o[t], a, b[k][t][at], b[k][t][at + 1]);
        mma(l, a, ONES, ONES);
      }
    }
    const u32 away = shared_of(p_at, slice) - p_at;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = r + 8 * h;
#if CHECK
      if (8 * h >= group) continue;
      long long sum = 0;
#pragma unroll
      for (int t = 0; t < WIDTH; ++t) sum += view(o[t][2 * h]) + view(o[t][2 * h + 1]);
      if (own.m[row] == NOTHING) sum = 0;
      sum += __shfl_xor_sync(~0u, sum, 1);  // all lanes take part
      sum += __shfl_xor_sync(~0u, sum, 2);
#endif
      if (row >= group) continue;
      const float m = own.m[row];
      const bool none = m == NOTHING;  // every score is -Inf: no NaN may be left of 0 * Inf
#pragma unroll
      for (int t = 0; t < WIDTH; ++t)
        store_there(shared_address(&own.part[leaf][row][8 * (warp * WIDTH + t) + lane % 4 * 2]) + away,
                    none ? 0.0f : o[t][2 * h], none ? 0.0f : o[t][2 * h + 1]);
      if (warp == 0 && lane % 4 == 0)
        store_there(shared_address(&own.sums[leaf][row]) + away, m, l[2 * h]);
#if CHECK
      const auto seal = [&](int i, long long x) {
        store_there(shared_address(&own.seals.sums[leaf][row][i]) + away, __int_as_float((int)x),
                    __int_as_float((int)(x >> 32)));
      };
      if (lane % 4 == 0) seal(warp, sum);
      if (warp == 0 && lane % 4 == 0) seal(4, view(m) + view(l[2 * h]));
#endif
    }
#if CHECK
    if (tid == 0)
      store_there(shared_address(&own.seals.ends[leaf]) + away, __int_as_float(max(begin, start)),
                  __int_as_float(min(end, start + LEAF)));
#endif
  }
  cluster_sync();
  if (leaf > 0) return;

  // Leaves in ascending order, a thread two columns of a row.
  const int leaves = (end + LEAF - 1) / LEAF - first;
#if CHECK
  long long off = 0;  // numbers that are folded, less those that were sealed
#endif
  for (int i = tid; i < group * (COLUMNS / 2); i += THREADS) {
    const int row = i / (COLUMNS / 2), c = i % (COLUMNS / 2);
#if CHECK
    constexpr int TOGETHER = COLUMNS / 2, WARPS = COLUMNS / (8 * WIDTH);  // threads of a row; warps that had columns
    static_assert(TOGETHER >= LEAVES);
#pragma unroll
    for (int e = 0; e < LEAVES * WARPS; e += TOGETHER) {
      const int j = (e + c) / WARPS;
      if (j < leaves) off -= taken(own.seals.sums[j][row][(e + c) % WARPS], j);
    }
    if (c < leaves) off -= taken(own.seals.sums[c][row][4], c);
    int nth = 0;
#endif
    float x = -0.0f, y = -0.0f, sum = -0.0f, top = NOTHING;
    for (int j = 0; j < leaves; ++j) {
      const float2 o = ((const float2*)own.part[j][row])[c], l = own.sums[j][row];
      const float2 by = fold_factors(top, l.x);
      x = __fmaf_rn(x, by.x, o.x * by.y);
      y = __fmaf_rn(y, by.x, o.y * by.y);
      sum = __fmaf_rn(sum, by.x, l.y * by.y);
#if CHECK
      off += taken(o.x, nth) + taken(o.y, nth);
      if (c == 0) off += taken(l.x, nth) + taken(l.y, nth);
      ++nth;
#endif
    }
    u16* to = out + batch * out_stride_b + (long long)(head * group + row) * out_stride_h + slice * COLUMNS;
    *(u32*)(to + 2 * c) = pack(quotient(x, sum, top), quotient(y, sum, top));
  }
#if CHECK
  // The contract's leaves: as many as have edges between the first key that is seen and the last, a thread each.
  const int length = agreed.length, edge = (first + tid) * length;
  bool sound = begin - first * length < length && begin >= first * length && end <= (first + leaves) * length &&
               end > (first + leaves - 1) * length;
  if (tid < leaves)
    sound &= own.seals.ends[tid].x == max(begin, edge) && own.seals.ends[tid].y == min(end, edge + length);
  sound = __all_sync(~0u, sound) && all_gone(off);
  if (lane == 0) agreed.judge(sound);
#endif
}
