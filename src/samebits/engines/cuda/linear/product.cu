// Matrix products for sm_90a: y[r, c] = alpha * sum_k a[r, k] b[c, k] + beta * bias[c].
//
// A producer warp keeps blocks of 64 * CHUNKS of k in flight (bulk tensor copies into a ring of shared
// memory). GROUPS consumer warpgroups own 64 rows of a tile each, and all of its COLS columns, which
// may be any multiple of 8: that is what lets a tile fit the whole waves of a chip.
//
// The sum is the contract's: leaves of `leaf` elements of k, each one chain of the tensor core from +0.
//   SPLIT = 0: a block walks over tiles, and over the leaves of a tile. The ring runs on from leaf to
//       leaf and tile to tile. With FOLD = d the leaves are added up in d more accumulators: ascending
//       (d = 1), or neighbours first (2^d leaves).
//   SPLIT = s: one tile a cluster of s blocks, one leaf a block. Every block sends each of the others
//       its share of the columns through distributed shared memory and folds its own share: ascending,
//       or with PAIRWISE neighbours first.
// SHARE = 1 or 2 (with SPLIT = 0): neighbours along the rows, or columns, of tiles are a cluster of two
// blocks, which fetch the operand that they share for each other.
//
// A tile that would reach beyond the last row or column begins earlier instead and computes some
// results twice, to the same bits: the copy engine is slow where a box reaches out of its tensor.
//
// Compile-time parameters (-D): BF16 1 or 0 (fp16), GROUPS, COLS, CHUNKS, STAGES, SPLIT, FOLD, PAIRWISE,
// SHARE, WIDE 1 (fp32 results) or 0, BAND: rows of tiles that are worked on side by side; CHECK: path.cuh.
#include "hopper.cuh"
#include "path.cuh"
#include "wgmma.cuh"

#if BF16
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif

constexpr int ROWS = 64 * GROUPS, OCTETS = COLS / 8, REGISTERS = COLS / 2;
constexpr int BLOCK_K = 64 * CHUNKS;
constexpr u32 A_CHUNK = ROWS * 128, B_CHUNK = COLS * 128;  // bytes of 64 elements of k of all rows
constexpr u32 B_AT = CHUNKS * A_CHUNK, STAGE = B_AT + CHUNKS * B_CHUNK;
constexpr int PARTS = SPLIT ? SPLIT : 1, MOST_OCTETS = (OCTETS + PARTS - 1) / PARTS;
// Where leaves meet: four numbers a thread and octet, and with CHECK a seal a thread.
constexpr u32 SEALS_AT = SPLIT ? PARTS * MOST_OCTETS * ROWS * 2 * 16 : 0;
constexpr u32 EXCHANGE = SEALS_AT + (SPLIT && CHECK ? PARTS * ROWS * 2 * 16 : 0);
constexpr u32 RING = STAGES * STAGE > EXCHANGE ? STAGES * STAGE : EXCHANGE;
constexpr u32 STAGING_AT = RING, STAGING = WIDE ? 0 : 4 * GROUPS * 2048;  // 16 rows of 64 columns a warp
constexpr u32 FULL_AT = STAGING_AT + STAGING, EMPTY_AT = FULL_AT + 8 * STAGES;

struct Arguments {
  void* y;             // [rows, cols], rows `pitch` elements apart
  long long pitch;
  const u16* bias;     // [cols] or null
  int rows, cols, k;
  int leaf;            // elements of k, a multiple of BLOCK_K unless there is one leaf
  float alpha, beta;
  Ticket ticket;       // of CHECK
};

constexpr int PAIR = SHARE ? 2 : 1;  // blocks of a cluster that walk together
constexpr int HEIGHT = SHARE == 1 ? 2 * ROWS : ROWS, WIDTH = SHARE == 2 ? 2 * COLS : COLS;

struct Tile { int row, col; };

// Bands of BAND rows of tiles, column by column, so that what runs at a time shares its operands in L2.
DEVICE bool tile_at(const Arguments& a, int index, Tile& t) {
  const int high = (a.rows + HEIGHT - 1) / HEIGHT, wide = (a.cols + WIDTH - 1) / WIDTH;
  const int band = index / (BAND * wide), inside = index % (BAND * wide);
  const int height = min(high - band * BAND, BAND);
  t.row = max(0, min((band * BAND + inside % height) * HEIGHT, a.rows - HEIGHT));
  t.col = max(0, min(inside / height * WIDTH, a.cols - WIDTH));
  if (SHARE == 1) t.row += cluster_rank() * ROWS;
  if (SHARE == 2) t.col += cluster_rank() * COLS;
  return index < high * wide;
}

// A place in the ring, and in which round.
struct Slot {
  u32 stage = 0, round = 0;
  DEVICE void advance() {
    if (++stage == STAGES) stage = 0, round ^= 1;
  }
};

// ---- producer: one thread ------------------------------------------------------------------------

// BYTES of rows of an operand; of one that is SHARED, this block's half for both.
template <bool SHARED, u32 BYTES>
DEVICE void load(u32 to, const TensorMap* map, u32 full, int k, int row) {
  if (SHARED) {
    const int rank = cluster_rank();
    matrix_multicast(to + rank * (BYTES / 2), map, full, k, row + rank * (BYTES / 256), 3);
  } else {
    matrix_copy(to, map, full, k, row);
  }
}

DEVICE void fetch(const TensorMap* a, const TensorMap* b, u32 smem, Tile t, int k, int end, Slot& slot) {
  for (; k < end; k += BLOCK_K, slot.advance()) {
    const u32 to = smem + slot.stage * STAGE, full = smem + FULL_AT + 8 * slot.stage;
    barrier_wait(smem + EMPTY_AT + 8 * slot.stage, slot.round ^ 1);
    barrier_expect(full, STAGE);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      load<SHARE == 2, A_CHUNK>(to + c * A_CHUNK, a, full, k + 64 * c, t.row);
      load<SHARE == 1, B_CHUNK>(to + B_AT + c * B_CHUNK, b, full, k + 64 * c, t.col);
    }
  }
}

DEVICE void produce(const Arguments& args, const TensorMap* a, const TensorMap* b, u32 smem) {
  Slot slot;
  Tile t;
  if (SPLIT) {
    const int begin = cluster_rank() * args.leaf;
    tile_at(args, blockIdx.x / PARTS, t);
    fetch(a, b, smem, t, begin, min(begin + args.leaf, args.k), slot);
  } else {
    for (int index = blockIdx.x / PAIR; tile_at(args, index, t); index += gridDim.x / PAIR)
      fetch(a, b, smem, t, 0, args.k, slot);
  }
}

// ---- consumers -----------------------------------------------------------------------------------

// The warp no longer needs what a stage holds.
DEVICE void release(u32 empty) {
  const int lane = threadIdx.x & 31;
  if (SHARE) {
    if (lane < 2) barrier_arrive_at(empty, lane);
  } else if (lane == 0) {
    barrier_arrive(empty);
  }
}

// The chain over `blocks` blocks of k into acc, which holds it when this returns.
DEVICE void chain(float (&acc)[REGISTERS], u32 smem, int blocks, int group, Slot& slot) {
  u32 before = 0;
  for (int i = 0; i < blocks; ++i, slot.advance()) {
    const u32 at = uniform(smem + slot.stage * STAGE);
    const Matrix a = swizzled_matrix(at + group * 64 * 128), b = swizzled_matrix(at + B_AT);
    barrier_wait(smem + FULL_AT + 8 * slot.stage, slot.round);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * CHUNKS; ++step) {
      const u32 in = step % 4 * 32;
      wgmma(acc, a.at(step / 4 * A_CHUNK + in), b.at(step / 4 * B_CHUNK + in), i > 0 || step > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) release(before);
    before = smem + EMPTY_AT + 8 * slot.stage;
  }
  wgmma_wait<0>();
  touch(acc);
  release(before);
}

DEVICE float number(u16 word) {
  float x;
#if BF16
  x = __uint_as_float((u32)word << 16);
#else
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(word));
#endif
  return x;
}

DEVICE u32 pack(float low, float high) {
  u32 y;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

// alpha * x + beta * bias of the thread's four elements of an octet of columns.
DEVICE void finish(const Arguments& a, float (&x)[4], int col) {
  col += threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = x[i] * a.alpha;
    if (a.bias && col + i % 2 < a.cols) x[i] = x[i] + number(a.bias[col + i % 2]) * a.beta;
  }
}

// The warp's 16 rows of N octets of columns to y. `octet(i)` gives the thread's four elements.
template <int N, class Octet>
DEVICE void store(const Arguments& a, Octet octet, u32 staging, int row, int col, int end) {
  const int lane = threadIdx.x & 31;
  if (WIDE) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float x[4];
      octet(i, x);
      finish(a, x, col + 8 * i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + lane / 4 + 8 * half, c = col + 8 * i + lane % 4 * 2;
        if (r < a.rows && c < end)
          *(float2*)((float*)a.y + r * a.pitch + c) = make_float2(x[2 * half], x[2 * half + 1]);
      }
    }
    return;
  }
  // Through shared memory, 64 columns at a time, so that whole lines leave.
  const auto place = [&](int r, int piece) { return staging + r * 128 + (piece ^ (r & 7)) * 16; };
#pragma unroll
  for (int first = 0; first < N; first += 8) {
    const int count = N - first < 8 ? N - first : 8;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      u32 p[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float x[4] = {};
        if (i + j < count) {
          octet(first + i + j, x);
          finish(a, x, col + 8 * (first + i + j));
        }
        p[2 * j] = pack(x[0], x[1]);
        p[2 * j + 1] = pack(x[2], x[3]);
      }
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       place(lane & 15, i + (lane >> 4))),
                   "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3])
                   : "memory");
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * count; i += 32) {
      const int r = i / count, piece = i % count, c = col + 8 * (first + piece);
      uint4 x;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(place(r, piece))
                   : "memory");
      if (row + r < a.rows && c < end) *(uint4*)((u16*)a.y + (row + r) * a.pitch + c) = x;
    }
  }
}

// ---- a leaf a block ------------------------------------------------------------------------------

// Octets of columns that part p of the cluster folds begin here.
DEVICE constexpr int share(int p) { return OCTETS * p / PARTS; }

DEVICE u32 exchange_at(int leaf, int octet) {
  return ((leaf * MOST_OCTETS + octet) * (2 * ROWS) + threadIdx.x) * 16;
}

DEVICE u32 seal_at(int leaf) { return SEALS_AT + (leaf * 2 * ROWS + threadIdx.x) * 16; }

// `word`: of this block's leaf in the path.
DEVICE void send(const float (&acc)[REGISTERS], u32 smem, int rank, u32 word) {
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    const u32 there = shared_of(smem, p);
    if (CHECK) {  // the same thread of that block reads what this one writes
      long long sum = 0;
#pragma unroll
      for (int i = 4 * share(p); i < 4 * share(p + 1); ++i) sum += taken(acc[i], i - 4 * share(p));
      asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(there + seal_at(rank)),
                   "r"((u32)sum), "r"((u32)(sum >> 32)), "r"(word), "r"(0)
                   : "memory");
    }
#pragma unroll
    for (int i = share(p); i < share(p + 1); ++i)
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                       there + exchange_at(rank, i - share(p))),
                   "f"(acc[4 * i]), "f"(acc[4 * i + 1]), "f"(acc[4 * i + 2]), "f"(acc[4 * i + 3])
                   : "memory");
  }
}

// Judges what this thread has folded: sums of each leaf's views.
DEVICE void open_seals(const Arguments& a, u32 smem, const long long (&folded)[PARTS]) {
  u32 word[PARTS];
  bool right = true;
#pragma unroll
  for (int leaf = 0; leaf < PARTS; ++leaf) {
    uint4 seal;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(seal.x), "=r"(seal.y), "=r"(seal.z), "=r"(seal.w)
                 : "r"(smem + seal_at(leaf))
                 : "memory");
    right &= (long long)((unsigned long long)seal.y << 32 | seal.x) == folded[leaf];
    word[leaf] = seal.z;
  }
  if (PAIRWISE) {
#pragma unroll
    for (int step = 1; step < PARTS; step *= 2)
#pragma unroll
      for (int leaf = 0; leaf < PARTS; leaf += 2 * step) {
        const u32 last = word[leaf + step];
        word[leaf] = path_fold(word[leaf], step > 1 ? path_mix(last) : last);
      }
  } else {
#pragma unroll
    for (int leaf = 1; leaf < PARTS; ++leaf) word[0] = path_fold(word[0], word[leaf]);
  }
  a.ticket.judge(right && word[0] == a.ticket.expected);
}

// `views`: sums of the numbers' views, of each leaf; with CHECK, where the octet is the block's own.
DEVICE void fold(float (&x)[4], u32 smem, int octet, bool own, long long (&views)[PARTS]) {
  float p[PARTS][4];
#pragma unroll
  for (int leaf = 0; leaf < PARTS; ++leaf)
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(p[leaf][0]), "=f"(p[leaf][1]), "=f"(p[leaf][2]), "=f"(p[leaf][3])
                 : "r"(smem + exchange_at(leaf, octet))
                 : "memory");
  if (CHECK && own)
#pragma unroll
    for (int leaf = 0; leaf < PARTS; ++leaf)
#pragma unroll
      for (int i = 0; i < 4; ++i) views[leaf] += taken(p[leaf][i], 4 * octet + i);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (PAIRWISE) {
#pragma unroll
      for (int step = 1; step < PARTS; step *= 2)
#pragma unroll
        for (int leaf = 0; leaf < PARTS; leaf += 2 * step) p[leaf][i] = p[leaf][i] + p[leaf + step][i];
    } else {
#pragma unroll
      for (int leaf = 1; leaf < PARTS; ++leaf) p[0][i] = p[0][i] + p[leaf][i];
    }
    x[i] = p[0][i];
  }
}

// ---- the kernel ----------------------------------------------------------------------------------

DEVICE int blocks_of(int elements) { return (elements + BLOCK_K - 1) / BLOCK_K; }

#if SPLIT

DEVICE void consume(const Arguments& a, u32 smem, int group, int warp) {
  const int rank = cluster_rank(), begin = rank * a.leaf;
  float acc[REGISTERS];
  Slot slot;
  Tile t;
  tile_at(a, blockIdx.x / PARTS, t);
  chain(acc, smem, blocks_of(min(begin + a.leaf, a.k) - begin), group, slot);
  cluster_sync();  // nobody needs the ring any more
  send(acc, smem, rank, path_leaf(begin, min(begin + a.leaf, a.k)));
  cluster_sync();
  const int first = share(rank), end = share(rank + 1);
  long long views[PARTS] = {};
  const auto octet = [&](int i, float (&x)[4]) { fold(x, smem, i, i < end - first, views); };
  store<MOST_OCTETS>(a, octet, smem + STAGING_AT + warp * 2048, t.row + 64 * group + warp % 4 * 16,
                     t.col + 8 * first, min(a.cols, t.col + 8 * end));
  if (CHECK) open_seals(a, smem, views);
}

#else

DEVICE void consume(const Arguments& a, u32 smem, int group, int warp) {
  Slot slot;
  Tile t;
  for (int index = blockIdx.x / PAIR; tile_at(a, index, t); index += gridDim.x / PAIR) {
    float acc[REGISTERS], sum[FOLD ? FOLD : 1][FOLD ? REGISTERS : 1];
    u32 digest[FOLD ? FOLD : 1] = {};
    if (FOLD) {
#pragma unroll
      for (int i = 0; i < FOLD * REGISTERS; ++i) sum[i / REGISTERS][i % REGISTERS] = -0.0f;  // -0 + p is p
      for (int begin = 0, leaf = 0; begin < a.k; begin += a.leaf, ++leaf) {
        chain(acc, smem, blocks_of(min(begin + a.leaf, a.k) - begin), group, slot);
#pragma unroll
        for (int i = 0; i < REGISTERS; ++i) sum[0][i] = sum[0][i] + acc[i];
        if (CHECK) digest[0] = path_fold(digest[0], path_leaf(begin, min(begin + a.leaf, a.k)));
        // sum[l] takes 2^l leaves at a time; when it has a pair of them, the next one takes it.
#pragma unroll
        for (int l = 1; l < FOLD; ++l)
          if (((leaf + 1) & ((1 << l) - 1)) == 0) {
#pragma unroll
            for (int i = 0; i < REGISTERS; ++i) sum[l][i] = sum[l][i] + sum[l - 1][i], sum[l - 1][i] = -0.0f;
            if (CHECK) {
              const u32 last = digest[l - 1];
              digest[l] = leaf >> l & 1 ? path_fold(digest[l], path_mix(last)) : last;
              digest[l - 1] = 0;
            }
          }
      }
    } else {
      chain(acc, smem, blocks_of(a.k), group, slot);
      digest[0] = path_leaf(0, a.k);
    }
    if (CHECK && threadIdx.x % 128 == 0) a.ticket.judge(digest[FOLD ? FOLD - 1 : 0] == a.ticket.expected);
    const auto octet = [&](int i, float (&x)[4]) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = FOLD ? sum[FOLD - 1][4 * i + j] : acc[4 * i + j];
    };
    store<OCTETS>(a, octet, smem + STAGING_AT + warp * 2048, t.row + 64 * group + warp % 4 * 16, t.col,
                  a.cols);
  }
}

#endif

extern "C" __global__ void
#if SPLIT || SHARE
    __cluster_dims__(SPLIT ? SPLIT : PAIR)
#endif
    __launch_bounds__(128 * (GROUPS + 1), 1)
    linear_product(MATRIX(a), MATRIX(b), void* y, long long pitch, const u16* bias, int leaf, float alpha,
                   float beta TICKET) {
  const Arguments args = {y, pitch, bias, a_rows, b_rows, a_k, leaf, alpha, beta HAND_TICKET};
  extern __shared__ __align__(1024) unsigned char base[];
  const u32 smem = shared_address(base);
  const int warp = uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(smem + FULL_AT + 8 * i, 1);
      barrier_init(smem + EMPTY_AT + 8 * i, 4 * GROUPS * PAIR);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (SHARE) cluster_sync();
  admit_successor();
  await_predecessor();
  if (warp < 4 * GROUPS) {
    if (GROUPS == 2) registers_raise<232>();
    consume(args, smem, warp / 4, warp);
  } else {
    if (GROUPS == 2) registers_lower<40>();
    if (threadIdx.x == 128 * GROUPS) produce(args, &a, &b, smem);
    __syncwarp();
    if (SPLIT) {
      cluster_sync();
      cluster_sync();
    }
  }
  if (SHARE) cluster_sync();  // until nobody writes to this block's memory any more
}
