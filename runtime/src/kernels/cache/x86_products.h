// Products of a tile of queries and panels, as those of a gemm (../gemm/x86_tile.h): sums of up to TILE_ROWS rows and
// TILE_COLS columns in registers.
#ifndef INFC_X86_CACHE_PRODUCTS_H
#define INFC_X86_CACHE_PRODUCTS_H

#include "x86_lines.h"

#include "../gemm/x86_tile.h"

enum {
  PANEL_ROWS = INFC_CACHE_TOKENS, // of a panel of values; keys are cut into as many
  PANELS = 4,                     // most of one product
};

// c[r] = factor[r] * c[r] + sum over panels of a[r] b, a moving on by 32 from one panel to the next.
typedef struct product {
  const element *a;
  int64_t lda;
  int64_t panels, last; // the rows of the last one
  const char *b[PANELS];
  const char *next[PANELS]; // what is fetched beside each, or NULL
  const float *factor;      // NULL: c is not there yet
  float *c;
  int64_t ldc;
} product;

INLINE void product_line(const int kind, const int rows, infc_vec acc[][2], const element *a, int64_t lda,
                         const char *b, bool half) {
  line_vec w[2];
  load_line(kind, b, half, w);
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const line_vec x = line_set(a + r * lda, half);
    acc[r][0] = line_fma(x, w[0], acc[r][0]);
    acc[r][1] = line_fma(x, w[1], acc[r][1]);
  }
}

INLINE void product_panel(const int kind, const int rows, infc_vec acc[][2], const element *a, int64_t lda, int64_t k,
                          const char *b, const char *next) {
  const int64_t size = line_size(kind), whole = k / DEPTH;
  int64_t i = 0;
  for (; i + PREFETCH_STEP <= whole; i += PREFETCH_STEP) {
    if (next)
#pragma GCC unroll 16
      for (int64_t byte = 0; byte < PREFETCH_STEP * size; byte += CACHE_LINE)
        _mm_prefetch(next + i * size + byte, _MM_HINT_T1);
    if (rows <= TILE_SHORT) {
#pragma GCC unroll 8
      for (int j = 0; j < PREFETCH_STEP; j++)
        product_line(kind, rows, acc, a + (i + j) * DEPTH, lda, b + (i + j) * size, false);
    } else {
#pragma GCC unroll 1
      for (int j = 0; j < PREFETCH_STEP; j++)
        product_line(kind, rows, acc, a + (i + j) * DEPTH, lda, b + (i + j) * size, false);
    }
  }
#pragma GCC unroll 1
  for (; i < whole; i++)
    product_line(kind, rows, acc, a + i * DEPTH, lda, b + i * size, false);
  if (whole * DEPTH < k)
    product_line(kind, rows, acc, a + i * DEPTH, lda, b + i * size, true);
}

INLINE void product_run(const int kind, const int rows, const product *p) {
  for (int col = 0; col < INFC_CACHE_PANEL; col += TILE_COLS) {
    infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++)
        acc[r][v] =
            p->factor ? vec_mul(vec_load(p->c + r * p->ldc + col + v * LANES), vec_set(p->factor[r])) : vec_zero();
    for (int64_t i = 0; i < p->panels; i++)
      product_panel(kind, rows, acc, p->a + i * PANEL_ROWS, p->lda, i + 1 < p->panels ? PANEL_ROWS : p->last,
                    p->b[i] + col * kind_size(kind), col ? NULL : p->next[i]);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++)
        vec_store(p->c + r * p->ldc + col + v * LANES, acc[r][v]);
  }
}

#if defined(__AVX512F__)
enum { NARROW_ROWS = 8 }; // of tiles that widen what they read
#define FOR_NARROW_ROWS(X, kind) X(1, kind) X(2, kind) X(3, kind) X(4, kind) X(5, kind) X(6, kind) X(7, kind) X(8, kind)
#else
enum { NARROW_ROWS = 4 };
#define FOR_NARROW_ROWS(X, kind) X(1, kind) X(2, kind) X(3, kind) X(4, kind)
#endif

#define DEFINE_WIDE(rows)                                                                                              \
  static void product_##rows(const product *p) {                                                                       \
    product_run(KIND_WIDE, rows, p);                                                                                   \
  }
#define DEFINE_NARROW(rows, kind)                                                                                      \
  static void product_##kind##_##rows(const product *p) {                                                              \
    product_run(kind, rows, p);                                                                                        \
  }
#define NAME_WIDE(rows) product_##rows,
#define NAME_NARROW(rows, kind) product_##kind##_##rows,
FOR_TILE_ROWS(DEFINE_WIDE)
FOR_NARROW_ROWS(DEFINE_NARROW, KIND_BF16)
FOR_NARROW_ROWS(DEFINE_NARROW, KIND_I8)
FOR_NARROW_ROWS(DEFINE_NARROW, KIND_F8)
static void (*const products[KINDS][TILE_ROWS + 1])(const product *) = {
    [KIND_WIDE] = {NULL, FOR_TILE_ROWS(NAME_WIDE)},
    [KIND_BF16] = {NULL, FOR_NARROW_ROWS(NAME_NARROW, KIND_BF16)},
    [KIND_I8] = {NULL, FOR_NARROW_ROWS(NAME_NARROW, KIND_I8)},
    [KIND_F8] = {NULL, FOR_NARROW_ROWS(NAME_NARROW, KIND_F8)},
};

#endif // INFC_X86_CACHE_PRODUCTS_H
