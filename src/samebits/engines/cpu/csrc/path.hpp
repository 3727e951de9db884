// The digest of a reduction path: which stretches of the reduced axis were accumulated without a break, and
// in which order they were folded. contract/path.py is the definition; a test compares the two.
#pragma once
#include <atomic>
#include <cstdint>

namespace samebits {

/// A bijection of 32 bits ("lowbias32", C. Wellons, hash-prospector, 2018).
inline uint32_t path_mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}
/// A leaf over [begin, end) in `lanes` interleaved chains.
inline uint32_t path_leaf(int64_t begin, int64_t end, uint32_t lanes = 1) {
  return path_mix(path_mix(path_mix(lanes) + static_cast<uint32_t>(begin)) + static_cast<uint32_t>(end));
}
/// The digest so far, and the next leaf that is added to it. It begins with the contract's seed.
inline uint32_t path_fold(uint32_t digest, uint32_t leaf) { return digest * 0x9e3779b1u + leaf; }

/// One accumulator: pieces that follow one another are one leaf, however they were cut.
struct PathChain {
  uint32_t seed, lanes;
  int64_t begin, stop;
  void start(uint32_t from, uint32_t width) { seed = from, lanes = width, begin = stop = 0; }
  void extend(int64_t from, int64_t to) {
    if (from != stop) {
      seed = digest();
      begin = from;
    }
    stop = to;
  }
  uint32_t digest() const { return path_fold(seed, path_leaf(begin, stop, lanes)); }
};

/// Faults that tests put in. Each acts in one call whose path is checked, and nowhere else.
enum class Fault : int {
  none = 0,
  partial_bit,   // a bit of a leaf's result is flipped between its store and the fold
  partial_zero,  // a leaf's result is lost: zeros
  stale,         // a leaf is not computed: what lay there before is folded
  misplaced,     // two workers take the same leaf's place
  early,         // the fold does not wait for the last leaf
  dropped,       // the fold leaves out the second leaf (a product: the second chunk of k)
  swapped,       // the fold takes the first two leaves in another order (a product: two chunks)
  lost_tile,     // a task does not run
};
/// What a check found, in outputs of a product or rows of attention. Tasks report from any thread; wrong is
/// what took another path than the contract's, has other sums, or was never computed.
struct PathCheck {
  uint32_t seed = 0;
  uint32_t expected = 0;  // products: the digest of every tile
  int64_t leaf = 0;       // attention: keys that a leaf of the contract holds
  Fault fault = Fault::none;
  std::atomic<int64_t> right{0}, wrong{0};
  void report(bool good, int64_t n = 1) { (good ? right : wrong).fetch_add(n, std::memory_order_relaxed); }
  /// After the last report: how many of `due` were not right. Reports that nobody expects are wrong too.
  int64_t result(int64_t due) const { return right == due ? wrong.load() : right < due ? due - right : right - due; }
};

/// Whether paths are checked, and with which seeds.
struct PathMode {
  std::atomic<bool> on{false};
  std::atomic<uint32_t> product{0}, attention{0};
  std::atomic<int64_t> leaf{0};
  std::atomic<int> fault{0};  // of the next call
  Fault take_fault() { return static_cast<Fault>(fault.exchange(0)); }
};
PathMode& path_mode() noexcept;

}  // namespace samebits
