// The instructions of sm_90a that have no name in CUDA C++: mbarriers, bulk tensor copies, and the
// matrix products of a warpgroup. One thin function an instruction (PTX ISA 8.0, sections
// "mbarrier", "cp.async.bulk.tensor", "wgmma"); no policy. No header is included, so NVRTC
// compiles this without an include path.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define DEVICE __device__ __forceinline__

struct alignas(64) TensorMap { u64 opaque[16]; };  // CUtensorMap

// A tensor [b, h, t, d] as the launcher passes it: its map, then its sizes, then its strides.
#define TENSOR(x)                                                                        \
  const __grid_constant__ TensorMap x, int x##_b, int x##_h, int x##_t, int x##_d,       \
      long long x##_stride_b, long long x##_stride_h, long long x##_stride_t, long long x##_stride_d

// A matrix [rows, k], likewise.
#define MATRIX(x)                                                                  \
  const __grid_constant__ TensorMap x, int x##_rows, int x##_k, long long x##_stride_row, \
      long long x##_stride_k

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- mbarriers: phases are awaited by parity --------------------------------------------------

DEVICE void barrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

DEVICE void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}

DEVICE void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// On the same barrier of block `rank` of the cluster.
DEVICE void barrier_arrive_at(u32 bar, u32 rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar), "r"(rank)
      : "memory");
}

DEVICE void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(bar), "r"(parity)
      : "memory");
}

// Whether the phase is over, without waiting for it.
DEVICE bool barrier_test(u32 bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.u32 %0, 1, 0, over;\n}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done;
}

DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE u32 load_shared(u32 at) {
  u32 x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}

// ---- clusters -----------------------------------------------------------------------------------

DEVICE u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

DEVICE void store_there(u32 there, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
}

DEVICE void store_there(u32 there, float x, float y) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(x), "f"(y) : "memory");
}

// Where `at` of this block's shared memory lies in block `rank` of the cluster.
DEVICE u32 shared_of(u32 at, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}

// ---- dependent launch: the kernel before may still run until `await_predecessor` ----------------

DEVICE void await_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void admit_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Orders this thread's ordinary shared-memory accesses before those of copy engine and tensor core.
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- named barriers of several warps ------------------------------------------------------------

DEVICE void group_sync(u32 id, u32 threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void group_arrive(u32 id, u32 threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <u32 COUNT>
DEVICE void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <u32 COUNT>
DEVICE void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- copies of a thread's own, global to shared -------------------------------------------------

// 16 bytes, or zeros where there are none.
DEVICE void copy_16(u32 to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// 16 bytes, of which those after the first `bytes` become zero and are not read.
DEVICE void copy_front(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
DEVICE void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Arrives on a barrier, once for this thread, when all that it has copied so far has come.
DEVICE void copies_arrive(u32 bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

// All threads of the block, whose warps may come from different places of the program.
DEVICE void block_wait() { asm volatile("bar.sync 0;" ::: "memory"); }

// All lanes of the warp.
DEVICE void warp_wait() { __syncwarp(); }

// ---- numbers of 16 bits -------------------------------------------------------------------------

DEVICE float widen_fp16(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

DEVICE u16 round_to_fp16(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

DEVICE u16 round_to_bf16(float x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// ---- bulk copy of contiguous bytes, global to shared --------------------------------------------

DEVICE void bulk_copy(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}

// ---- bulk tensor copy, global to shared: box of map at (d, t, h, b) -------------------------

DEVICE void tensor_copy(u32 to, const TensorMap* map, u32 bar, int d, int t, int h, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(bar), "r"(d), "r"(t), "r"(h), "r"(b)
      : "memory");
}

// The same for what is read once: it leaves the L2 before anything else.
DEVICE u64 once() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

DEVICE void tensor_copy(u32 to, const TensorMap* map, u32 bar, int d, int t, int h, int b, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to), "l"(map), "r"(bar), "r"(d), "r"(t), "r"(h), "r"(b),
      "l"(policy)
      : "memory");
}

// The same of a matrix, without a policy.
DEVICE void matrix_copy(u32 to, const TensorMap* map, u32 bar, int k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(bar), "r"(k), "r"(row)
      : "memory");
}

// The same, to the same place of all blocks of the cluster that `blocks` has a bit for.
DEVICE void matrix_multicast(u32 to, const TensorMap* map, u32 bar, int k, int row, u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(map), "r"(bar), "r"(k),
      "r"(row), "h"(blocks)
      : "memory");
}

// As `tensor_copy`, to the same place of all blocks of the cluster that `blocks` has a bit for.
DEVICE void tensor_multicast(u32 to, const TensorMap* map, u32 bar, int d, int t, int h, int b,
                             u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to), "l"(map), "r"(bar),
      "r"(d), "r"(t), "r"(h), "r"(b), "h"(blocks)
      : "memory");
}

// ---- matrices of a warp -------------------------------------------------------------------------

// Four 8 x 8 matrices of 16-bit numbers, as they are or transposed; lane i gives the place of a row.
DEVICE void load_matrices(u32 (&x)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}

DEVICE void load_transposed(u32 (&x)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}

// d[16, 8] += a[16, 16] b[8, 16]^T.
#define MMA(TYPE)                                                                             \
  DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {                         \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 " N4                     \
        ", {%4, %5, %6, %7}, {%8, %9}, " N4 ";"                                               \
        : F4(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));           \
  }

// ---- wgmma ----------------------------------------------------------------------------------

// A matrix in shared memory for the tensor core. Only the low word depends on where it lies: adding
// bytes / 16 moves the matrix.
struct Matrix {
  u32 low, high;
  DEVICE u64 at(u32 bytes) const { return (u64)high << 32 | low + (bytes >> 4); }
};

// Rows of 128 bytes, 128-byte swizzle, groups of eight rows 1024 bytes apart. `leading` is the
// distance in bytes of the next 64 columns when the columns are the contiguous axis of a transposed
// operand (ignored otherwise).
DEVICE Matrix swizzled_matrix(u32 address, u32 leading = 16) {
  return {(address & 0x3FFFF) >> 4 | leading >> 4 << 16, 1024 >> 4 | 1u << 30};
}

// Without swizzle: core matrices of 8 rows x 16 bytes, `leading` apart along k and `stride` apart
// along the other axis.
DEVICE Matrix plain_matrix(u32 address, u32 leading, u32 stride) {
  return {(address & 0x3FFFF) >> 4 | leading >> 4 << 16, stride >> 4};
}

// A value that all lanes hold, in a uniform register.
DEVICE u32 uniform(u32 x) { return __reduce_or_sync(~0u, x); }

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// A place in the program that registers do not move across: an asynchronous product writes them, or
// what computes them is to overlap with one.
DEVICE void touch(u32& x) { asm volatile("" : "+r"(x)::"memory"); }
DEVICE void touch(int& x) { asm volatile("" : "+r"(x)::"memory"); }

template <class T>
DEVICE void touch(T*& x) {
  asm volatile("" : "+l"(x)::"memory");
}

template <int N>
DEVICE void touch(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

template <int N>
DEVICE void touch(u32 (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

#define F4(r, i) "+f"(r[i]), "+f"(r[i + 1]), "+f"(r[i + 2]), "+f"(r[i + 3])
#define F16(r, i) F4(r, i), F4(r, i + 4), F4(r, i + 8), F4(r, i + 12)
#define F32(r) F16(r, 0), F16(r, 16)
#define F64(r) F16(r, 0), F16(r, 16), F16(r, 32), F16(r, 48)
#define N4 "{%0, %1, %2, %3}"
#define N32                                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define N64                                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "  \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "  \
  "%56, %57, %58, %59, %60, %61, %62, %63}"

// d[64, N] = a[64, 16] b[N, 16]^T (+ d): both from shared memory, k contiguous.
// d[64, N] = p[64, 16] v[16, N] (+ d): p in registers; v from shared memory, N contiguous.
#define WGMMA(TYPE)                                                                           \
  DEVICE void wgmma_ab(float (&d)[64], u64 a, u64 b, bool add) {                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                             \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " " N64         \
                 ", %64, %65, add, 1, 1, 0, 0;\n}"                                            \
                 : F64(d) : "l"(a), "l"(b), "r"((u32)add));                                   \
  }                                                                                           \
  DEVICE void wgmma_pv(float (&d)[64], const u32* p, u64 v, bool add) {                       \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"                             \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " " N64         \
                 ", {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"                              \
                 : F64(d) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"((u32)add)); \
  }                                                                                           \
  DEVICE void wgmma_pv(float (&d)[32], const u32* p, u64 v, bool add) {                       \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                             \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " N32          \
                 ", {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"                              \
                 : F32(d) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"((u32)add)); \
  }                                                                                           \
  DEVICE void wgmma_pv(float (&d)[4], const u32* p, u64 v, bool add) {                        \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %9, 0;\n"                              \
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE " " N4            \
                 ", {%4, %5, %6, %7}, %8, add, 1, 1, 0;\n}"                                   \
                 : F4(d, 0) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"((u32)add)); \
  }
