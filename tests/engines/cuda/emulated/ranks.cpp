// Ranks that join partial sums by join.cu: a thread of the CPU for each thread of each block of each
// rank, and several calls in a row, by kernels that a call draws. usage: ranks CALLS [DIES [OTHER]]:
// before call DIES rank 1 stops; in call OTHER it has a row more. Counters begin a few calls before they
// overflow; of a launch a few blocks run at a time. Prints "wrong calls_with_NaN words_of_the_host";
// numbers that are there must be right.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <semaphore>
#include <vector>

#include "join.cu"

constexpr u32 CAPACITY = 2048, BLOCKS = 8, MOST = 1 << 15;
constexpr u64 FLAGS = 2ull * RANKS * CAPACITY * sizeof(Packet), SUMS = FLAGS + 2ull * RANKS * BLOCKS * 4,
              RESULTS = SUMS + MOST * 4, SIZE = RESULTS + MOST * 4;
// OLD: flags of blocks that had no part in 2^31 steps of others, and then some.
constexpr u32 BEGIN = 0xfffffff0u, OLD = BEGIN + 0x7fff0000u, LAST = 0xfffffffeu, CANARY = 0x5ca1ab1e;

// Blocks start in their order, `resident` of them at a time.
template <class Kernel>
void launch(u32 blocks, u32 resident, u32 seed, Kernel kernel) {
  std::counting_semaphore<> room(resident);
  std::vector<std::thread> running;
  for (u32 b = 0; b < blocks; ++b) {
    room.acquire();
    running.emplace_back([&, b] {
      Block made(THREADS);
      std::vector<std::thread> threads;
      for (u32 t = 0; t < THREADS; ++t)
        threads.emplace_back([&, t] {
          blockIdx.x = b, threadIdx.x = t, gridDim.x = blocks, block = &made;
          chance.seed(seed * 4096 + b * THREADS + t);
          pause_sometimes(8, 500);
          kernel();
          release();
        });
      for (auto& thread : threads) thread.join();
      room.release();
    });
  }
  for (auto& block : running) block.join();
}

// A call's shape and every rank's numbers: functions of the call.
struct Call {
  explicit Call(int number, bool longer = false) {
    std::mt19937 draw(number);
    way = draw() % 3, columns = LINE * (1 + draw() % 4);
    rows = 1 + longer + draw() % (way == 0 ? 12 : 150), blocks = 1 + draw() % 3;
    for (auto& of : sums) {
      of.resize(rows * columns);
      for (float& x : of) x = (float)(int)(draw() % 200001 - 100000) * (float)(1 << draw() % 14) * 1e-4f;
    }
    for (u32 i = 0; i < columns; ++i) bias.push_back(rounded_bias(i));
  }
  static Out rounded_bias(u32 i) {
    return KIND == 0 ? (Out)(i * 0.37f) : (Out)(0x3f80 + i);
  }
  u32 way, columns, rows, blocks;
  std::vector<float> sums[RANKS];
  std::vector<Out> bias;
};

Out expected(const Call& call, u32 i) {
  float part[RANKS];
  for (int r = 0; r < RANKS; ++r) part[r] = call.sums[r][i];
  const float y = fold<0, RANKS>(part) + widen(call.bias[i % call.columns]);
#if KIND == 0
  return y;
#else
  return (Out)round_bf16(y);
#endif
}

int main(int count, char** words) {
  const int calls = std::atoi(words[1]), dies = count > 2 ? std::atoi(words[2]) : -1,
            other = count > 3 ? std::atoi(words[3]) : -1;
  const u64 patience = dies < 0 ? 100'000'000'000 : 8'000'000'000;
  std::vector<uint4> memory[RANKS];
  u64 bases[RANKS];
  Counters counters[RANKS] = {};
  u32 host[RANKS] = {};
  std::atomic<int> wrong{0}, missing_calls{0};
  for (int r = 0; r < RANKS; ++r) {
    memory[r].resize(SIZE / 16), bases[r] = (u64)memory[r].data();
    counters[r].packets = LAST, counters[r].shares = BEGIN;
    for (u64 at = FLAGS; at < SUMS; at += 4) std::memcpy((void*)(bases[r] + at), &OLD, 4);
  }

  auto rank = [&](u32 index) {
    std::mt19937 pause(index);
    for (int number = 0; number < calls && !(index == 1 && number == dies); ++number) {
      const Call call(number, index == 1 && number == other);
      const u32 n = call.rows * call.columns, share = (n + RANKS * LINE - 1) / (RANKS * LINE) * LINE;
      std::vector<uint4> in(n / 4), out(n * sizeof(Out) / 16 + 1);  // lines are aligned
      out.back().x = CANARY;
      std::memcpy(in.data(), call.sums[index].data(), n * 4);
      if (pause() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pause() % 2000));
      Out* y = (Out*)out.data();
      const u32 resident = 1 + pause() % call.blocks, seed = number * RANKS + index;
      for (u32 other = 0; call.way == 2 && other < RANKS; ++other)  // copied before the launch
        if (const u32 first = other * share; other != index && first < n)
          std::memcpy((void*)(bases[other] + SUMS + index * share * 4), &call.sums[index][first],
                      4 * std::min(share, n - first));
      launch(call.blocks, resident, seed, [&, host_word = (u64)&host[index], own = &counters[index]] {
        const float2* pairs = (const float2*)in.data();
        const float* partial = (const float*)in.data();
        const Out* bias = call.bias.data();
        if (call.way == 0)
          join_packets(pairs, bias, y, n / 2, call.columns, index, bases, own, host_word, patience, 0, CAPACITY);
        else
          join_stream(partial, bias, y, n, call.columns, share, index, bases, own, host_word, patience, FLAGS,
                      SUMS, RESULTS, BLOCKS, call.way == 2);
      });
      bool absent = false;
      wrong += out.back().x != CANARY;
      for (u32 i = 0; i < n; ++i) {
        const Out want = expected(call, i);
        const bool nan = widen(y[i]) != widen(y[i]);
        absent = absent || nan;
        if (!nan && std::memcmp(&want, &y[i], sizeof want)) ++wrong;
      }
      missing_calls += absent;
    }
  };
  std::vector<std::thread> ranks;
  for (u32 r = 0; r < RANKS; ++r) ranks.emplace_back(rank, r);
  for (auto& thread : ranks) thread.join();
  std::printf("%d %d", wrong.load(), missing_calls.load());
  for (u32 word : host) std::printf(" %u", word);
  std::puts("");
}
