// fp64 sums and products of rows, lanes along k. In which order terms meet does not matter: the
// results are certified, or computed again without rounding (exact.cpp).
#include "kernels/exact.hpp"

#include "vec64.hpp"

namespace samebits::SB_ISA {
namespace {

constexpr int kWidth = 16 / kParts;  // lanes of a register
constexpr float kInf = __builtin_inff();
#if defined(SB_ISA_avx512) || defined(SB_ISA_neon)
constexpr int kTileRows = 6, kTileColumns = 4;
#elif defined(SB_ISA_avx2)
constexpr int kTileRows = 3, kTileColumns = 4;
#else
constexpr int kTileRows = 2, kTileColumns = 2;
#endif
constexpr int kStreamColumns = 2;

#if defined(SB_ISA_avx512)
static inline Part load_d(const double* p) { return _mm512_loadu_pd(p); }
static inline Part fma_d(Part a, Part b, Part c) { return _mm512_fmadd_pd(a, b, c); }
#elif defined(SB_ISA_avx2)
static inline Part load_d(const double* p) { return _mm256_loadu_pd(p); }
static inline Part fma_d(Part a, Part b, Part c) { return _mm256_fmadd_pd(a, b, c); }
#elif defined(SB_ISA_neon)
static inline Part load_d(const double* p) { return vld1q_f64(p); }
static inline Part fma_d(Part a, Part b, Part c) { return vfmaq_f64(c, a, b); }
#else
static inline Part load_d(const double* p) { return *p; }
static inline Part fma_d(Part a, Part b, Part c) { return part_fmadd(a, b, c); }
#endif

static inline double fold(Part v) {
  double lane[kWidth], sum = 0;
  part_store(lane, v);
  for (int i = 0; i < kWidth; ++i) sum += lane[i];
  return sum;
}

// Magnitudes that are not zero, or +Inf.
static inline F16 present(F16 magnitude) { return select(eq(magnitude, zero()), set1(kInf), magnitude); }

static inline double least(F16 v) {
  float lane[16], low = kInf;
  store_f32(lane, v);
  for (float f : lane) low = f < low ? f : low;
  return low;
}

template <class T>
void pack_typed(const T* x, int64_t row, int64_t rows, int64_t k, double* packed, int64_t k_padded, RowFacts* facts) {
  for (int64_t r = 0; r < rows; ++r, x += row, packed += k_padded) {
    D16 squares = set1_d(0);
    F16 low = set1(kInf);
    for (int64_t i = 0; i < k_padded; i += 16) {
      const F16 v = i + 16 <= k ? load(x + i) : load_part(x + i, static_cast<int>(k - i));
      const D16 d = widen(v);
      squares = fma(d, d, squares);
      low = vmin(low, present(abs(v)));
      for (int p = 0; p < kParts; ++p) part_store(packed + i + p * kWidth, d.v[p]);
    }
    facts[r].squares += fold_any(squares);
    const double l = least(low);
    if (l < facts[r].smallest) facts[r].smallest = l;
  }
}

void pack(DType type, const void* x, int64_t row, int64_t rows, int64_t k, double* packed, int64_t k_padded,
          RowFacts* facts) {
  switch (type) {
    case DType::f32: return pack_typed(static_cast<const float*>(x), row, rows, k, packed, k_padded, facts);
    case DType::bf16: return pack_typed(static_cast<const bf16*>(x), row, rows, k, packed, k_padded, facts);
    case DType::f16: return pack_typed(static_cast<const f16*>(x), row, rows, k, packed, k_padded, facts);
  }
}

template <int R, int C>
void tile(const double* x, const double* w, int64_t k, double* acc, int64_t acc_row) {
  Part a[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) a[r][c] = part_set1(0);
  for (int64_t i = 0; i < k; i += kWidth) {
    Part wv[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) wv[c] = load_d(w + c * k + i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Part xv = load_d(x + r * k + i);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) a[r][c] = fma_d(xv, wv[c], a[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r * acc_row + c] += fold(a[r][c]);
}

template <int C>
void tile_rows(int64_t rows, const double* x, const double* w, int64_t k, double* acc, int64_t acc_row) {
  switch (rows) {
    case 1: return tile<1, C>(x, w, k, acc, acc_row);
    case 2: return tile<2, C>(x, w, k, acc, acc_row);
#if !defined(SB_ISA_scalar)
    case 3: return tile<3, C>(x, w, k, acc, acc_row);
#endif
#if defined(SB_ISA_avx512) || defined(SB_ISA_neon)
    case 4: return tile<4, C>(x, w, k, acc, acc_row);
    case 5: return tile<5, C>(x, w, k, acc, acc_row);
    case 6: return tile<6, C>(x, w, k, acc, acc_row);
#endif
  }
}

void multiply(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k, double* acc) {
  for (int64_t c = 0; c < columns; c += kTileColumns) {
    const int64_t wide = columns - c < kTileColumns ? columns - c : kTileColumns;
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int64_t high = rows - r < kTileRows ? rows - r : kTileRows;
      double* at = acc + r * columns + c;
      if (wide == kTileColumns) tile_rows<kTileColumns>(high, x + r * k, w + c * k, k, at, columns);
      else
        for (int64_t j = 0; j < wide; ++j) tile_rows<1>(high, x + r * k, w + (c + j) * k, k, at + j, columns);
    }
  }
}

template <class T, int R, int C>
void stream_tile(const double* x, int64_t k_padded, const T* w, int64_t w_row, int64_t k, double* acc,
                 int64_t acc_row, RowFacts* facts) {
  D16 a[R][C], squares[C];
  F16 low[C];
  for (int c = 0; c < C; ++c) {
    squares[c] = set1_d(0);
    low[c] = set1(kInf);
    for (int r = 0; r < R; ++r) a[r][c] = set1_d(0);
  }
  for (int64_t i = 0; i < k_padded; i += 16) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const T* from = w + c * w_row + i;
      const F16 v = i + 16 <= k ? load(from) : load_part(from, static_cast<int>(k - i));
      const D16 d = widen(v);
      squares[c] = fma(d, d, squares[c]);
      low[c] = vmin(low[c], present(abs(v)));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int p = 0; p < kParts; ++p)
          a[r][c].v[p] = fma_d(load_d(x + r * k_padded + i + p * kWidth), d.v[p], a[r][c].v[p]);
    }
  }
  for (int c = 0; c < C; ++c) {
    facts[c].squares += fold_any(squares[c]);
    const double l = least(low[c]);
    if (l < facts[c].smallest) facts[c].smallest = l;
    for (int r = 0; r < R; ++r) acc[r * acc_row + c] += fold_any(a[r][c]);
  }
}

template <class T, int R>
void stream_rows(const double* x, int64_t k_padded, const T* w, int64_t w_row, int64_t columns, int64_t k, double* acc,
                 RowFacts* facts) {
  int64_t c = 0;
  for (; c + kStreamColumns <= columns; c += kStreamColumns)
    stream_tile<T, R, kStreamColumns>(x, k_padded, w + c * w_row, w_row, k, acc + c, columns, facts + c);
  for (; c < columns; ++c) stream_tile<T, R, 1>(x, k_padded, w + c * w_row, w_row, k, acc + c, columns, facts + c);
}

template <class T>
void stream_typed(const double* x, int64_t rows, int64_t k_padded, const T* w, int64_t w_row, int64_t columns,
                  int64_t k, double* acc, RowFacts* facts) {
  switch (rows) {
    case 1: return stream_rows<T, 1>(x, k_padded, w, w_row, columns, k, acc, facts);
    case 2: return stream_rows<T, 2>(x, k_padded, w, w_row, columns, k, acc, facts);
    case 3: return stream_rows<T, 3>(x, k_padded, w, w_row, columns, k, acc, facts);
    case 4: return stream_rows<T, 4>(x, k_padded, w, w_row, columns, k, acc, facts);
  }
}

void stream(DType type, const double* x, int64_t rows, int64_t k_padded, const void* w, int64_t w_row,
            int64_t columns, int64_t k, double* acc, RowFacts* facts) {
  switch (type) {
    case DType::f32:
      return stream_typed(x, rows, k_padded, static_cast<const float*>(w), w_row, columns, k, acc, facts);
    case DType::bf16:
      return stream_typed(x, rows, k_padded, static_cast<const bf16*>(w), w_row, columns, k, acc, facts);
    case DType::f16:
      return stream_typed(x, rows, k_padded, static_cast<const f16*>(w), w_row, columns, k, acc, facts);
  }
}

}  // namespace

const ExactKernels& exact_kernels();
const ExactKernels& exact_kernels() {
  static const ExactKernels table{kWidth, pack, multiply, stream};
  return table;
}

}  // namespace samebits::SB_ISA
