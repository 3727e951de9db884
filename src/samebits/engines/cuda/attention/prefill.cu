// Prefill attention for sm_90a. One persistent block an SM: a producer warp keeps K and V tiles of
// 128 keys in flight (bulk tensor copies into a ring of shared memory), two consumer warpgroups own
// 64 query rows each. The pipeline is FlashAttention-3's (Shah et al. 2024, arXiv 2407.08608): a
// warpgroup issues the scores of block i + 1 and the values of block i together and computes the
// softmax of block i + 1 while the tensor core is busy, and the two warpgroups take turns, so that
// one's softmax hides under the other's products.
//
// The arithmetic is the attention contract of sm_90 (contract/attention.py): leaves of LEAF keys at
// absolute positions, a power-of-two maximum raised every 64 keys, the chip's 2^x, the denominator
// from the matrix unit in the same chain as the values, leaves folded in ascending order. The
// running leaf lives in registers, the folded total in shared memory: it is touched once a leaf.
//
// Compile-time parameters (-D): HEAD_DIM 64 or 128, LEAF a multiple of 128, CAUSAL 0 or 1, BF16 1 or
// 0 (fp16), CLUSTER 1 or 2: blocks that fetch keys and values together.
#include "nonfinite.cuh"
#include "output.cuh"
#include "producer.cuh"
#include "softmax.cuh"

// ---- consumer -----------------------------------------------------------------------------------

DEVICE void scores(float (&s)[64], Matrix q, Matrix k) {
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    const u32 at = i / 4 * CHUNK + i % 4 * 32;
    wgmma_ab(s, q.at(at), k.at(at), i > 0);
  }
}

// The chains of o and l over the 64 keys of a step.
DEVICE void values(float (&o)[ACC], float (&l)[4], const u32 (&p)[16], Matrix v, Matrix ones,
                   bool add) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    wgmma_pv(o, p + 4 * i, v.at(i * 2048), add || i > 0);
    wgmma_pv(l, p + 4 * i, ones.at(0), add || i > 0);
  }
}

DEVICE void consume(const Arguments& a, unsigned char* base, u32 smem, u32 bars, int group) {
  const int thread = threadIdx.x & 127, lane = threadIdx.x & 31, warp = thread >> 5;
  const Matrix q = swizzled_matrix(smem + Q_AT + group * (ROWS / GROUPS) * 128);
  const Matrix ones = plain_matrix(smem + ONES_AT, 128, 128);
  const auto key_tile = [&](u32 stage) { return swizzled_matrix(uniform(smem + K_AT + stage * TILE)); };
  const auto value_step = [&](u32 stage, u32 step) {
    return swizzled_matrix(uniform(smem + V_AT + stage * TILE + step * STEP_BYTES), CHUNK);
  };
  const u32 own = TOTAL_AT + group * (ROWS / GROUPS) * D * 4;
  Total total;
  total.o = (float4*)(base + own) + thread;
  const u32 staging = smem + own + warp * 512;
  const int column = lane % 4 * 2;
  const auto release_queries = [&] {
    if (lane == 0) barrier_arrive(bars + 8 * Q_EMPTY);
  };
  u32 inspected = 0;  // a bit a stage: the parity of its next inspection
  if (group == 1) group_arrive(TURN + 0, 256);  // the first turn is warpgroup 0's

  // The next work that sees a key; rows that see none are +0.
  int round = 0;
  const auto advance = [&](Work& w) {
    bool more;
    while ((more = next_work(a, round++, w)) && w.blocks == 0) store_nothing(a, w);
    w.blocks = uniform(w.blocks);
    return more;
  };
  float s[64];
  u32 used = 0, tiles = 0;
  // Operands of the first scores of a work.
  const auto await_operands = [&] {
    barrier_wait(bars + 8 * Q_FULL, tiles++ & 1);
    barrier_wait(bars + 8 * (K_FULL + used % STAGES), used / STAGES & 1);
  };
  Work w;
  bool more = advance(w);
  if (more) await_operands();
  touch(s);
  wgmma_fence();
  scores(s, q, key_tile(used % STAGES));
  wgmma_commit();
  wgmma_wait<0>();
  touch(s);
  while (more) {
    const int first = w.row + (ROWS / GROUPS) * group, row = first + 16 * warp + lane / 4;
    float o[ACC], l[4];
    float top[2][2];
    u32 p[16], p1[16];
    Leaf leaf;
    leaf.m[0] = leaf.m[1] = NOTHING;
    // Keys that the thread's two rows see.
    const int end0 = CAUSAL ? min(w.keys, row + w.offset + 1) : w.keys;
    const int end1 = CAUSAL ? min(w.keys, row + w.offset + 9) : w.keys;

    bool add = false;  // whether o and l hold something of the leaf
    // Values of the first step of the block at hand; o and l made ready for the second's; those.
    const auto issue_first = [&] {
      touch(o);
      touch(l);
      wgmma_fence();
      values(o, l, p, value_step(used % STAGES, 0), ones, add);
      wgmma_commit();
    };
    const auto between = [&] {
      touch(o);
      touch(l);
      if (leaf.moved) rescale(o, l, leaf.scale);
    };
    const auto issue_second = [&] {
      touch(o);
      touch(l);
      wgmma_fence();
      values(o, l, p1, value_step(used % STAGES, 1), ones, true);
      wgmma_commit();
    };
    // The scores of block i, which are here, to p and p1. The block before may still have its second
    // step's values under way; they are awaited as late as can be.
    const auto weigh = [&](int i, bool first) __attribute__((always_inline)) {
      const u32 stage = used % STAGES;
      const int at = KEYS * i;
      const bool fresh = i % BLOCKS_PER_LEAF == 0;
      release(bars + 8 * (K_EMPTY + stage));
      if (i + 1 == w.blocks) release_queries();
      if (w.partly(i)) mask(s, end0 - at - column, end1 - at - column);
      Leaf before = leaf;
      if (fresh) leaf.m[0] = leaf.m[1] = NOTHING;
      maxima(s, a.factor, top);
      softmax<0>(s, top, p, leaf, a.factor);
      touch(p);
      barrier_wait(bars + 8 * (V_FULL + stage), used / STAGES & 1);
      if (!first) {
        wgmma_wait<0>();
        touch(o);
        touch(l);
        release(bars + 8 * (V_EMPTY + (used - 1) % STAGES));
        if (fresh) {
          fold<true>(o, l, before, total, i == BLOCKS_PER_LEAF);
        } else if (leaf.moved) {
          rescale(o, l, leaf.scale);
        }
      }
      add = !fresh;
      softmax<1>(s, top, p1, leaf, a.factor);
      touch(p1);
      if (w.partly(i)) {
        barrier_wait(bars + 8 * (V_INSPECTED + stage), inspected >> stage & 1);
        inspected ^= 1 << stage;
        const u32 v = smem + V_AT + stage * TILE, found = smem + FOUND_AT + 8 * stage;
        if (load_shared(found)) {
          if (!add) clear(o, l);
          add = true;
          take_infinite(o, p, v, end0 - at, end1 - at);
        }
        if (load_shared(found + 4)) {  // takes its turn after the first step's values
          issue_first();
          wgmma_wait<0>();
          between();
          add = true;
          leaf.moved = false;
#pragma unroll
          for (int j = 0; j < 16; ++j) p[j] = 0;
          take_infinite(o, p1, v + STEP_BYTES, end0 - at - KEYS / 2, end1 - at - KEYS / 2);
        }
      }
      if (i + 1 < w.blocks)
        barrier_wait(bars + 8 * (K_FULL + (used + 1) % STAGES), (used + 1) / STAGES & 1);
    };
    weigh(0, true);
    for (int i = 1; i < w.blocks; ++i) {
      // The last block's values with this block's scores in between.
      group_sync(TURN + group, 256);
      issue_first();
      touch(s);
      wgmma_fence();
      scores(s, q, key_tile((used + 1) % STAGES));
      wgmma_commit();
      wgmma_wait<1>();
      between();
      issue_second();
      group_arrive(TURN + (group ^ 1), 256);
      wgmma_wait<1>();
      touch(s);
      ++used;
      weigh(i, false);
    }
    // The last block's values, then the next work's first scores, which hide this work's end. After
    // the last work they are scores of nothing that nobody reads.
    issue_first();
    Work next;
    more = advance(next);
    wgmma_wait<0>();
    between();
    issue_second();
    const u32 last = used++ % STAGES;
    if (more) await_operands();
    touch(s);
    wgmma_fence();
    scores(s, q, key_tile(used % STAGES));
    wgmma_commit();
    wgmma_wait<1>();
    touch(o);
    touch(l);
    release(bars + 8 * (V_EMPTY + last));
    if (w.blocks > BLOCKS_PER_LEAF) fold<false>(o, l, leaf, total, false);
    store(a, w, o, l, leaf.m, staging, first + 16 * warp);
    wgmma_wait<0>();
    touch(s);
    w = next;
  }
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(128 * (1 + GROUPS), 1)
    attention_prefill(TENSOR(q), TENSOR(k), TENSOR(v), u16* out, long long out_stride_b,
                      long long out_stride_h, long long out_stride_t, const int* query_starts,
                      const int* key_starts, const int* positions, int query_length,
                      int key_length, int position, int sequences, int section, float factor) {
  const Arguments a = {out, out_stride_b, out_stride_h, out_stride_t, query_starts, key_starts,
                       positions, query_length, key_length, position, sequences, q_h, q_h / k_h,
                       section, factor};
  extern __shared__ __align__(1024) unsigned char base[];
  const u32 smem = shared_address(base), bars = smem + BARRIERS_AT;
  if (threadIdx.x == 0) {
    for (int i = 0; i < BARRIERS; ++i) {
      int arrivals = 1;  // of warps, but for the producer's
      if (i == Q_EMPTY) arrivals = 4 * GROUPS;
      if (i >= K_EMPTY && i < V_FULL) arrivals = 4 * GROUPS * CLUSTER;
      if (i >= V_EMPTY && i < V_INSPECTED) arrivals = (4 * GROUPS + INSPECTORS) * CLUSTER;
      if (i >= V_INSPECTED) arrivals = INSPECTORS;
      barrier_init(bars + 8 * i, arrivals);
    }
    fence_barrier_init();
  }
  if (threadIdx.x < 64) ((u32*)(base + ONES_AT))[threadIdx.x] = ONES;
  if (threadIdx.x < 2 * STAGES) ((u32*)(base + FOUND_AT))[threadIdx.x] = 0;
  fence_async();
  __syncthreads();
  if (CLUSTER > 1) cluster_sync();
  if (threadIdx.x < 128) {
    registers_lower<40>();
    if (threadIdx.x == 0) produce(a, &q, &k, &v, smem, bars);
    if (threadIdx.x >= 32) inspect(a, smem, bars);
  } else {
    registers_raise<232>();
    consume(a, base, smem, bars, uniform(threadIdx.x >> 7) - 1);
  }
  if (CLUSTER > 1) {  // until nobody writes to this block's memory any more
    __syncwarp();
    cluster_sync();
  }
}
