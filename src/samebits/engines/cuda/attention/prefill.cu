// Prefill attention for sm_90a. One persistent block an SM: a producer warp keeps K and V tiles in flight (bulk
// tensor copies into a ring of shared memory), consumer warpgroups own 64 query rows each: two of them (pair.cuh)
// or three (triple.cuh).
//
// The arithmetic is the attention contract of sm_90 (contract/attention.py): leaves of LEAF keys at
// absolute positions, a power-of-two maximum raised every 64 keys, the chip's 2^x, the denominator
// from the matrix unit in the same chain as the values, leaves folded in ascending order. The
// running leaf lives in registers, the folded total in shared memory: it is touched once a leaf.
//
// Compile-time parameters (-D): HEAD_DIM 64 or 128, LEAF a multiple of 128, CAUSAL 0 or 1, BF16 1 or
// 0 (fp16), CLUSTER 1 or 2: blocks that fetch keys and values together; GROUPS 2 or 3; CHECK (path.cuh).
#if GROUPS == 3
#include "triple.cuh"
#else
#include "pair.cuh"
#endif

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
      if (i >= Q_EMPTY && i < K_FULL) arrivals = 4 * GROUPS / PARTS;
      if (i >= K_EMPTY && i < V_FULL) arrivals = 4 * GROUPS * CLUSTER;
      if (i >= V_EMPTY && i < V_INSPECTED) arrivals = (4 * GROUPS + INSPECTORS) * CLUSTER;
      if (i >= V_INSPECTED) arrivals = INSPECTORS;
      barrier_init(bars + 8 * i, arrivals);
    }
    fence_barrier_init();
  }
  if (GROUPS == 2 && threadIdx.x < 64) ((u32*)(base + ONES_AT))[threadIdx.x] = ONES;
  for (u32 i = threadIdx.x; i < STAGES * (V_TILE - TILE) / 4; i += blockDim.x)
    ((u32*)(base + V_AT + TILE + i / (CHUNK / 4) * V_TILE))[i % (CHUNK / 4)] = ONES;
  if (threadIdx.x < 2 * STAGES) ((u32*)(base + FOUND_AT))[threadIdx.x] = 0;
  fence_async();
  __syncthreads();
  if (CLUSTER > 1) cluster_sync();
  if (threadIdx.x < 128) {
    registers_lower<PRODUCERS>();
    if (threadIdx.x == 0) produce(a, &q, &k, &v, smem, bars);
    if (threadIdx.x >= 32) inspect(a, smem, bars);
  } else {
    registers_raise<CONSUMERS>();
    consume(a, base, smem, bars, uniform(threadIdx.x >> 7) - 1);
  }
  if (CLUSTER > 1) {  // until nobody writes to this block's memory any more
    __syncwarp();
    cluster_sync();
  }
}
