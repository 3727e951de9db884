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
// 0 (fp16), CLUSTER 1 or 2: blocks that fetch keys and values together; CHECK (path.cuh).
#include "nonfinite.cuh"
#include "output.cuh"
#include "producer.cuh"
#include "softmax.cuh"

constexpr int LATE = D / 16 - 2;  // from this piece on, scores follow the rescaling between two steps

// ---- consumer -----------------------------------------------------------------------------------

// Of the 16-column pieces FROM ... TO of queries and keys.
template <int FROM, int TO>
DEVICE void scores(float (&s)[64], Matrix q, Matrix k) {
#pragma unroll
  for (int i = FROM; i < TO; ++i) {
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
  const auto value_tile = [&](u32 stage) {
    return swizzled_matrix(uniform(smem + V_AT + stage * TILE), CHUNK);
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
    while ((more = next_work(a, round++, w)) && w.blocks == w.first) store_nothing(a, w);
    w.first = uniform(w.first);
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
  scores<0, D / 16>(s, q, key_tile(used % STAGES));
  wgmma_commit();
  wgmma_wait<0>();
  touch(s);
  while (more) {
    const int first = w.row + (ROWS / GROUPS) * group, row = first + 16 * warp + lane / 4;
    float o[ACC], l[4];
    u32 p[16], p1[16];
    Leaf leaf;
    // Keys that the thread's two rows see; `from` and `to` count from a block's or a step's first key.
    int low[2], high[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + 8 * r + w.offset;
      low[r] = a.window ? at - a.window + 1 : 0;
      high[r] = CAUSAL ? min(w.keys, at + 1) : a.window ? min(w.keys, at + a.window) : w.keys;
    }
    const auto seen_from = [&](int key) {
      return Seen{{low[0] - key, low[1] - key}, {high[0] - key, high[1] - key}};
    };

    int leaf_from = KEYS * w.first;
    Walk walk = {leaf_from, KEYS * w.blocks, CHECK ? a.ticket.length : LEAF};
    float shrink[2];  // of the accumulators before the second step's values of the block at hand
    bool shrinks, add;  // whether for any row of the warp; whether o and l hold something of the leaf
    Matrix values_now, keys_next;  // tiles of the block at hand, and of the one after
    // Values of the first step of the block at hand; o and l made ready for the second's; those.
    const auto issue_first = [&] {
      touch(o);
      touch(l);
      wgmma_fence();
      values(o, l, p, values_now, ones, add);
      wgmma_commit();
    };
    const auto between = [&] {
      touch(o);
      touch(l);
      if (shrinks) rescale(o, l, shrink);
    };
    const auto issue_second = [&] {
      touch(o);
      touch(l);
      wgmma_fence();
      values(o, l, p1, Matrix{values_now.low + (STEP_BYTES >> 4), values_now.high}, ones, true);
      wgmma_commit();
    };
    // The scores of block i to p and p1, when nothing of this warpgroup is under way. In one piece without
    // branches: conversions, maxima and the rescaling fill the gaps between the exponentials. `maybe`:
    // some row may see the block only in part.
    const auto weigh = [&](int i, bool first, bool fresh, bool maybe) __attribute__((always_inline)) {
      const u32 stage = used % STAGES, next = (used + 1) % STAGES;
      const bool partly = maybe && w.partly(i), follows = i + 1 < w.blocks;
      release(bars + 8 * (K_EMPTY + stage));
      if (!first) release(bars + 8 * (V_EMPTY + next));
      if (!follows) release_queries();
      if (partly && a.window) {
        mask<true>(s, seen_from(KEYS * i + column));
      } else if (partly) {
        mask<false>(s, seen_from(KEYS * i + column));
      }
      values_now = value_tile(stage);
      keys_next = key_tile(next);
      const bool here = barrier_test(bars + 8 * (V_FULL + stage), used / STAGES & 1) &
                        (barrier_test(bars + 8 * (K_FULL + next), (used + 1) / STAGES & 1) | !follows);
      Leaf before = leaf;
      float top[2], origin[2], origin1[2], shrink0[2];
      if (fresh && !first) clear_skipped(o, before);
      if (CHECK && fresh && !first) {
        walk.leaf(leaf_from, KEYS * i);
        leaf_from = KEYS * i;
      }
      if (fresh) leaf.m[0] = leaf.m[1] = NOTHING;
      maxima<0>(s, a.factor, top);
      raise(leaf, top, shrink0, origin);
      weights<0>(s, origin, p, a.factor);
      if (fresh && !first) fold<false>(o, l, before, total);
      maxima<1>(s, a.factor, top);
      raise(leaf, top, shrink, origin1);
      shrinks = __any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f);
      weights<1>(s, origin1, p1, a.factor);
      if (!fresh) rescale(o, l, shrink0);
      touch(p);
      touch(p1);
      touch(o);
      touch(l);
      add = !fresh;
      if (!here) {
        barrier_wait(bars + 8 * (V_FULL + stage), used / STAGES & 1);
        if (follows) barrier_wait(bars + 8 * (K_FULL + next), (used + 1) / STAGES & 1);
      }
      if (partly) {
        barrier_wait(bars + 8 * (V_INSPECTED + stage), inspected >> stage & 1);
        inspected ^= 1 << stage;
        const u32 v = smem + V_AT + stage * TILE, found = smem + FOUND_AT + 8 * stage;
        if (load_shared(found)) {
          if (!add) clear(o, l);
          add = true;
          take_infinite(o, p, v, seen_from(KEYS * i));
        }
        if (load_shared(found + 4)) {  // takes its turn after the first step's values
          issue_first();
          wgmma_wait<0>();
          between();
          add = true;
          shrinks = false;
#pragma unroll
          for (int j = 0; j < 16; ++j) p[j] = 0;
          take_infinite(o, p1, v + STEP_BYTES, seen_from(KEYS * i + KEYS / 2));
        }
      }
    };
    // The last block's values, with block i's scores around the rescaling between their steps, so that the
    // tensor core has something to do. What it has been given is done when the other warpgroup's
    // comes: issuing a product waits for the one but two before.
    const auto advance_to = [&](int i, bool fresh, bool maybe) __attribute__((always_inline)) {
      group_sync(TURN + group, 256);
      issue_first();
      touch(s);
      wgmma_fence();
      scores<0, LATE>(s, q, keys_next);
      wgmma_commit();
      wgmma_wait<1>();
      between();
      touch(s);
      wgmma_fence();
      scores<LATE, D / 16>(s, q, keys_next);
      wgmma_commit();
      issue_second();
      group_arrive(TURN + (group ^ 1), 256);
      wgmma_wait<0>();
      touch(s);
      touch(o);
      touch(l);
      ++used;
      weigh(i, false, fresh, maybe);
    };
    const bool folds = (w.blocks - 1) / BLOCKS_PER_LEAF > w.first / BLOCKS_PER_LEAF;
    if (folds) clear(total);
    weigh(w.first, true, true, true);
    int i = w.first + 1;
    if (!a.window) {
      for (const int whole = w.whole / KEYS; i < whole; ++i) {
        if (i % BLOCKS_PER_LEAF) {
          advance_to(i, false, false);
        } else {
          advance_to(i, true, false);
        }
      }
    }
    for (; i < w.blocks; ++i) advance_to(i, i % BLOCKS_PER_LEAF == 0, true);
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
    scores<0, D / 16>(s, q, key_tile(used % STAGES));
    wgmma_commit();
    wgmma_wait<1>();
    touch(o);
    touch(l);
    release(bars + 8 * (V_EMPTY + last));
    if (CHECK && thread == 0) {
      walk.leaf(leaf_from, KEYS * i);
      a.ticket.judge(walk.done());
    }
    if (folds) {
      clear_skipped(o, leaf);
      fold<true>(o, l, leaf, total);
    }
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
                      int key_length, int position, int sequences, int section, int window, const float* sinks, float* lse,
                      long long lse_stride_b, long long lse_stride_h, long long lse_stride_t,
                      float factor TICKET) {
  const Arguments a = {out, out_stride_b, out_stride_h, out_stride_t, query_starts, key_starts,
                       positions, query_length, key_length, position, sequences, q_h, q_h / k_h,
                       window, sinks, lse, lse_stride_b, lse_stride_h, lse_stride_t, section, factor HAND_TICKET};
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
