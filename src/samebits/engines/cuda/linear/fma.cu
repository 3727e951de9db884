// Products by chains of IEEE fma on the CUDA cores: y[m, n] = epilogue(chain over k of x[m, k] w[n, k]).
//
// A block owns a tile of y, a thread TM x TN numbers of it, each in one register from +0 on, k
// ascending: the order and the rounding are the contract's whatever the tile is. Blocks of BK of k
// are fetched while the ones before them are multiplied, and turned round on their way into shared
// memory, so that a thread reads its rows and columns in vectors of four. The last block of k is
// multiplied as far as k goes: nothing is added for what is not there, since -0 + 0 is not -0.
//
// Constants: WR, WC warps of a block along rows and columns; TM, TN numbers of a thread, multiples
// of four; IN, OUT: 0 fp32, 1 bf16, 2 fp16; BAND: rows of tiles that are worked on side by side.
#include "fma.cuh"

constexpr int kThreads = 32 * WR * WC, BK = 16;
constexpr int kLaneRows = 8, kLaneCols = 4;  // lanes of a warp
constexpr int BM = WR * kLaneRows * TM, BN = WC * kLaneCols * TN;
constexpr int kPack = 16 / sizeof(In);       // elements of a load
constexpr int kPad = 4;

// The share that a thread fetches of ROWS rows by BK of k: vectors along k.
template <int ROWS>
struct Share {
  static constexpr int kVectors = BK / kPack;  // of a row
  static constexpr int kTotal = ROWS * kVectors, kCount = (kTotal + kThreads - 1) / kThreads;
  alignas(16) In v[kCount][kPack];

  __device__ __forceinline__ void fetch(const In* p, long long pitch, int first, int rows, int k0, int k) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int id = threadIdx.x + i * kThreads;
      if (kTotal % kThreads && id >= kTotal) break;
      const int row = min(first + id / kVectors, rows - 1), at = k0 + id % kVectors * kPack;
      const In* from = p + row * pitch + at;
      if (at + kPack <= k) {
        *reinterpret_cast<uint4*>(v[i]) = *reinterpret_cast<const uint4*>(from);
      } else {
#pragma unroll
        for (int j = 0; j < kPack; ++j) v[i][j] = at + j < k ? from[j] : In(0);
      }
    }
  }
  __device__ __forceinline__ void put(float (*to)[ROWS + kPad]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int id = threadIdx.x + i * kThreads;
      if (kTotal % kThreads && id >= kTotal) break;
      const int row = id / kVectors, at = id % kVectors * kPack;
#pragma unroll
      for (int j = 0; j < kPack; ++j) to[at + j][row] = widened(v[i][j]);
    }
  }
};

struct Tile {
  float a[2][BK][BM + kPad], b[2][BK][BN + kPad];
};

// N numbers of a thread, groups of four that are `apart`.
template <int N>
__device__ __forceinline__ void read(float (&to)[N], const float* from, int apart) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + i / 4 * apart);
    to[i] = v.x;
    to[i + 1] = v.y;
    to[i + 2] = v.z;
    to[i + 3] = v.w;
  }
}

__device__ __forceinline__ void step(float (&acc)[TM][TN], const float* a, const float* b) {
  float av[TM], bv[TN];
  read(av, a, 4 * kLaneRows);
  read(bv, b, 4 * kLaneCols);
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) acc[i][j] = __fmaf_rn(av[i], bv[j], acc[i][j]);
}

// x [m, k], w [n, k], rows `x_pitch` and `w_pitch` elements apart and 16-byte aligned; y [m, n]; c: one
// number a column, or null.
extern "C" __global__ void __launch_bounds__(kThreads, kThreads >= 256 ? 2 : 4)
    linear_fma(const In* __restrict__ x, const In* __restrict__ w, const In* __restrict__ c, Out* __restrict__ y,
               long long x_pitch, long long w_pitch, long long y_pitch, int m, int n, int k, float alpha, float beta) {
  __shared__ __align__(16) Tile tile;
  const int high = (m + BM - 1) / BM, wide = (n + BN - 1) / BN;
  const int band = blockIdx.x / (BAND * wide) * BAND, height = min(high - band, BAND);
  const int inside = blockIdx.x % (BAND * wide);
  const int row0 = (band + inside % height) * BM, col0 = inside / height * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / WC * kLaneRows * TM + lane / kLaneCols * 4;
  const int col = warp % WC * kLaneCols * TN + lane % kLaneCols * 4;

  float acc[TM][TN] = {};
  Share<BM> xs;
  Share<BN> ws;
  xs.fetch(x, x_pitch, row0, m, 0, k);
  ws.fetch(w, w_pitch, col0, n, 0, k);
  xs.put(tile.a[0]);
  ws.put(tile.b[0]);
  __syncthreads();
  for (int k0 = 0, now = 0; k0 < k; k0 += BK, now ^= 1) {
    const bool more = k0 + BK < k;
    if (more) {
      xs.fetch(x, x_pitch, row0, m, k0 + BK, k);
      ws.fetch(w, w_pitch, col0, n, k0 + BK, k);
    }
    const float *a = &tile.a[now][0][row], *b = &tile.b[now][0][col];
    if (k0 + BK <= k) {
#pragma unroll
      for (int i = 0; i < BK; ++i) step(acc, a + i * (BM + kPad), b + i * (BN + kPad));
    } else {
      for (int i = 0; i < k - k0; ++i) step(acc, a + i * (BM + kPad), b + i * (BN + kPad));
    }
    if (more) {
      xs.put(tile.a[now ^ 1]);
      ws.put(tile.b[now ^ 1]);
      __syncthreads();
    }
  }

#pragma unroll
  for (int j = 0; j < TN; ++j) {
    const int at = col0 + col + j / 4 * 4 * kLaneCols + j % 4;
    if (at >= n) continue;
    const float bias = c ? __fmul_rn(widened(c[at]), beta) : 0.0f;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int to = row0 + row + i / 4 * 4 * kLaneRows + i % 4;
      if (to >= m) continue;
      round_to(y + to * y_pitch + at, finished(acc[i][j], alpha, c != nullptr, bias));
    }
  }
}
