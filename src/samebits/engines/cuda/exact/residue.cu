// Products of residues for sm_90a: y[j, r, c] = sum_k a[j, r, k] b[j, c, k] modulo the j-th number.
//
// A plane j is a product of int8 whose sums the tensor core holds in int32 without an error, so tiles
// and order are free. Work units are tiles of all planes, plane by plane: blocks walk over them, and
// the ring of shared memory that a producer warp fills runs on from unit to unit. Two consumer
// warpgroups own 64 rows of a tile each; what leaves is one byte a sum.
//
// A tile that would reach beyond the last row or column begins earlier and computes some results
// twice. Where there are fewer rows or columns than a tile has, it reaches into the next plane, and
// those results are not stored.
//
// Compile-time parameters (-D): GROUPS, COLS, STAGES, BAND; moduli.cuh has the numbers.
#include "hopper.cuh"
#include "moduli.cuh"
#include "wgmma.cuh"

constexpr int ROWS = 64 * GROUPS, REGISTERS = COLS / 2, OCTETS = COLS / 8;
constexpr int BLOCK_K = 128;
constexpr u32 A_BYTES = ROWS * 128, STAGE = A_BYTES + COLS * 128;
constexpr u32 STAGING_AT = STAGES * STAGE;  // 16 rows of 128 columns a warp
constexpr u32 FULL_AT = STAGING_AT + 4 * GROUPS * 2048, EMPTY_AT = FULL_AT + 8 * STAGES;

struct Unit { int plane, row, col; };

// Bands of BAND rows of tiles, column by column, so that what runs at a time shares its operands in L2.
DEVICE bool unit_at(int rows, int cols, int index, Unit& u) {
  const int high = (rows + ROWS - 1) / ROWS, wide = (cols + COLS - 1) / COLS;
  u.plane = index / (high * wide);
  index -= u.plane * high * wide;
  const int band = index / (BAND * wide), inside = index % (BAND * wide);
  const int height = min(high - band * BAND, BAND);
  u.row = max(0, min((band * BAND + inside % height) * ROWS, rows - ROWS));
  u.col = max(0, min(inside / height * COLS, cols - COLS));
  return u.plane < PLANES;
}

struct Slot {
  u32 stage = 0, round = 0;
  DEVICE void advance() {
    if (++stage == STAGES) stage = 0, round ^= 1;
  }
};

DEVICE void produce(const TensorMap* a, const TensorMap* b, int rows, int cols, int k, u32 smem) {
  Slot slot;
  Unit u;
  for (int index = blockIdx.x; unit_at(rows, cols, index, u); index += gridDim.x)
    for (int at = 0; at < k; at += BLOCK_K, slot.advance()) {
      const u32 to = smem + slot.stage * STAGE, full = smem + FULL_AT + 8 * slot.stage;
      const int pair = at / 2;  // the copy engine moves bytes in pairs
      barrier_wait(smem + EMPTY_AT + 8 * slot.stage, slot.round ^ 1);
      barrier_expect(full, STAGE);
      matrix_copy(to, a, full, pair, u.plane * rows + u.row);
      matrix_copy(to + A_BYTES, b, full, pair, u.plane * cols + u.col);
    }
}

// The warp no longer needs what a stage holds.
DEVICE void release(u32 empty) {
  if ((threadIdx.x & 31) == 0) barrier_arrive(empty);
}

// The sums over k, in int32.
DEVICE void sum(u32 (&acc)[REGISTERS], u32 smem, int blocks, int group, Slot& slot) {
  u32 before = 0;
  for (int i = 0; i < blocks; ++i, slot.advance()) {
    const u32 at = uniform(smem + slot.stage * STAGE);
    const Matrix a = swizzled_matrix(at + group * 64 * 128), b = swizzled_matrix(at + A_BYTES);
    barrier_wait(smem + FULL_AT + 8 * slot.stage, slot.round);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma(acc, a.at(step * 32), b.at(step * 32), i > 0 || step > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) release(before);
    before = smem + EMPTY_AT + 8 * slot.stage;
  }
  wgmma_wait<0>();
  touch(acc);
  release(before);
}

// A sum modulo p, 0 <= result < p: `lift` is a multiple of p above 2^30, so quotients are exact.
DEVICE u32 residue(u32 sum, u32 p, u32 reciprocal, u32 lift) {
  const u32 x = sum + lift;
  return x - (__umulhi(x, reciprocal) >> 7) * p;
}

// The warp's 16 rows to y [rows, cols], through shared memory, so that whole lines leave.
DEVICE void store(const u32 (&acc)[REGISTERS], unsigned char* y, int rows, int cols, int plane,
                  u32 staging, int row, int col) {
  const u32 p = MODULI[plane], reciprocal = RECIPROCALS[plane], lift = LIFTS[plane];
  const int lane = threadIdx.x & 31;
  const auto place = [&](int r, int piece) { return staging + r * 128 + (piece ^ (r & 7)) * 16; };
#pragma unroll
  for (int first = 0; first < OCTETS; first += 16) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 && first + i < OCTETS; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 low = residue(acc[4 * (first + i) + 2 * half], p, reciprocal, lift);
        const u32 high = residue(acc[4 * (first + i) + 2 * half + 1], p, reciprocal, lift);
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(place(lane / 4 + 8 * half, i / 2) + i % 2 * 8 + lane % 4 * 2),
                     "h"((u16)(low | high << 8))
                     : "memory");
      }
    __syncwarp();
    const int count = (OCTETS - first < 16 ? OCTETS - first : 16) / 2;
#pragma unroll
    for (int i = lane; i < 16 * count; i += 32) {
      const int r = i / count, piece = i % count, c = col + 8 * first + 16 * piece;
      uint4 x;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(place(r, piece))
                   : "memory");
      if (row + r < rows && c < cols)
        *(uint4*)(y + ((long long)plane * rows + row + r) * cols + c) = x;
    }
  }
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    residue_product(MATRIX(a), MATRIX(b), unsigned char* y, int rows, int cols, int k) {
  extern __shared__ __align__(1024) unsigned char base[];
  const u32 smem = shared_address(base);
  const int warp = uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(smem + FULL_AT + 8 * i, 1);
      barrier_init(smem + EMPTY_AT + 8 * i, 4 * GROUPS);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < 4 * GROUPS) {
    if (GROUPS == 2) registers_raise<232>();
    Slot slot;
    Unit u;
    for (int index = blockIdx.x; unit_at(rows, cols, index, u); index += gridDim.x) {
      u32 acc[REGISTERS];
      sum(acc, smem, k / BLOCK_K, warp / 4, slot);
      store(acc, y, rows, cols, u.plane, smem + STAGING_AT + warp * 2048, u.row + warp * 16, u.col);
    }
  } else {
    if (GROUPS == 2) registers_lower<40>();
    if (threadIdx.x == 128 * GROUPS) produce(&a, &b, rows, cols, k, smem);
  }
}
