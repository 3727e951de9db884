// Digests of the paths that kernels take, and seals of partial results (contract/path.py).
//
// -D CHECK 1: kernels get a ticket (engines/tickets.py) as their last parameter, behind memory for seals where
// leaves need it, and judge themselves; 0: none of this is compiled.
#pragma once
#include "hopper.cuh"

#if CHECK
#define TICKET , int* ticket
#define HAND_TICKET , read_ticket(ticket)
#define SEALS , long long* seals, int* ticket
#define HAND_SEALS , seals, ticket
#else
#define TICKET
#define HAND_TICKET
#define SEALS
#define HAND_SEALS
#endif

DEVICE u32 path_mix(u32 x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}
DEVICE u32 path_leaf(int begin, int end) { return path_mix(path_mix(path_mix(1) + begin) + end); }
DEVICE u32 path_fold(u32 digest, u32 leaf) { return digest * 0x9e3779b1u + leaf; }

// A walk over the keys [next, stop) in leaves with edges at multiples of `length`, as the contract has it.
struct Walk {
  int next, stop, length;
  bool sound = true;
  DEVICE void leaf(int begin, int end) {
    sound &= begin == next && end == min(next / length * length + length, stop);
    next = end;
  }
  DEVICE bool done() const { return sound && next >= stop; }
};

// What is on a ticket. It is read when a kernel begins, for it may lie in DRAM: no end of a kernel waits for it.
struct Ticket {
  int* wrong;
  u32 expected;  // the digest of the path
  int length;    // keys of a leaf
  DEVICE void judge(bool right) const {
    if (!right) atomicAdd(wrong, 1);
  }
};
DEVICE Ticket read_ticket(int* ticket) {
  int4 x;
  asm volatile("ld.global.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(ticket));
  return {ticket + 1, (u32)x.x, x.z};
}

DEVICE long long view(float x) { return (long long)__float_as_int(x); }
// Sums of views have odd factors, by the place of a number in its leaf, or of a leaf in the order in which
// leaves are taken: what changed places shows, which a plain sum hides. A term is one multiply-add.
DEVICE long long taken(float x, int nth) { return (long long)__float_as_int(x) * (2 * nth + 3); }
DEVICE long long taken(long long sum, int nth) { return sum * (2 * nth + 3); }

// Whether the sum over a warp is zero: its threads' numbers in three pieces of which none can overflow.
DEVICE bool all_gone(long long off) {
  const u32 mask = (1u << 26) - 1;
  const u32 low = __reduce_add_sync(~0u, (u32)off & mask), mid = __reduce_add_sync(~0u, (u32)(off >> 26) & mask);
  const u32 high = __reduce_add_sync(~0u, (u32)(off >> 52));
  return low + ((unsigned long long)mid << 26) + ((unsigned long long)high << 52) == 0;
}
