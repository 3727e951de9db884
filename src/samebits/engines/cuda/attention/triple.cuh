// Three consumer warpgroups, in steps of 64 keys, whose scores fit into 160 registers beside the accumulators.
// One warpgroup multiplies while two compute their softmaxes, so none has to overlap with itself: in its turn it
// issues the values of step i - 1 and the scores of step i, then it waits for both and computes the softmax of
// step i. It leaves out the blocks behind its own diagonal, and begins the next work while the others end
// theirs. The denominator is a column of the values: ones lie behind each tile of V.
#pragma once
#include "nonfinite.cuh"
#include "output.cuh"
#include "producer.cuh"
#include "softmax.cuh"

constexpr u32 CONSUMERS = 160, PRODUCERS = 32;  // registers of a thread

// d[64, N] and l[64, 8] = p[64, 16] [v, 1]: the ones lie behind the values' last 64 columns.
DEVICE void wgmma_joint(float (&d)[64], float (&l)[4], const u32* p, u64 v, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %73, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n136k16.f32." TYPE "." TYPE " "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
      "%59, %60, %61, %62, %63, %64, %65, %66, %67} "
      ", {%68, %69, %70, %71}, %72, add, 1, 1, 1;\n}"
      : F64(d), F4(l, 0)
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"((u32)add));
}

DEVICE void wgmma_joint(float (&d)[32], float (&l)[4], const u32* p, u64 v, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %41, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n72k16.f32." TYPE "." TYPE " "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35} "
      ", {%36, %37, %38, %39}, %40, add, 1, 1, 1;\n}"
      : F32(d), F4(l, 0)
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"((u32)add));
}

// Of the columns of queries and keys.
DEVICE void scores(float (&s)[32], Matrix q, Matrix k) {
#pragma unroll
  for (int i = 0; i < D / 16; ++i)
    wgmma_ab(s, q.at(i / 4 * Q_CHUNK + i % 4 * 32), k.at(i / 4 * CHUNK + i % 4 * 32), i > 0);
}

// The chains of o and l over a step's 64 keys.
DEVICE void values(float (&o)[ACC], float (&l)[4], const u32 (&p)[16], Matrix v, bool add) {
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma_joint(o, l, p + 4 * i, v.at(i * 2048), add || i > 0);
}

// Which warpgroups take part in a block of a work: those from `first(i)` on, up to `groups`. All take the
// work's first block.
struct Takers {
  int groups, edge, begin;  // warpgroup g takes no block from edge + g + 1 on
  DEVICE Takers(const Work& w) {
    groups = min(GROUPS, (w.rows - w.row + 63) / 64);
    edge = CAUSAL ? ((w.row + w.offset - 1) >> 6) + 1 : 1 << 30;
    begin = w.first;
  }
  DEVICE int first(int i) const { return i > begin ? max(0, i - edge) : 0; }
  DEVICE int stop(const Work& w, int group) const {
    if (group >= groups) return begin + 1;
    return CAUSAL ? min(max(edge + group, begin) + 1, w.blocks) : w.blocks;
  }
};

DEVICE void consume(const Arguments& a, unsigned char* base, u32 smem, u32 bars, int group) {
  const int thread = threadIdx.x & 127, lane = threadIdx.x & 31, warp = thread >> 5;
  const Matrix q = swizzled_matrix(smem + Q_AT + group * 64 * 128);
  const auto key_tile = [&](u32 stage) { return swizzled_matrix(uniform(smem + K_AT + stage * TILE)); };
  const auto value_tile = [&](u32 stage) {
    return swizzled_matrix(uniform(smem + V_AT + stage * V_TILE), CHUNK);
  };
  const u32 own = TOTAL_AT + group * 64 * D * 4;
  Total total;
  total.o = (float4*)(base + own) + thread;
  const u32 staging = smem + own + warp * 512;
  const int column = lane % 4 * 2;
  const auto release_queries = [&] {
    if (lane == 0) barrier_arrive(bars + 8 * (Q_EMPTY + group));
  };
  u32 inspected = 0;  // a bit a stage: the parity of its next inspection
  if (group == GROUPS - 1) group_arrive(TURN + 0, 256);  // the first turn is warpgroup 0's

  // The next work that sees a key; rows that see none are +0.
  int round = 0;
  const auto advance = [&](Work& w) {
    bool more;
    while ((more = next_work(a, round++, w)) && w.blocks == w.first) store_nothing(a, w);
    w.first = uniform(w.first);
    w.blocks = uniform(w.blocks);
    return more;
  };
  float s[32];
  u32 used = 0, tiles = 0;
  const auto await_keys = [&] { barrier_wait(bars + 8 * (K_FULL + used % STAGES), used / STAGES & 1); };
  const auto await_values = [&] { barrier_wait(bars + 8 * (V_FULL + used % STAGES), used / STAGES & 1); };
  // What `inspect` found in the values of a block that some row sees only in part.
  const auto await_inspection = [&] {
    const u32 stage = used % STAGES;
    barrier_wait(bars + 8 * (V_INSPECTED + stage), inspected >> stage & 1);
    inspected ^= 1 << stage;
    return load_shared(smem + FOUND_AT + 8 * stage);
  };
  Work w;
  bool more = advance(w);
  if (more) {
    barrier_wait(bars + 8 * (Q_FULL + group), tiles++ & 1);
    await_keys();
  }
  touch(s);
  wgmma_fence();
  scores(s, q, key_tile(used % STAGES));
  wgmma_commit();
  wgmma_wait<0>();
  touch(s);
  while (more) {
    const Takers takers(w);
    const int stop = uniform(takers.stop(w, group));
    const int first = w.row + 64 * group, row = first + 16 * warp + lane / 4;
    float o[ACC], l[4];
    u32 p[16];
    Leaf leaf;
    // Keys that the thread's two rows see, counted from a block's first key.
    const auto seen_from = [&](int key) {
      Seen seen;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = row + 8 * r + w.offset;
        seen.low[r] = (a.window ? at - a.window + 1 : 0) - key;
        seen.high[r] = (CAUSAL ? min(w.keys, at + 1) : a.window ? min(w.keys, at + a.window) : w.keys) - key;
      }
      return seen;
    };
    int leaf_from = KEYS * w.first;
    Walk walk = {leaf_from, KEYS * stop, CHECK ? a.ticket.length : LEAF};
    bool add;  // whether o and l hold something of the leaf
    const auto issue_values = [&] { values(o, l, p, value_tile(used % STAGES), add); };

    // The scores of block i to p, when nothing of this warpgroup is under way.
    const auto weigh = [&](int i, bool first, bool fresh, bool maybe) __attribute__((always_inline)) {
      const bool partly = maybe && w.partly(i);
      release(bars + 8 * (K_EMPTY + used % STAGES));
      if (i + 1 == stop) release_queries();
      if (partly && a.window) {
        mask<true>(s, seen_from(KEYS * i + column));
      } else if (partly) {
        mask<false>(s, seen_from(KEYS * i + column));
      }
      Leaf before = leaf;
      float top[2], origin[2], shrink[2];
      if (fresh) leaf.m[0] = leaf.m[1] = NOTHING;
      maxima<0>(s, a.factor, top);
      raise(leaf, top, shrink, origin);
      if (!first) release(bars + 8 * (V_EMPTY + (used - 1) % STAGES));
      if (fresh && !first) clear_skipped(o, before);
      if (CHECK && fresh && !first) {
        walk.leaf(leaf_from, KEYS * i);
        leaf_from = KEYS * i;
      }
      weights<0>(s, origin, p, a.factor);
      if (fresh && !first) fold<false>(o, l, before, total);
      if (!fresh) rescale(o, l, shrink);
      touch(p);
      touch(o);
      touch(l);
      add = !fresh;
      await_values();
      if (partly && await_inspection()) {
        if (!add) clear(o, l);
        add = true;
        const int from = takers.first(i), groups = first ? GROUPS : takers.groups - from;
        take_infinite(o, p, smem + V_AT + used % STAGES * V_TILE, seen_from(KEYS * i), from, groups,
                      TOGETHER + (first ? GROUPS : from));  // some may be at the next work's first
      }
    };
    const auto advance_to = [&](int i, bool fresh, bool maybe) __attribute__((always_inline)) {
      const Matrix keys = key_tile((used + 1) % STAGES);
      barrier_wait(bars + 8 * (K_FULL + (used + 1) % STAGES), (used + 1) / STAGES & 1);
      group_sync(TURN + group, 256);
      touch(s);
      touch(o);
      touch(l);
      wgmma_fence();
      issue_values();
      scores(s, q, keys);
      wgmma_commit();
      const int after = i + 1 < w.blocks ? takers.first(i + 1) : 0;
      group_arrive(TURN + (group + 1 < takers.groups ? group + 1 : after), 256);
      ++used;
      wgmma_wait<0>();
      touch(s);
      touch(o);
      touch(l);
      weigh(i, false, fresh, maybe);
    };
    const bool folds = (stop - 1) / BLOCKS_PER_LEAF > w.first / BLOCKS_PER_LEAF;
    if (folds) clear(total);
    weigh(w.first, true, true, true);
    int i = w.first + 1;
    // The turn of the work's second block begins with warpgroup 0, which may have none.
    if (group == 0 && i < w.blocks && takers.first(i)) {
      group_sync(TURN + 0, 256);
      group_arrive(TURN + takers.first(i), 256);
    }
    if (!a.window) {
      for (const int whole = min(stop, w.whole / KEYS); i < whole; ++i) {
        if (i % BLOCKS_PER_LEAF) {
          advance_to(i, false, false);
        } else {
          advance_to(i, true, false);
        }
      }
    }
    for (; i < stop; ++i) advance_to(i, i % BLOCKS_PER_LEAF == 0, true);
    // The last block's values, then the next work's first scores, which hide this work's end. After
    // the last work they are scores of nothing that nobody reads.
    touch(o);
    touch(l);
    wgmma_fence();
    issue_values();
    wgmma_commit();
    Work next;
    more = advance(next);
    wgmma_wait<0>();
    touch(o);
    touch(l);
    release(bars + 8 * (V_EMPTY + used % STAGES));
    ++used;
    for (; i < w.blocks; ++i, ++used) {  // blocks that others take
      await_keys();
      release(bars + 8 * (K_EMPTY + used % STAGES));
      await_values();
      if (w.partly(i)) await_inspection();
      release(bars + 8 * (V_EMPTY + used % STAGES));
    }
    if (more) {
      barrier_wait(bars + 8 * (Q_FULL + group), tiles++ & 1);
      await_keys();
    }
    touch(s);
    wgmma_fence();
    scores(s, q, key_tile(used % STAGES));
    wgmma_commit();
    if (CHECK && thread == 0) {
      walk.leaf(leaf_from, KEYS * stop);
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
