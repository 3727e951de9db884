// Partial sums of ranks on GPUs that see each other's memory: moved by stores over NVLink, folded
// pairwise in the order of ranks, bias and one rounding last. Two kernels, one result:
//
// join_packets   few numbers. Every rank stores its partial sums into the memory of all others, each
//                number with a mark; a thread waits for the marks of its own numbers and folds. One
//                way over NVLink and no barrier; a number costs 8 bytes.
// join_stream    many numbers. Every rank folds a share of them: partial sums go to the rank whose
//                share they are in, rounded results come back to all. A block of one rank works with
//                the block of the same index on the others and tells it of each step by a flag: while
//                a step's partial sums travel, those of the step before are folded, and results of the
//                one before that are taken in. Partial sums may have been copied before the launch,
//                while others were computed.
//
// Numbers are told apart from those of earlier calls by counters that the kernels keep themselves, so
// a captured graph can be replayed. A rank is never more than one call ahead: it ends a call with
// numbers that every other rank sent in it. So packets have two places by turns, and the memory of
// shares one: whoever sends sums into it has its receiver's results of the call before, which were
// folded after the sums there had been read; and results it sends after a flag of this call.
//
// A rank that does not answer for `patience` nanoseconds ends the waiting, for good: results that are
// missing are NaN, here and in all later calls, and a word in the host's memory says so. So does a rank
// that is in another call: what kind of call it is travels with packets and flags (`kind`).
#include "instructions.cuh"

#ifndef THREADS
#define THREADS 512
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
constexpr int LINE = 8;              // numbers of a thread; UNROLL lines of each thread are a step
constexpr int LOT = 4;               // numbers that are folded by a thread at a time: 16 bytes of fp32
constexpr u32 STEP = THREADS * LINE * UNROLL;

// What a rank keeps for itself, in words.
struct Counters { u32 packets, shares, done_packets, done_shares, failed; };

struct Way {                         // one thread's view of the ranks
  const u64* bases;                  // of every rank's memory
  Counters* counters;
  u64 host;                          // the word that says what failed
  u64 patience;
};

constexpr u32 ELSEWHERE = 0x100;     // in the host's word: the rank is in another call

// Ends all waiting, because of a rank. Always false.
DEVICE bool give_up_on(const Way& way, u32 rank, bool elsewhere) {
  store_now(&way.counters->failed, 1);
  tell_host(way.host, rank + 1 + (elsewhere ? ELSEWHERE : 0));
  return false;
}

enum Seen { LATE, THERE, OTHER };    // of what is waited for: not yet, yes, of another call

// Whether it is `look`ed upon as there before the patience ends. Never, once that has ended anywhere;
// nor where it is of another call twice in a row, since a look may come while something arrives.
template <class Look>
DEVICE bool wait_until(const Way& way, u32 rank, Look look) {
  if (look() == THERE) return true;
  u64 end = 0;
  bool before = false;
  for (u32 turn = 0;; ++turn) {
    const Seen seen = look();
    if (seen == THERE) return true;
    if (turn % 256 != 255) continue;
    if (load_now(&way.counters->failed)) return false;
    const u64 now = nanoseconds();
    if (end == 0) end = now + way.patience;
    if (now > end || (seen == OTHER && before)) return give_up_on(way, rank, seen == OTHER);
    before = seen == OTHER;
  }
}

// What all ranks must have in common in a call besides its count.
DEVICE u32 form(u32 columns, const void* bias) {
  const u32 mixed = columns * 0x9e3779b1u + (2 * KIND + (bias != nullptr)) * 0x85ebca77u;
  return mixed ^ mixed >> 16;
}

// ((p0 + p1) + (p2 + p3)) + ...
template <int FIRST, int COUNT>
DEVICE float fold(const float (&part)[RANKS]) {
  if constexpr (COUNT == 1) {
    return part[FIRST];
  } else {
    return __fadd_rn(fold<FIRST, COUNT / 2>(part), fold<FIRST + COUNT / 2, COUNT / 2>(part));
  }
}

// ---- results: bf16, fp16 or fp32 ----------------------------------------------------------------

#if KIND == 0
using Out = float;
DEVICE float widen(Out x) { return x; }
#elif KIND == 1
using Out = u16;
DEVICE float widen(Out x) { return __uint_as_float((u32)x << 16); }
DEVICE u32 round_pair(float low, float high) { return round_pair_bf16(low, high); }
#else
using Out = u16;
DEVICE float widen(Out x) { return widen_fp16(x); }
DEVICE u32 round_pair(float low, float high) { return round_pair_fp16(low, high); }
#endif

DEVICE void store_pair(Out* at, float low, float high) {
#if KIND == 0
  *reinterpret_cast<float2*>(at) = make_float2(low, high);
#else
  *reinterpret_cast<u32*>(at) = round_pair(low, high);
#endif
}

DEVICE float missing() { return __uint_as_float(0x7fffffffu); }

DEVICE float biased(float total, const Out* bias, u32 column) {
  return bias ? __fadd_rn(total, widen(bias[column])) : total;
}

// The block is through: the last one of the grid counts the call.
DEVICE void leave(u32* done, u32* counter, u32 value) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(done, 1) == gridDim.x - 1) {
      store_now(done, 0);
      store_now(counter, value);
    }
  }
}

// ---- few ----------------------------------------------------------------------------------------

// After 2^32 calls marks begin anew, without 0: places that no packet has reached yet hold it.
DEVICE u32 next_mark(u32 mark) { return mark == 0xffffffffu ? 2 : mark + 1; }

// The first mark of a packet tells calls apart, and the second one their kinds as well: in its upper
// half, where 2^16 pairs at most find room.
// pairs: of numbers; columns: of a row; place: where packets lie in every rank's memory, and
// `capacity` packets a sender.
extern "C" __global__ void __launch_bounds__(THREADS)
join_packets(const float2* partial, const Out* bias, Out* out, u32 pairs, u32 columns, u32 index,
             const u64* bases, Counters* counters, u64 host, u64 patience, u64 place, u32 capacity) {
  await_predecessor();
  admit_successor();
  const Way way{bases, counters, host, patience};
  const u32 mark = next_mark(load_now(&counters->packets));
  const u32 kind = mark ^ (pairs ^ form(columns, bias)) << 16;
  const u32 first = blockIdx.x * THREADS + threadIdx.x, stride = gridDim.x * THREADS;
  const u64 turn = place + (u64)(mark & 1) * RANKS * capacity * sizeof(Packet);
  const bool alive = load_now(&counters->failed) == 0;
  const u64 mine = turn + (u64)index * capacity * sizeof(Packet);
  for (u32 pair = first; pair < pairs && alive; pair += stride) {
    const float2 x = partial[pair];
#pragma unroll
    for (u32 rank = 0; rank < RANKS; ++rank)
      if (rank != index) store_packet(bases[rank] + mine + pair * (u64)sizeof(Packet), x.x, mark, x.y, kind);
  }
  const u64 here = bases[index] + turn;
  for (u32 pair = first; pair < pairs; pair += stride) {
    float low[RANKS], high[RANKS];
    bool whole = alive;
#pragma unroll
    for (u32 rank = 0; rank < RANKS; ++rank) {
      float2 x{};  // an element of low and high by its own number, or they would lie in memory
      if (rank == index) {
        x = partial[pair];
      } else {
        const u64 at = here + ((u64)rank * capacity + pair) * sizeof(Packet);
        whole = whole && wait_until(way, rank, [&] {
          const Packet got = load_packet(at);
          x.x = got.a, x.y = got.b;
          return got.mark_a != mark ? LATE : got.mark_b == kind ? THERE : OTHER;
        });
      }
      low[rank] = x.x, high[rank] = x.y;
    }
    const u32 column = pair * 2 % columns;
    const float a = biased(fold<0, RANKS>(low), bias, column);
    const float b = biased(fold<0, RANKS>(high), bias, column + 1);
    store_pair(out + (u64)pair * 2, whole ? a : missing(), whole ? b : missing());
  }
  leave(&counters->done_packets, &counters->packets, mark);
}

// ---- many ---------------------------------------------------------------------------------------

// Moves numbers of a step as they are: all loads of a thread, then all its stores. Neighbouring
// threads move neighbouring 16 bytes, since NVLink carries half a sector at the price of a whole one.
// from, to: addresses of number k of the share; first: the number at which a line of the block begins.
template <class T, class First, class From, class To, class Inside>
DEVICE void move(First first, From from, To to, Inside inside) {
  constexpr int NUMBERS = 16 / sizeof(T), WORDS = LINE / NUMBERS;
  uint4 word[UNROLL][WORDS];
  auto place = [&](int line, int i) { return first(line) + (i * THREADS + threadIdx.x) * NUMBERS; };
#pragma unroll
  for (int line = 0; line < UNROLL; ++line)
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
      if (inside(place(line, i))) word[line][i] = load_shared_line(from(place(line, i)));
#pragma unroll
  for (int line = 0; line < UNROLL; ++line)
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
      if (inside(place(line, i))) store_line(to(place(line, i)), word[line][i]);
}

// LOT results: 8 bytes of 16-bit numbers, or 16 of fp32.
struct Results { u32 word[LOT * sizeof(Out) / 4]; };

DEVICE Results rounded(const float (&x)[LOT]) {
#if KIND == 0
  return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
#else
  return {round_pair(x[0], x[1]), round_pair(x[2], x[3])};
#endif
}

DEVICE void store_results(u64 at, const Results& y) {
#if KIND == 0
  store_line(at, make_uint4(y.word[0], y.word[1], y.word[2], y.word[3]));
#else
  store_half_line(at, y.word[0], y.word[1]);
#endif
}

// What a block does with its part of the shares, in steps. count: of numbers, a multiple of LINE;
// share: of a rank, a multiple of LINE; sums, results: where they lie in every rank's memory.
struct Shares {
  const Way& way;
  const float* partial;
  const Out* bias;
  Out* out;
  u32 count, columns, share, index;
  u64 sums, results;
  u64 base[RANKS] = {};  // of the memory of this rank, the next one, ...

  DEVICE void find() {
#pragma unroll
    for (u32 other = 0; other < RANKS; ++other) base[other] = way.bases[(index + other) % RANKS];
  }

  // Number of a share at which a line of this block begins.
  DEVICE u32 row(u32 step, int line) const {
    return ((step * UNROLL + line) * gridDim.x + blockIdx.x) * THREADS * LINE;
  }
  DEVICE bool inside(u32 rank, u32 k) const { return k < share && rank * share + k < count; }
  DEVICE u32 steps() const { return (share + STEP * gridDim.x - 1) / (STEP * gridDim.x); }

  // Partial sums of a step, to the ranks whose shares they are in.
  DEVICE void push(u32 step) const {
#pragma unroll
    for (u32 other = 1; other < RANKS; ++other) {
      const u32 rank = (index + other) % RANKS;
      move<float>([&](int line) { return row(step, line); },
                  [&](u32 k) { return (u64)(partial + (u64)rank * share + k); },
                  [&](u32 k) { return base[other] + sums + ((u64)index * share + k) * 4; },
                  [&](u32 k) { return inside(rank, k); });
    }
  }

  // Everything that a step of this rank's own share needs is there: results, to all ranks.
  DEVICE void fold_step(u32 step) const {
    constexpr int LOTS = UNROLL * LINE / LOT, ABREAST = RANKS >= 16 / LOTS ? 16 / RANKS : LOTS;
    const u64 own = base[0] + sums;
#pragma unroll
    for (int first = 0; first < LOTS; first += ABREAST) {
      uint4 part[ABREAST][RANKS];
      auto place = [&](int i) {
        const int lot = first + i;
        return row(step, lot / (LINE / LOT)) + (lot % (LINE / LOT) * THREADS + threadIdx.x) * LOT;
      };
#pragma unroll
      for (int i = 0; i < ABREAST; ++i) {
        const u32 k = place(i);
        if (!inside(index, k)) continue;
#pragma unroll
        for (u32 rank = 0; rank < RANKS; ++rank)
          part[i][rank] = load_shared_line(rank == index ? (u64)(partial + (u64)index * share + k)
                                                         : own + ((u64)rank * share + k) * 4);
      }
#pragma unroll
      for (int i = 0; i < ABREAST; ++i)
        if (inside(index, place(i))) store_everywhere((u64)index * share + place(i), part[i]);
    }
  }

  DEVICE void store_everywhere(u64 number, const uint4 (&part)[RANKS]) const {
    const u32 column = number % columns;
    float of_ranks[LOT][RANKS], y[LOT];
#pragma unroll
    for (u32 rank = 0; rank < RANKS; ++rank) {
      of_ranks[0][rank] = __uint_as_float(part[rank].x), of_ranks[1][rank] = __uint_as_float(part[rank].y);
      of_ranks[2][rank] = __uint_as_float(part[rank].z), of_ranks[3][rank] = __uint_as_float(part[rank].w);
    }
#pragma unroll
    for (int i = 0; i < LOT; ++i) y[i] = biased(fold<0, RANKS>(of_ranks[i]), bias, column + i);
    const Results done = rounded(y);
    store_results((u64)(out + number), done);
#pragma unroll
    for (u32 other = 1; other < RANKS; ++other)
      store_results(base[other] + results + number * sizeof(Out), done);
  }

  // The other ranks' results of a step are there.
  DEVICE void take(u32 step) const {
#pragma unroll
    for (u32 other = 1; other < RANKS; ++other) {
      const u32 rank = (index + other) % RANKS;
      auto place = [&](u32 k) { return ((u64)rank * share + k) * sizeof(Out); };
      move<Out>([&](int line) { return row(step, line); },
                [&](u32 k) { return base[0] + results + place(k); },
                [&](u32 k) { return (u64)out + place(k); }, [&](u32 k) { return inside(rank, k); });
    }
  }

  // What this block had to give will not be there.
  DEVICE void give_up() const {
    float y[LOT];
    for (int i = 0; i < LOT; ++i) y[i] = missing();
    const Results none = rounded(y);
    for (u32 rank = 0; rank < RANKS; ++rank)
      for (u32 step = 0; step < steps(); ++step)
        for (int line = 0; line < UNROLL; ++line)
          for (int lot = 0; lot < LINE / LOT; ++lot) {
            const u32 k = row(step, line) + (lot * THREADS + threadIdx.x) * LOT;
            if (inside(rank, k)) store_results((u64)(out + (u64)rank * share + k), none);
          }
  }
};

// Steps that a flag may be ahead of what is waited for: more than those of two calls. Blocks without a
// part in calls keep their flags, which look as if they were ahead some 2^31 steps later.
constexpr u32 AHEAD = 1 << 20;

// Flags of a rank's blocks in every rank's memory, and behind those of all ranks, in the same order,
// the kinds of their calls.
struct Flags {
  const Way& way;
  u64 place;
  u32 blocks, index, kind;

  DEVICE u64 of(u32 owner, u32 rank) const {
    return way.bases[owner] + place + ((u64)rank * blocks + blockIdx.x) * 4;
  }
  DEVICE u64 kind_of(u64 flag) const { return flag + (u64)RANKS * blocks * 4; }

  // Tells all other ranks that this block has done a step: everything it stored before can be read.
  DEVICE void tell(u32 value, bool first) const {
    __syncthreads();
    if (threadIdx.x >= RANKS || threadIdx.x == index) return;
    const u64 at = of(threadIdx.x, index);
    if (first) store_now((u32*)kind_of(at), kind);
    store_flag(at, value);
  }

  // Waits until all other ranks' blocks of this index have done a step, of the same kind of call.
  DEVICE bool told(u32 value, bool first) const {
    bool good = true;
    if (const u32 rank = threadIdx.x; rank < RANKS && rank != index) {
      const u64 at = of(index, rank);
      good = wait_until(way, rank, [&] { return load_flag(at) - value < AHEAD ? THERE : LATE; });
      if (good && first && load_now((const u32*)kind_of(at)) != kind) good = give_up_on(way, rank, true);
    }
    return __syncthreads_and(good);
  }
};

// Turn t pushes step t, folds step t - 1 and takes in step t - 2. One flag a turn says all of it: who
// has ended turn t has pushed steps to t, and sent the results of steps to t - 1.
// flags: where they lie in every rank's memory; blocks: flags of a rank, at least the grid's; pushed:
// what other ranks fold is in their memory already, and of `partial` only this rank's share is read.
extern "C" __global__ void __launch_bounds__(THREADS)
join_stream(const float* partial, const Out* bias, Out* out, u32 count, u32 columns, u32 share,
            u32 index, const u64* bases, Counters* counters, u64 host, u64 patience, u64 flags,
            u64 sums, u64 results, u32 blocks, u32 pushed) {
  await_predecessor();
  admit_successor();
  const Way way{bases, counters, host, patience};
  Shares work{way, partial, bias, out, count, columns, share, index, sums, results};
  work.find();
  const u32 base = load_now(&counters->shares), steps = work.steps();
  const Flags flag{way, flags, blocks, index, count * 0xc2b2ae3du ^ form(columns, bias)};
  // Of the whole block, since its threads meet: another block may fail while they look.
  bool good = __syncthreads_and(load_now(&counters->failed) == 0);

  for (u32 turn = 0; turn < steps + 2 && good; ++turn) {
    if (turn < steps && !pushed) work.push(turn);
    if (turn > 0) good = flag.told(base + turn, turn == 1);
    if (!good) break;
    if (turn > 0 && turn <= steps) work.fold_step(turn - 1);
    if (turn <= steps) flag.tell(base + turn + 1, turn == 0);
    if (turn > 1) work.take(turn - 2);
  }
  if (!good) work.give_up();
  leave(&counters->done_shares, &counters->shares, base + steps + 1);
}
