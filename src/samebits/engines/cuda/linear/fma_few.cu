// Products of few rows by chains of IEEE fma: y[m, n] = epilogue(chain over k of x[m, k] w[n, k]).
//
// The time is that of reading w. A block owns COLS columns, a lane one of them and every GROUPS-th row, and
// walks all of k in one register a number. Blocks of BK of k travel to shared memory STAGES - 1 ahead;
// rows there are 16 bytes longer, so that eight lanes read eight different banks.
//
// Constants: COLS: 8, 16 or 32; TM: rows of a lane; IN, OUT as in fma.cuh.
#include "fma.cuh"

constexpr int kThreads = 128, BK = 128, STAGES = 4;
constexpr int VEC = 16 / sizeof(In), kPitch = BK + VEC;
constexpr int GROUPS = kThreads / COLS, ROWS = GROUPS * TM;
constexpr int kVectors = BK / VEC;  // of a row

struct Stage {
  In w[COLS][kPitch], x[ROWS][kPitch];
};

__device__ __forceinline__ void fetch(In* to, const In* row, int at, int k) {
  const int left = (k - at) * static_cast<int>(sizeof(In)), bytes = left < 0 ? 0 : left < 16 ? left : 16;
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const In* from = bytes ? row + at : row;  // nothing is read of it
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void fetch(Stage& stage, const In* x, const In* w, long long x_pitch, long long w_pitch,
                                      int col0, int m, int n, int k0, int k) {
  for (int id = threadIdx.x; id < (COLS + ROWS) * kVectors; id += kThreads) {
    const int row = id / kVectors, at = id % kVectors * VEC;
    if (row < COLS) fetch(&stage.w[row][at], w + min(col0 + row, n - 1) * w_pitch, k0 + at, k);
    else fetch(&stage.x[row - COLS][at], x + min(row - COLS, m - 1) * x_pitch, k0 + at, k);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

struct Vector {
  alignas(16) In v[VEC];
  __device__ __forceinline__ explicit Vector(const In* p) {
    *reinterpret_cast<uint4*>(v) = *reinterpret_cast<const uint4*>(p);
  }
};

// Arguments as linear_fma's.
extern "C" __global__ void __launch_bounds__(kThreads)
    linear_fma_few(const In* __restrict__ x, const In* __restrict__ w, const In* __restrict__ c, Out* __restrict__ y,
                   long long x_pitch, long long w_pitch, long long y_pitch, int m, int n, int k, float alpha,
                   float beta) {
  extern __shared__ __align__(16) unsigned char memory[];
  Stage* stages = reinterpret_cast<Stage*>(memory);
  const int col0 = blockIdx.x * COLS, column = threadIdx.x % COLS, group = threadIdx.x / COLS;
  const int blocks = (k + BK - 1) / BK;
  for (int i = 0; i < STAGES - 1; ++i) fetch(stages[i], x, w, x_pitch, w_pitch, col0, m, n, i * BK, k);

  float acc[TM] = {};
  for (int i = 0; i < blocks; ++i) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    const int ahead = i + STAGES - 1;
    fetch(stages[ahead % STAGES], x, w, x_pitch, w_pitch, col0, m, n, ahead * BK, k);
    if (group >= m) continue;  // this warp only fetches, or has lanes without a row
    const Stage& now = stages[i % STAGES];
    const int steps = min(BK, k - i * BK), whole = steps / VEC * VEC;
    for (int at = 0; at < whole; at += VEC) {
      const Vector wv(&now.w[column][at]);
#pragma unroll
      for (int r = 0; r < TM; ++r) {
        const Vector xv(&now.x[group + r * GROUPS][at]);
#pragma unroll
        for (int j = 0; j < VEC; ++j) acc[r] = __fmaf_rn(widened(xv.v[j]), widened(wv.v[j]), acc[r]);
      }
    }
    for (int at = whole; at < steps; ++at)
#pragma unroll
      for (int r = 0; r < TM; ++r)
        acc[r] = __fmaf_rn(widened(now.x[group + r * GROUPS][at]), widened(now.w[column][at]), acc[r]);
  }

  const int at = col0 + column;
  if (at >= n) return;
  const float bias = c ? __fmul_rn(widened(c[at]), beta) : 0.0f;
#pragma unroll
  for (int r = 0; r < TM; ++r) {
    const int row = group + r * GROUPS;
    if (row < m) round_to(y + row * y_pitch + at, finished(acc[r], alpha, c != nullptr, bias));
  }
}
