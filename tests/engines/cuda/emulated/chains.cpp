// Chains of fma by few.cu if there is a FETCH, else by fma.cu: a thread of the CPU for each thread of a block,
// blocks one after another.
// usage: chains EAGER M N K. Prints how many results differ from a plain loop's.
#include <cstdio>
#include <cstdlib>
#include <random>

#ifdef FETCH
#include "few.cu"
constexpr int BM = ROWS, BN = COLS;
constexpr auto kernel = linear_few;
#else
#include "fma.cu"
constexpr auto kernel = linear_fma;
#endif

In number(float x) {
  if constexpr (IN == 0) return x;
  else return IN == 1 ? round_to_bf16(x) : round_to_fp16(x);
}

int main(int, char** words) {
  eager = std::atoi(words[1]);
  const int m = std::atoi(words[2]), n = std::atoi(words[3]), k = std::atoi(words[4]);
  const int pitch = (k + 7) / 8 * 8 + 8;
  const float alpha = 0.5f, beta = 3.0f;
  std::mt19937 draw(m * n + k);
  std::vector<In> x(m * pitch), w(n * pitch), c(n);
  for (auto* of : {&x, &w, &c})
    for (In& v : *of) v = number(std::normal_distribution<float>()(draw));
  // A chain of products that underflow to -0, which +0 for what is not there would make +0.
  for (int i = 0; i < k; ++i) x[(m - 1) * pitch + i] = number(-1e-30f), w[i] = number(1e-30f);
  c[0] = number(-0.0f);
  std::vector<Out> y(m * n, 7);

  const int tiles = ((m + BM - 1) / BM) * ((n + BN - 1) / BN);
  for (int tile = 0; tile < tiles; ++tile) {
    std::memset(memory, 0xFF, SHARED);  // NaN
    std::barrier<> meeting(kThreads);
    block = &meeting;
    warp.clear(), barriers.clear();
    for (int i = 0; i < kThreads; i += 32) warp.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> threads;
    for (u32 t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        blockIdx.x = tile, threadIdx.x = t;
        kernel(x.data(), w.data(), c.data(), y.data(), pitch, pitch, n, m, n, k, alpha, beta);
      });
    for (auto& thread : threads) thread.join();
  }

  int wrong = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum = std::fma(widened(x[i * pitch + l]), widened(w[j * pitch + l]), sum);
      Out want;
      put(&want, sum * alpha + widened(c[j]) * beta);
      wrong += std::memcmp(&want, &y[i * n + j], sizeof want) != 0;
    }
  std::printf("%d\n", wrong);
}
