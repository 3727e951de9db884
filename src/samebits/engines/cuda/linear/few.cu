// Products of few rows and few columns by chains of IEEE fma: one warp of a block multiplies, others bring it what it
// needs.
//
// With so few chains nothing counts but that each makes a step in the four cycles that an fma takes until the next
// can use its sum. So the warp that multiplies waits for nobody: it asks ahead whether the next stage has come, reads
// AHEAD vectors before it multiplies them, and all that takes the cycles between two fma.
//
// A stage is kDepth fp32 numbers along k of every row of x and w, rows 16 bytes longer: an odd number of vectors, so
// that eight rows lie in different banks. Numbers of 16 bits are widened by those who fetch them, for the warp that
// multiplies has no time for it.
//
// Constants: ROWS, COLS of the tile; STAGES; FETCH: warps that fetch; IN, OUT as in fma.cuh.
#include "fma.cuh"

constexpr int AHEAD = 3;
constexpr int PARTS = 2;  // stages in the code of the loop
constexpr int TM = ROWS * COLS > 32 ? ROWS * COLS / 32 : 1, LR = ROWS / TM;  // rows of a thread, lanes along rows
constexpr int kThreads = 32 * (1 + FETCH);
constexpr int VEC = 4, kDepth = 128, kVectors = kDepth / VEC;
constexpr int kPitch = kDepth * 4 + 16, kStage = (ROWS + COLS) * kPitch;  // bytes
constexpr int kShare = (ROWS + COLS + FETCH - 1) / FETCH;                 // rows that a warp fetches
static_assert(LR * COLS <= 32 && ROWS % TM == 0 && kVectors % (AHEAD + 1) == 0);
static_assert(STAGES >= PARTS + 2, "those who fetch would wait for ever");

// VEC numbers along k of each of a thread's rows, and of its column.
struct Step {
  u32 a[TM][VEC], b[VEC];

  DEVICE void read(const unsigned char* x, const unsigned char* w) {
    get(b, w);
#pragma unroll
    for (int i = 0; i < TM; ++i) get(a[i], x + i * LR * kPitch);
  }
  // The first `count` of them.
  DEVICE void multiply(float (&acc)[TM], int count = VEC) const {
#pragma unroll
    for (int at = 0; at < VEC; ++at)
#pragma unroll
      for (int i = 0; i < TM; ++i)
        if (at < count) acc[i] = __fmaf_rn(__uint_as_float(a[i][at]), __uint_as_float(b[at]), acc[i]);
  }
  DEVICE void ready() {
    touch(b);
#pragma unroll
    for (int i = 0; i < TM; ++i) touch(a[i]);
  }
  DEVICE static void get(u32 (&to)[VEC], const unsigned char* from) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
};

#if IN
constexpr int HELD = 6;  // stages on their way, in registers

// Four numbers of 16 bits on their way.
struct Held {
  u32 words[2];

  // Rows are aligned: eight bytes of which some are the row's can be read, and nobody multiplies the others.
  DEVICE void read(const In* from, bool there) {
    uint2 v{};
    if (there) v = __ldcg(reinterpret_cast<const uint2*>(from));
    words[0] = v.x, words[1] = v.y;
  }
  DEVICE void write(unsigned char* to) const {
    u32 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __float_as_uint(widened(static_cast<u16>(words[i / 2] >> i % 2 * 16)));
    *reinterpret_cast<uint4*>(to) = uint4{v[0], v[1], v[2], v[3]};
  }
};
#endif

// A place in the ring of stages: its barrier, and the parity of the phase in which it is filled.
struct Place {
  u32 full, bar, parity;

  DEVICE bool advance() {  // whether that was the last of the ring
    const bool wraps = bar == full + (STAGES - 1) * 8;
    bar = wraps ? full : bar + 8;
    parity ^= wraps;
    return wraps;
  }
  DEVICE u32 free() const { return bar + STAGES * 8; }
};

// x [m, k], w [n, k], rows `x_pitch` and `w_pitch` elements apart and 16-byte aligned; y [m, n]; c: one
// number a column, or null.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    linear_few(const In* __restrict__ x, const In* __restrict__ w, const In* __restrict__ c, Out* __restrict__ y,
               long long x_pitch, long long w_pitch, long long y_pitch, int m, int n, int k, float alpha, float beta) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int lane = threadIdx.x % 32, wide = (n + COLS - 1) / COLS;
  const int row0 = blockIdx.x / wide * ROWS, col0 = blockIdx.x % wide * COLS;
  const int stages = (k + kDepth - 1) / kDepth;
  Place place{shared_address(memory + STAGES * kStage), 0, 0};
  touch(place.full);
  place.bar = place.full;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(place.bar + s * 8, IN ? FETCH : 32 * FETCH);
      barrier_init(place.free() + s * 8, 1);
    }
    barrier_init(place.free() + STAGES * 8, 1);  // nobody waits for this one
  }

  if (threadIdx.x >= 32) {
    const int first = threadIdx.x / 32 - 1;
    const In* from[kShare];  // rows first, first + FETCH, ...: those of x, then those of w
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int r = first + i * FETCH;
      from[i] = r < ROWS ? x + min(row0 + r, m - 1) * x_pitch : w + min(col0 + r - ROWS, n - 1) * w_pitch;
    }
#pragma unroll
    for (int i = 0; i < kShare; ++i) touch(from[i] += lane * VEC);
    int left = k - lane * VEC;  // of a row, from where this lane reads
    touch(left);
    block_wait();
    await_predecessor();
    // One stage more than there is, for the warp that multiplies asks for it.
#if IN == 0
    u32 to = shared_address(memory) + first * kPitch + lane * 16;
#pragma unroll 1
    for (int s = 0; s <= stages; ++s, left -= kDepth) {
      if (s >= STAGES) barrier_wait(place.free(), place.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kShare; ++i)
        if (first + i * FETCH < ROWS + COLS)
          copy_front(to + i * FETCH * kPitch, from[i] + s * kDepth, min(max(left, 0), VEC) * 4);
      copies_arrive(place.bar);
      to += kStage;
      if (place.advance()) to -= STAGES * kStage;
    }
    copies_commit();
    copies_wait<0>();  // the memory that they write to is the block's until then
#else
    unsigned char* to = memory + first * kPitch + lane * 16;
    Held held[HELD][kShare];
    const auto load = [&](Held(&into)[kShare], int s) {
#pragma unroll
      for (int i = 0; i < kShare; ++i)
        if (first + i * FETCH < ROWS + COLS) into[i].read(from[i] + s * kDepth, left > s * kDepth);
    };
#pragma unroll
    for (int h = 0; h < HELD; ++h) load(held[h], h);
#pragma unroll 1
    for (int first_held = 0; first_held <= stages; first_held += HELD)
#pragma unroll
      for (int h = 0; h < HELD; ++h) {
        const int s = first_held + h;
        if (s > stages) break;
        if (s >= STAGES) barrier_wait(place.free(), place.parity ^ 1);
#pragma unroll
        for (int i = 0; i < kShare; ++i)
          if (first + i * FETCH < ROWS + COLS) held[h][i].write(to + i * FETCH * kPitch);
        warp_wait();
        if (lane == 0) barrier_arrive(place.bar);
        load(held[h], s + HELD);
        to += kStage;
        if (place.advance()) to -= STAGES * kStage;
      }
#endif
    return;
  }
  block_wait();
  await_predecessor();
  admit_successor();

  const int lane_row = LR > 2 ? (lane % 2 + lane / 16 * 2) % LR : lane % LR;
  const int lane_col = LR > 2 ? lane / 2 % COLS : lane / LR % COLS;
  const int to_col = col0 + lane_col;
  const In addend = c && to_col < n ? c[to_col] : In(0);
  u32 a = lane_row * kPitch, b = (ROWS + lane_col) * kPitch, before = place.free() + STAGES * 8;
  float acc[TM] = {};
  // Vectors that are read and not yet multiplied: at first +0, whose products leave the sums +0.
  Step step[AHEAD + 1] = {};
  int left = k / (kDepth * PARTS);
  touch(left), touch(a), touch(b);
#pragma unroll
  for (int s = 0; s <= AHEAD; ++s) step[s].ready();
  while (!barrier_test(place.bar, 0)) continue;
  // Reads the stage at `place`, multiplies what was read AHEAD vectors before, and moves on to the next stage, which has
  // come then.
  const auto stage = [&] {
    Place next = place;
    u32 next_a = a, next_b = b;
#pragma unroll
    for (int s = 0; s < kVectors; ++s) {
      step[s % (AHEAD + 1)].read(memory + a + s * 16, memory + b + s * 16);
      step[(s + 1) % (AHEAD + 1)].multiply(acc);
      if (s == AHEAD) {  // nothing of the stage before is needed any more
        warp_wait();
        if (lane == 0) barrier_arrive(before);
        before = place.free();
        touch(before);
      }
      if (s == 8) {
        next_a += next.advance() ? kStage - STAGES * kStage : kStage;
        next_b += next_a - a;
        touch(next.bar), touch(next.parity), touch(next_a), touch(next_b);
      }
      if (s == kVectors * 3 / 4) barrier_wait(next.bar, next.parity);
    }
    place = next, a = next_a, b = next_b;
  };
#pragma unroll 1
  for (; left > 0; --left) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) stage();
  }
#pragma unroll
  for (int s = 1; s <= AHEAD; ++s) step[s % (AHEAD + 1)].multiply(acc);
#pragma unroll 1
  for (int rest = k % (kDepth * PARTS); rest > 0;) {
    barrier_wait(place.bar, place.parity);
#pragma unroll 1
    for (int s = 0; s < kVectors && rest > 0; s += AHEAD + 1, rest -= (AHEAD + 1) * VEC) {
#pragma unroll
      for (int i = 0; i <= AHEAD; ++i) step[i].read(memory + a + (s + i) * 16, memory + b + (s + i) * 16);
#pragma unroll
      for (int i = 0; i <= AHEAD; ++i) step[i].multiply(acc, rest - i * VEC);
    }
    const u32 jump = place.advance() ? kStage - STAGES * kStage : kStage;
    a += jump, b += jump;
  }

  if (to_col >= n || lane >= LR * COLS) return;
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int to_row = row0 + lane_row + i * LR;
    if (to_row < m) put(y + to_row * y_pitch + to_col, finished(acc[i], alpha, c != nullptr, __fmul_rn(widened(addend), beta)));
  }
}
