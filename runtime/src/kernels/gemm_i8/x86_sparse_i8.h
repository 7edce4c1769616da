// gemm_i8 with 2:4 weights. They are not spread out: kept ones of 8 rows fill a dword, and the bytes of a's row that
// they meet are put in its place by a shuffle of those 8 bytes, which every lane holds.
#include "x86_gemm_i8.h"

enum { SPARSE_AHEAD = 1024 }; // bytes

// Eight bytes of a row, again and again.
INLINE ivec row_eight(const uint8_t *a) {
  int64_t eight;
  memcpy(&eight, a, sizeof eight);
#if defined(__AVX512F__)
  return _mm512_set1_epi64(eight);
#else
  return _mm256_set1_epi64x(eight);
#endif
}

INLINE void sparse_unit(const int rows, ivec acc[][2], const uint8_t *a, int64_t lda, const int8_t *b) {
  const ivec three = IVEC(set1_epi8)(3), half = IVEC(set1_epi32)(0x04040000);
  ivec codes[2] = {ivec_load(b), ivec_load(b + LANES * INFC_I8_DEPTH)};
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    factor w[2];
    ivec place[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      w[v] = factor_signed(ivec_load(b + (1 + j) * INFC_I8_LINE + v * LANES * INFC_I8_DEPTH));
      place[v] = IVEC(add_epi8)(ivec_and(codes[v], three), half);
      codes[v] = IVEC(srli_epi32)(codes[v], 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const ivec x = row_eight(a + r * lda + 8 * j);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++)
        acc[r][v] = dot(acc[r][v], factor_unsigned(IVEC(shuffle_epi8)(x, place[v])), w[v]);
    }
  }
}

INLINE void sparse_tile(const int rows, const infc_gemm_i8 *g, const tile_place *p) {
  ivec acc[DOT_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
    acc[r][0] = acc[r][1] = ivec_zero();
  const int8_t *b = p->b;
  for (int64_t i = 0; i < g->k; i += INFC_I8_UNIT, b += INFC_I8_UNIT_LINES * INFC_I8_LINE) {
    for (int64_t n = 0; n < p->ahead.lines; n++)
      _mm_prefetch((const char *)((uintptr_t)b + SPARSE_AHEAD + (uintptr_t)(n * CACHE_LINE)), _MM_HINT_T1);
    sparse_unit(rows, acc, p->a + i, g->lda, b);
  }
  int32_t sums[DOT_ROWS][TILE_COLS] __attribute__((aligned(64)));
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      ivec_store(sums[r] + v * LANES, acc[r][v]);
  finish_any(g, p, rows, sums);
}

#define DEFINE_SPARSE(rows)                                                                                            \
  static void sparse_##rows(const infc_gemm_i8 *g, const tile_place *p) {                                              \
    sparse_tile(rows, g, p);                                                                                           \
  }
#define NAME_SPARSE(rows) sparse_##rows,
FOR_DOT_ROWS(DEFINE_SPARSE)
static void (*const sparse_tiles[DOT_ROWS + 1])(const infc_gemm_i8 *, const tile_place *) = {NULL,
                                                                                             FOR_DOT_ROWS(NAME_SPARSE)};

// Columns of one panel for rows row0 to row1; the first pass over it is fetched some way ahead.
static void sparse_panel(const infc_gemm_i8 *g, int64_t panel, int64_t row0, int64_t row1) {
  const tiling t = tile_rows_of(row1 - row0, DOT_ROWS);
  const int8_t *b = g->b + panel * infc_i8_panel_bytes(g->k, true);
  for (int64_t col = panel * INFC_PANEL; col < (panel + 1) * INFC_PANEL && col < g->n; col += TILE_COLS) {
    const int64_t cols = g->n - col < TILE_COLS ? g->n - col : TILE_COLS;
    for (int64_t i = 0, row = row0, rows; i < t.count; i++, row += rows) {
      rows = t.height + (i < t.taller);
      const tile_place place = {
          .a = g->a + row * g->lda,
          .b = b + col % INFC_PANEL * INFC_I8_DEPTH,
          .params = g->params + row * g->params_step,
          .col = col,
          .yq = g->out ? g->yq + row * g->ldy + col : NULL,
          .out = {g->bias ? g->bias + col : NULL, g->residual ? g->residual + row * g->ldr + col : NULL,
                  g->out ? NULL : g->y + row * g->ldy + col, g->ldr, g->ldy, g->activation, g->residual_first, cols},
          .ahead.lines = i || col % INFC_PANEL ? 0 : INFC_I8_UNIT_LINES * INFC_I8_LINE / CACHE_LINE,
      };
      sparse_tiles[rows](g, &place);
    }
  }
}

INLINE void gemm_i8_any(const infc_task *task, const infc_range *range) {
  if (!task->words[INFC_W_GEMM_I8_SPARSE]) {
    gemm_i8_run(task, range);
    return;
  }
  const infc_gemm_i8 g = infc_gemm_i8_view(task);
  const int64_t rows = range->row1 - range->row0, fit = BLOCK_BYTES / g.k, block = fit > DOT_ROWS ? fit : DOT_ROWS;
  const int64_t blocks = rows > 0 ? (rows + block - 1) / block : 0;
  for (int64_t i = 0; i < blocks; i++)
    for (int64_t panel = range->col0; panel < range->col1; panel++)
      sparse_panel(&g, panel, range->row0 + rows * i / blocks, range->row0 + rows * (i + 1) / blocks);
}
