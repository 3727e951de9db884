// Sizes, places in shared memory, numbers of barriers, and which rows of which head a block works on.
#pragma once
#include "number.cuh"
#include "path.cuh"

constexpr int D = HEAD_DIM, ROWS = 128, KEYS = 128, STAGES = 2, GROUPS = 2;
constexpr int BLOCKS_PER_LEAF = LEAF / KEYS;
constexpr int ACC = D / 2;                         // accumulator registers of a thread
constexpr u32 CHUNK = 128 * KEYS;                  // bytes of 64 columns of a tile
constexpr u32 TILE = CHUNK * (D / 64);             // bytes of a tile of Q, K or V
constexpr u32 STEP_BYTES = CHUNK / 2;               // from a tile's first step of 64 keys to its second
constexpr u32 Q_AT = 0, K_AT = TILE, V_AT = K_AT + STAGES * TILE, TOTAL_AT = V_AT + STAGES * TILE;
constexpr u32 ONES_AT = TOTAL_AT + ROWS * D * 4, BARRIERS_AT = ONES_AT + 256;
constexpr u32 FOUND_AT = BARRIERS_AT + 128;        // what `inspect` found in each stage's steps

// Numbers of the mbarriers.
constexpr int Q_FULL = 0, Q_EMPTY = 1, K_FULL = 2, K_EMPTY = K_FULL + STAGES;
constexpr int V_FULL = K_EMPTY + STAGES, V_EMPTY = V_FULL + STAGES;
constexpr int V_INSPECTED = V_EMPTY + STAGES, BARRIERS = V_INSPECTED + STAGES;
constexpr int INSPECTORS = 3;  // warps
// Numbers of the named barriers: one for each warpgroup, its turn to issue products; both together.
constexpr int TURN = 1, TOGETHER = TURN + GROUPS;

struct Arguments {
  u16* out;                       // [b, h, t, d] with the strides below, in elements; d contiguous
  long long stride_b, stride_h, stride_t;
  const int* query_starts;        // [sequences + 1] rows before each sequence of packed q and out ...
  const int* key_starts;          // ... and of packed k and v; null: one sequence an entry of b
  const int* positions;           // [sequences] of their first rows among the keys, or null
  int query_length, key_length;   // of every sequence, or of the longest if packed
  int position;                   // of the first row where `positions` is null and nothing is packed
  int sequences, heads, group;    // query heads, and how many of them share a KV head
  int window;                     // a row sees keys less than this away from its own; 0: all
  const float* sinks;             // [h] logits, or null
  float* lse;                     // [b, h, t] logsumexps with the strides below, or null
  long long lse_stride_b, lse_stride_h, lse_stride_t;
  int section;                    // heads (of all sequences) whose K and V share the L2 at a time
  float factor;                   // a = fp32(scale * log2 e) > 0
  Ticket ticket;                  // of CHECK
};


struct Work {
  int row, head, batch;         // first query row, query head, sequence
  int rows, keys;               // lengths of the sequence
  int query_base, key_base;     // rows of packed tensors before this sequence
  int offset;                   // row r sees keys up to r + offset
  int first, blocks;            // any of the rows sees blocks of 128 keys from `first` on, before `blocks`
  int low, whole;               // all of the rows see keys from `low` on, before `whole`

  // Whether some row sees block i only in part.
  DEVICE bool partly(int i) const { return KEYS * (i + 1) > whole || KEYS * i < low; }
};

// The round-th work of this block; false past the end. Within a section of heads the weight of the
// work falls, in the next one it rises, and in the last one it falls, so that the light ones come
// last. Rounds are dealt in turning order, so no cluster gets the heavier half of every
// round. The blocks of a cluster take the same rows of heads that share their keys.
DEVICE bool next_work(const Arguments& a, int round, Work& w) {
  const int row_blocks = (a.query_length + ROWS - 1) / ROWS;
  const int all_heads = a.sequences * a.heads / CLUSTER, section_heads = a.section / CLUSTER;
  const int clusters = gridDim.x / CLUSTER, cluster = blockIdx.x / CLUSTER;
  const int index = round * clusters + (round & 1 ? clusters - 1 - cluster : cluster);
  if (round * clusters >= row_blocks * all_heads) return false;
  w = Work();
  if (index >= row_blocks * all_heads) return true;  // an empty place of the last round
  const int section = index / (section_heads * row_blocks), first = section * section_heads;
  const int heads = min(section_heads, all_heads - first), rest = index - first * row_blocks;
  const int level = rest / heads, head = (first + rest % heads) * CLUSTER + cluster_rank();
  const bool falling = ((all_heads - 1) / section_heads - section) % 2 == 0;
  w.row = ROWS * (falling ? row_blocks - 1 - level : level);
  w.head = head % a.heads;
  w.batch = head / a.heads;
  w.rows = a.query_length;
  w.keys = a.key_length;
  if (a.query_starts) {
    w.query_base = a.query_starts[w.batch];
    w.rows = a.query_starts[w.batch + 1] - w.query_base;
  }
  if (a.key_starts) {
    w.key_base = a.key_starts[w.batch];
    w.keys = a.key_starts[w.batch + 1] - w.key_base;
  }
  w.offset = a.positions ? a.positions[w.batch] : a.query_starts ? w.keys - w.rows : a.position;
  const int near = w.row + w.offset, far = min(w.row + ROWS, w.rows) - 1 + w.offset;  // rows' own keys
  int begin = 0, end = w.keys;
  w.whole = w.keys;
  if (CAUSAL) {
    end = min(end, far + 1);
    w.whole = min(w.keys, near + 1);
  }
  if (a.window) {
    begin = max(0, near - a.window + 1);
    end = min(end, far + a.window);
    w.low = max(0, far - a.window + 1);
    w.whole = min(w.whole, near + a.window);
  }
  w.first = begin / KEYS;
  w.blocks = w.row < w.rows && begin < end ? (end + KEYS - 1) / KEYS : w.first;
  return true;
}
