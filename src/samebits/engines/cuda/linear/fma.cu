// Products by chains of IEEE fma on the CUDA cores: y[m, n] = epilogue(chain over k of x[m, k] w[n, k]).
//
// A block owns a tile of y, a thread TM x TN numbers of it, each in one register from +0 on, k
// ascending: the order and the rounding are the contract's whatever the tile is. Blocks of BK of k travel
// to shared memory STAGES - 1 ahead, rows as they are. A thread reads its rows and its columns in vectors
// along k, AHEAD vectors before it multiplies them, across blocks too. The last, partial block is multiplied as
// far as k goes: nothing is added for what is not there, since -0 + 0 is not -0.
//
// What shared memory delivers is the limit of small tiles. Two lanes that share a vector cost one only if
// their numbers differ in bit 0 or bit 1 alone: so bit 0 picks a row and bit 1 a column, or the other way
// round. Rows are 16 bytes longer than a block, an odd number of vectors: eight rows lie in different banks.
//
// Constants: WR, WC: warps along rows and columns; LR: lanes of a warp along rows, 1 to 8; TM, TN: numbers
// of a thread; BK, STAGES, AHEAD; UNROLL: vectors along k in the code of a loop; HELP: further warps, which fetch for all, or 0: all fetch; BAND: rows of
// tiles that are worked on side by side; IN, OUT as in fma.cuh.
#include "fma.cuh"

constexpr int kWarps = WR * WC, kThreads = 32 * (kWarps + HELP);
constexpr int kFetchers = 32 * (HELP ? HELP : kWarps), kFirst = kThreads - kFetchers;
constexpr int LC = 32 / LR, BM = WR * LR * TM, BN = WC * LC * TN;
constexpr int VEC = 16 / sizeof(In), kPitch = BK + VEC;
constexpr int kVectors = BK / VEC;           // of a row
constexpr int kRows = kFetchers / kVectors;  // that are fetched at a time
constexpr int kUnrolled = UNROLL < kVectors ? UNROLL : kVectors;
static_assert(kFetchers % kVectors == 0 && kVectors % kUnrolled == 0 && kUnrolled % (AHEAD + 1) == 0 && STAGES > 1);

struct Stage {
  In x[BM][kPitch], w[BN][kPitch];
};

// What a thread fetches of ROWS rows of a matrix: a vector of every kRows-th. Beyond the last row that one is
// fetched again, and what it gives is not stored.
template <int ROWS>
struct Share {
  static constexpr int kCount = (ROWS + kRows - 1) / kRows;
  const In* from[kCount];

  DEVICE Share(const In* p, long long pitch, int first, int rows) {
    const int id = threadIdx.x - kFirst;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      from[i] = p + min(first + id / kVectors + i * kRows, rows - 1) * pitch + id % kVectors * VEC;
  }
  DEVICE void fetch(const In (*to)[kPitch], int k0, u32 bytes) const {
    const int id = threadIdx.x - kFirst;
    const u32 place = shared_address(&to[id / kVectors][id % kVectors * VEC]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (ROWS % kRows && i + 1 == kCount && id / kVectors + i * kRows >= ROWS) break;
      copy_front(place + i * kRows * kPitch * sizeof(In), from[i] + k0, bytes);
    }
  }
};

// VEC numbers along k of each of a thread's rows and columns.
struct Step {
  Vector a[TM], b[TN];

  DEVICE void read(const In* x, const In* w) {
#pragma unroll
    for (int i = 0; i < TM; ++i) a[i].read(x + i * LR * kPitch);
#pragma unroll
    for (int j = 0; j < TN; ++j) b[j].read(w + j * LC * kPitch);
  }
  DEVICE void multiply(float (&acc)[TM][TN]) const {
#pragma unroll
    for (int at = 0; at < VEC; ++at) {
      float av[TM], bv[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) av[i] = a[i].at(at);
#pragma unroll
      for (int j = 0; j < TN; ++j) bv[j] = b[j].at(at);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] = __fmaf_rn(av[i], bv[j], acc[i][j]);
    }
  }
};

// x [m, k], w [n, k], rows `x_pitch` and `w_pitch` elements apart and 16-byte aligned; y [m, n]; c: one
// number a column, or null.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    linear_fma(const In* __restrict__ x, const In* __restrict__ w, const In* __restrict__ c, Out* __restrict__ y,
               long long x_pitch, long long w_pitch, long long y_pitch, int m, int n, int k, float alpha, float beta) {
  extern __shared__ __align__(16) unsigned char memory[];
  Stage* stages = reinterpret_cast<Stage*>(memory);
  await_predecessor();
  admit_successor();
  const int high = (m + BM - 1) / BM, wide = (n + BN - 1) / BN;
  const int band = blockIdx.x / (BAND * wide) * BAND, height = min(high - band, BAND);
  const int inside = blockIdx.x % (BAND * wide);
  const int row0 = (band + inside % height) * BM, col0 = inside / height * BN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int blocks = k / BK;  // whole ones
  const bool fetches = !HELP || warp >= kWarps;

  const Share<BM> xs(x, x_pitch, row0, m);
  const Share<BN> ws(w, w_pitch, col0, n);
  const int from_here = k - (static_cast<int>(threadIdx.x) - kFirst) % kVectors * VEC;
  const auto bring = [&](int block, int slot) {
    const int left = from_here - block * BK;
    const u32 bytes = min(max(left, 0), VEC) * sizeof(In);
    xs.fetch(stages[slot].x, block * BK, bytes);
    ws.fetch(stages[slot].w, block * BK, bytes);
    copies_commit();
  };
  const auto arrived = [&] {
    if (fetches) copies_wait<STAGES - 2>();
    block_wait();
  };
  if (fetches)
    for (int i = 0; i < STAGES - 1; ++i) bring(i, i);
  arrived();
  if (HELP && fetches) {
    for (int i = 0, slot = STAGES - 1; i < blocks; ++i) {
      bring(i + STAGES - 1, slot);
      slot = slot + 1 == STAGES ? 0 : slot + 1;
      arrived();
    }
    return;
  }

  const int lane_row = LR > 4 ? lane / 2 % LR : (lane % 2 + lane / 16 * 2) % LR;
  const int lane_col = LR > 4 ? lane % 2 + lane / 16 * 2 : LR > 2 ? lane / 2 % LC : lane / LR;
  const int row = warp / WC * LR * TM + lane_row, col = warp % WC * LC * TN + lane_col;
  float acc[TM][TN] = {};
  Step step[AHEAD + 1];
#pragma unroll
  for (int s = 0; s < AHEAD; ++s) step[s].read(&stages[0].x[row][s * VEC], &stages[0].w[col][s * VEC]);
  const In *a = stages[0].x[row], *b = stages[0].w[col];
  int before = STAGES - 1, now = 0;
  for (int i = 0; i < blocks; ++i) {
    const int next = now + 1 == STAGES ? 0 : now + 1;
#pragma unroll 1
    for (int first = 0; first < kVectors; first += kUnrolled) {
#pragma unroll
      for (int s = 0; s < kUnrolled; ++s) {
        const int ahead = s + AHEAD;
        if (ahead == kUnrolled) {
          a += kUnrolled * VEC, b += kUnrolled * VEC;
          if (first + kUnrolled == kVectors) {
            if (!HELP) copies_wait<STAGES - 2>();
            block_wait();
            a = stages[next].x[row], b = stages[next].w[col];
          }
        }
        const int at = ahead % kUnrolled * VEC;
        step[ahead % (AHEAD + 1)].read(a + at, b + at);
        if (!HELP && s == 0 && first == 0) bring(i + STAGES - 1, before);  // all have read what lay there
        step[s % (AHEAD + 1)].multiply(acc);
      }
    }
    before = now;
    now = next;
  }
  int at = blocks * BK;
  for (; at + VEC <= k; at += VEC, a += VEC, b += VEC) {
    step[0].read(a, b);
    step[0].multiply(acc);
  }
  for (; at < k; ++at, ++a, ++b) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
        acc[i][j] = __fmaf_rn(widened(a[i * LR * kPitch]), widened(b[j * LC * kPitch]), acc[i][j]);
  }

#pragma unroll
  for (int j = 0; j < TN; ++j) {
    const int to_col = col0 + col + j * LC;
    if (to_col >= n) continue;
    const float bias = c ? __fmul_rn(widened(c[to_col]), beta) : 0.0f;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int to_row = row0 + row + i * LR;
      if (to_row >= m) continue;
      put(y + to_row * y_pitch + to_col, finished(acc[i][j], alpha, c != nullptr, bias));
    }
  }
}
