// The producer's warpgroup: one thread keeps tiles on their way, three warps inspect values.
#pragma once
#include "tile.cuh"

DEVICE void load_queries(u32 to, const TensorMap* map, u32 bar, int t, int h, int b) {
  barrier_expect(bar, TILE);
#pragma unroll
  for (int c = 0; c < D / 64; ++c) tensor_copy(to + c * CHUNK, map, bar, 64 * c, t, h, b);
}

// A tile of keys or values. Each block of a cluster fetches its share for all of them.
DEVICE void load_keys(u32 to, const TensorMap* map, u32 bar, int t, int h, int b) {
  barrier_expect(bar, TILE);
  const int share = KEYS / CLUSTER, rank = CLUSTER > 1 ? cluster_rank() : 0;
#pragma unroll
  for (int c = 0; c < D / 64; ++c) {
    const u32 there = to + c * CHUNK + rank * share * 128;
    if (CLUSTER == 1) {
      tensor_copy(there, map, bar, 64 * c, t, h, b);
    } else {
      tensor_multicast(there, map, bar, 64 * c, t + rank * share, h, b, (1 << CLUSTER) - 1);
    }
  }
}

DEVICE void produce(const Arguments& a, const TensorMap* q, const TensorMap* k, const TensorMap* v,
                    u32 smem, u32 bars) {
  u32 loaded = 0, tiles = 0;
  Work w;
  for (int round = 0; next_work(a, round, w); ++round) {
    if (w.blocks == w.first) continue;
    const int q_batch = a.query_starts ? 0 : w.batch, k_batch = a.key_starts ? 0 : w.batch;
    const int k_head = w.head / a.group;
    barrier_wait(bars + 8 * Q_EMPTY, (tiles++ & 1) ^ 1);
    load_queries(smem + Q_AT, q, bars + 8 * Q_FULL, w.query_base + w.row, w.head, q_batch);
    for (int i = w.first; i < w.blocks; ++i, ++loaded) {
      const u32 stage = loaded % STAGES, parity = (loaded / STAGES & 1) ^ 1;
      const int key = w.key_base + KEYS * i;
      barrier_wait(bars + 8 * (K_EMPTY + stage), parity);
      load_keys(smem + K_AT + stage * TILE, k, bars + 8 * (K_FULL + stage), key, k_head, k_batch);
      barrier_wait(bars + 8 * (V_EMPTY + stage), parity);
      load_keys(smem + V_AT + stage * TILE, v, bars + 8 * (V_FULL + stage), key, k_head, k_batch);
    }
  }
}

// One warp no longer needs a tile of keys or values: its place is filled by all blocks of the cluster.
DEVICE void release(u32 bar) {
  const int lane = threadIdx.x & 31;
  if (CLUSTER == 1) {
    if (lane == 0) barrier_arrive(bar);
  } else if (lane < CLUSTER) {
    barrier_arrive_at(bar, lane);
  }
}

// The producer's other warps look for values that are not finite in the blocks that some row sees
// only in part, and leave a word a step: not 0 if there is one.
DEVICE void inspect(const Arguments& a, u32 smem, u32 bars) {
  const int thread = threadIdx.x - 32, warp = thread / 32;
  u32 loaded = 0;
  Work w;
  for (int round = 0; next_work(a, round, w); ++round) {
    for (int i = w.first; i < w.blocks; ++i, ++loaded) {
      const u32 stage = loaded % STAGES, v = smem + V_AT + stage * TILE;
      barrier_wait(bars + 8 * (V_FULL + stage), loaded / STAGES & 1);
      for (int step = 0; w.partly(i) && step < 2; ++step) {
        u32 sum = 0;  // of 0 * value: NaN, or +0
        for (int piece = thread; piece < 8 * D; piece += 32 * INSPECTORS) {
          const u32 at = v + piece / 512 * CHUNK + step * STEP_BYTES + piece % 512 * 16;
          u32 x[4];
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                       : "r"(at));
#pragma unroll
          for (int j = 0; j < 4; ++j)
            asm("fma.rn." TYPE "x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x[j]), "r"(0));
        }
        const u32 found = __any_sync(~0u, sum != 0);
        if (thread % 32 == 0)
          asm volatile("st.shared.u8 [%0], %1;" ::"r"(smem + FOUND_AT + 8 * stage + 4 * step + warp),
                       "r"(found)
                       : "memory");
      }
      __syncwarp();
      if (w.partly(i) && thread % 32 == 0) barrier_arrive(bars + 8 * (V_INSPECTED + stage));
      release(bars + 8 * (V_EMPTY + stage));
    }
  }
}
