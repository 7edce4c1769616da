// The product all matrix kernels share: a tile of `rows` × two vectors kept in registers over the whole of K.
//
// AVX-512: 12 × 32, 24 accumulators, and each step of k costs 24 multiply-adds against 14 loads. AVX2: 6 × 16, 12
// accumulators. `rows` is always a constant where tile_product is called, so that the loops over it vanish.
#ifndef INFC_X86_TILE_H
#define INFC_X86_TILE_H

#include "x86_vector.h"

#if defined(__AVX512F__)
#define TILE_ROWS 12
#define FOR_TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define TILE_ROWS 6
#define FOR_TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
enum { TILE_COLS = 2 * LANES };

// Memory to fetch while a tile is computed: `lines` cache lines every PREFETCH_STEP steps of k, into L1 or only L2.
enum { PREFETCH_STEP = 8, CACHE_LINE = 64, TILE_SHORT = 3 };
typedef struct prefetch {
  uintptr_t address;
  int64_t lines;
  bool near;
} prefetch;

INLINE void tile_step(const int rows, const int vectors, infc_vec acc[][2], const float *a, int64_t row_step,
                      const float *b) {
  const infc_vec b0 = vec_load(b), b1 = vectors == 2 ? vec_load(b + LANES) : vec_zero();
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const infc_vec x = vec_set(a[r * row_step]);
    acc[r][0] = vec_fma(x, b0, acc[r][0]);
    if (vectors == 2)
      acc[r][1] = vec_fma(x, b1, acc[r][1]);
  }
}

// acc[r][c] += sum over i < k of a[r * row_step + i * k_step] * b[i * ldb + c]. `unrolled`: a step after the other
// without a loop.
INLINE void tile_product_by(const bool unrolled, const int rows, const int vectors, infc_vec acc[][2], const float *a,
                            int64_t row_step, int64_t k_step, const float *b, int64_t ldb, int64_t k, prefetch ahead) {
  int64_t i = 0;
  for (; i + PREFETCH_STEP <= k; i += PREFETCH_STEP) {
    for (int64_t n = 0; n < ahead.lines; n++, ahead.address += CACHE_LINE) {
      if (ahead.near)
        _mm_prefetch((const char *)ahead.address, _MM_HINT_T0);
      else
        _mm_prefetch((const char *)ahead.address, _MM_HINT_T1);
    }
    if (unrolled) {
#pragma GCC unroll 8
      for (int j = 0; j < PREFETCH_STEP; j++, a += k_step, b += ldb)
        tile_step(rows, vectors, acc, a, row_step, b);
    } else {
#pragma GCC unroll 1
      for (int j = 0; j < PREFETCH_STEP; j++, a += k_step, b += ldb)
        tile_step(rows, vectors, acc, a, row_step, b);
    }
  }
#pragma GCC unroll 1
  for (; i < k; i++, a += k_step, b += ldb)
    tile_step(rows, vectors, acc, a, row_step, b);
}

// The step of a tall tile is long enough for a loop, and code for each height counts.
INLINE void tile_product(const int rows, const int vectors, infc_vec acc[][2], const float *a, int64_t row_step,
                         int64_t k_step, const float *b, int64_t ldb, int64_t k, prefetch ahead) {
  tile_product_by(rows <= TILE_SHORT, rows, vectors, acc, a, row_step, k_step, b, ldb, k, ahead);
}

// The parts of at most `most`, of whole `step`s of which that is a multiple, that a length is cut into, and where one
// ends. They are about as long as each other, as a short one would end before what follows it has come: of 8 bits K 576
// in 256, 256 and 64 was read at 15 GB/s, in thirds at 19.
INLINE int64_t parts_of(int64_t length, int64_t most) {
  return (length + most - 1) / most;
}
INLINE int64_t part_end(int64_t length, int64_t part, int64_t parts, int64_t step) {
  const int64_t end = (length * (part + 1) / parts + step - 1) / step * step;
  return end < length ? end : length;
}

// Splits n rows into the fewest tiles of at most `most`, their heights differing by at most one.
typedef struct tiling {
  int64_t count, height, taller; // the first `taller` tiles have height + 1 rows
} tiling;

INLINE tiling tile_rows_of(int64_t n, int64_t most) {
  const int64_t count = (n + most - 1) / most;
  return count ? (tiling){count, n / count, n % count} : (tiling){0, 0, 0};
}
INLINE tiling tile_rows(int64_t n) {
  return tile_rows_of(n, TILE_ROWS);
}

#endif // INFC_X86_TILE_H
