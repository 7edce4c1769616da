// gemm_grouped, written once for all ways of dot products (../gemm_i8/x86_dot.h). A tile of rows by two vectors of
// columns goes over the whole of K: sums of a group in integers, those of the groups in floats, which are touched once
// a group and may live on the stack. Panels come from memory once a block of rows, as in gemm (../gemm/x86_gemm.h).
//
// Sparse weights are not spread out. Kept ones of 8 along K fill a dword, and the bytes of the row that they meet are
// put in its place by a shuffle of those 8 bytes, which every lane holds.
#include "gemm_grouped.h"

#include "../gemm/x86_epilogue.h"
#include "../gemm_i8/x86_dot.h"

enum {
  BLOCK_BYTES = 320 * 1024,
  STREAM_AHEAD = 1024, // bytes
  VECTOR_BYTES = LANES * 4,
};

typedef enum format { DENSE_8, DENSE_4, SPARSE_4, FORMATS } format;
INLINE int64_t unit_bytes(format kind) {
  return INFC_GROUPED_LINE * (kind == DENSE_8 ? 8 : kind == DENSE_4 ? 4 : 3);
}

// Where one tile finds its operands.
typedef struct tile_place {
  const int8_t *a;
  const float *params;
  const uint8_t *b; // of the panel
  int64_t col;      // of the tile in it
  epilogue out;
  uintptr_t ahead; // what to fetch: so many bytes a group
  int64_t fetched;
} tile_place;

INLINE ivec ivec_or(ivec a, ivec b) {
#if defined(__AVX512F__)
  return _mm512_or_si512(a, b);
#else
  return _mm256_or_si256(a, b);
#endif
}

INLINE ivec nibbles(ivec v) {
  return ivec_and(v, IVEC(set1_epi8)(15));
}

// sum + lows * low + highs * high of weights of 4 bits and four bytes of a row each.
INLINE ivec dot_nibbles(ivec sum, ivec lows, ivec highs, ivec low, ivec high) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return dot(dot(sum, factor_unsigned(lows), factor_signed(low)), factor_unsigned(highs), factor_signed(high));
#else // 4 * 15 * 128 is far from what 16 bits hold
  const ivec pairs = IVEC(add_epi16)(IVEC(maddubs_epi16)(lows, low), IVEC(maddubs_epi16)(highs, high));
  return IVEC(add_epi32)(sum, IVEC(madd_epi16)(pairs, IVEC(set1_epi16)(1)));
#endif
}

INLINE ivec row_bytes(const int8_t *a) {
  int32_t four;
  memcpy(&four, a, sizeof four);
  return IVEC(set1_epi32)(four);
}

// Eight bytes of a row with 128 added, again and again.
INLINE ivec row_shifted(const int8_t *a) {
  int64_t eight;
  memcpy(&eight, a, sizeof eight);
#if defined(__AVX512F__)
  return _mm512_xor_si512(_mm512_set1_epi64(eight), _mm512_set1_epi8(-128));
#else
  return _mm256_xor_si256(_mm256_set1_epi64x(eight), _mm256_set1_epi8(-128));
#endif
}

// Of 32 along K: acc += rows * weights.
INLINE void unit_dense_8(const int rows, ivec acc[][2], const int8_t *a, int64_t lda, const uint8_t *b) {
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 4, b += INFC_GROUPED_LINE) {
    const factor w[2] = {factor_unsigned(ivec_load(b)), factor_unsigned(ivec_load(b + VECTOR_BYTES))};
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const factor x = factor_signed(row_bytes(a + r * lda + i));
      acc[r][0] = dot(acc[r][0], w[0], x);
      acc[r][1] = dot(acc[r][1], w[1], x);
    }
  }
}

INLINE void unit_dense_4(const int rows, ivec acc[][2], const int8_t *a, int64_t lda, const uint8_t *b) {
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 8, b += INFC_GROUPED_LINE) {
    ivec low[2], high[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      const ivec w = ivec_load(b + v * VECTOR_BYTES);
      low[v] = nibbles(w), high[v] = nibbles(IVEC(srli_epi16)(w, 4));
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const ivec x = row_bytes(a + r * lda + i), x4 = row_bytes(a + r * lda + i + 4);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++)
        acc[r][v] = dot_nibbles(acc[r][v], low[v], high[v], x, x4);
    }
  }
}

// 128 times the weights' sums are added to `shift`, and rows with 128 added are multiplied: both factors' signs are
// then as `dot` wants them.
INLINE void unit_sparse_4(const int rows, ivec acc[][2], ivec shift[2], const ivec zeros[2], const int8_t *a,
                          int64_t lda, const uint8_t *b) {
  const ivec three = IVEC(set1_epi8)(3), half = IVEC(set1_epi32)(0x04040000);
  const factor shifts = factor_unsigned(IVEC(set1_epi8)(-128));
  ivec codes[2] = {ivec_load(b), ivec_load(b + VECTOR_BYTES)};
#pragma GCC unroll 4
  for (int i = 0; i < INFC_GROUPED_UNIT; i += 8) {
    factor w[2];
    ivec place[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      const ivec two = ivec_load(b + (1 + i / 16) * INFC_GROUPED_LINE + v * VECTOR_BYTES);
      w[v] = factor_signed(IVEC(sub_epi8)(nibbles(i % 16 ? IVEC(srli_epi16)(two, 4) : two), zeros[v]));
      shift[v] = dot(shift[v], shifts, w[v]);
      place[v] = ivec_or(ivec_and(codes[v], three), half);
      codes[v] = IVEC(srli_epi32)(codes[v], 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const ivec x = row_shifted(a + r * lda + i);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++)
        acc[r][v] = dot(acc[r][v], factor_unsigned(IVEC(shuffle_epi8)(x, place[v])), w[v]);
    }
  }
}

// Scales and zeros of one vector of columns, a group's part of the panel starting at b.
INLINE infc_vec group_scales(const infc_gemm_grouped *g, const uint8_t *b, int64_t col) {
  if (g->scale_bytes == 4 * INFC_PANEL)
    return vec_load((const float *)(const void *)b + col);
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(b + 2 * col)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(b + 2 * col)));
#endif
}
INLINE ivec group_zeros(const infc_gemm_grouped *g, const uint8_t *b, int64_t col) {
  if (!g->zero_bytes)
    return IVEC(set1_epi32)((int32_t)g->zero);
#if defined(__AVX512F__)
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b + g->scale_bytes + col)));
#else
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(b + g->scale_bytes + col)));
#endif
}

// sums += row's scale * column's scale * (dots of the group with weights less their zeros)
INLINE void group_run(const int rows, const format kind, infc_vec sums[][2], const infc_gemm_grouped *g,
                      const int8_t *a, const float *params, const uint8_t *b, int64_t col) {
  const uint8_t *weights = b + g->scale_bytes + g->zero_bytes + col * 4;
  ivec acc[DOT_ROWS][2], zero[2], shift[2] = {ivec_zero(), ivec_zero()};
#pragma GCC unroll 2
  for (int v = 0; v < 2; v++)
    zero[v] = group_zeros(g, b, col + v * LANES);
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const ivec sum = IVEC(cvtps_epi32)(vec_set(-params[r * 2 * g->groups + 1]));
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) // a product of 16 bits: sums are less than 2^14
      acc[r][v] = kind == SPARSE_4 ? ivec_zero() : IVEC(madd_epi16)(zero[v], sum);
  }
  if (kind == SPARSE_4) // in all four bytes
    zero[0] = IVEC(mullo_epi32)(zero[0], IVEC(set1_epi32)(0x01010101)),
    zero[1] = IVEC(mullo_epi32)(zero[1], IVEC(set1_epi32)(0x01010101));
  infc_vec scale[2];
  if (rows <= TILE_SHORT) // first, as they lie: a panel is then read from its start to its end, 25 % faster with 4 bits
    scale[0] = group_scales(g, b, col), scale[1] = group_scales(g, b, col + LANES);
  for (const int8_t *end = a + g->group; a < end; a += INFC_GROUPED_UNIT, weights += unit_bytes(kind)) {
    if (kind == DENSE_8)
      unit_dense_8(rows, acc, a, g->lda, weights);
    else if (kind == DENSE_4)
      unit_dense_4(rows, acc, a, g->lda, weights);
    else
      unit_sparse_4(rows, acc, shift, zero, a, g->lda, weights);
  }
  if (rows > TILE_SHORT)
    scale[0] = group_scales(g, b, col), scale[1] = group_scales(g, b, col + LANES);
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const infc_vec row_scale = vec_set(params[r * 2 * g->groups]);
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      const ivec dots = kind == SPARSE_4 ? IVEC(sub_epi32)(acc[r][v], shift[v]) : acc[r][v];
      sums[r][v] = vec_fma(IVEC(cvtepi32_ps)(dots), row_scale * scale[v], sums[r][v]);
    }
  }
}

INLINE void tile_run(const int rows, const format kind, const infc_gemm_grouped *g, const tile_place *p) {
  infc_vec sums[DOT_ROWS][2];
#pragma GCC unroll 2
  for (int v = 0; v < 2; v++) {
    const int64_t n = p->out.cols - v * LANES;
    const infc_vec bias = p->out.bias && n > 0 ? load_cols(p->out.bias + v * LANES, n < LANES ? n : LANES) : vec_zero();
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
      sums[r][v] = bias;
  }
  uintptr_t ahead = p->ahead;
  const uint8_t *b = p->b;
  for (int64_t i = 0; i < g->groups; i++, b += g->group_bytes) {
    for (const uintptr_t end = ahead + (uintptr_t)p->fetched; ahead < end; ahead += CACHE_LINE)
      _mm_prefetch((const char *)ahead, _MM_HINT_T1);
    ahead = p->ahead + (uintptr_t)((i + 1) * p->fetched);
    group_run(rows, kind, sums, g, p->a + i * g->group, p->params + 2 * i, b, p->col);
  }
  float tile[TILE_ROWS][TILE_COLS] __attribute__((aligned(64)));
  store_tile((tile_kind){rows, 2}, tile, sums);
  epilogue_activate(&p->out, rows, tile);
}

#define DEFINE_TILE(rows)                                                                                              \
  static void tile_dense_8_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                   \
    tile_run(rows, DENSE_8, g, p);                                                                                     \
  }                                                                                                                    \
  static void tile_dense_4_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                   \
    tile_run(rows, DENSE_4, g, p);                                                                                     \
  }                                                                                                                    \
  static void tile_sparse_4_##rows(const infc_gemm_grouped *g, const tile_place *p) {                                  \
    tile_run(rows, SPARSE_4, g, p);                                                                                    \
  }
#define NAME_DENSE_8(rows) tile_dense_8_##rows,
#define NAME_DENSE_4(rows) tile_dense_4_##rows,
#define NAME_SPARSE_4(rows) tile_sparse_4_##rows,
FOR_DOT_ROWS(DEFINE_TILE)
static void (*const tiles[FORMATS][DOT_ROWS + 1])(const infc_gemm_grouped *, const tile_place *) = {
    {NULL, FOR_DOT_ROWS(NAME_DENSE_8)}, {NULL, FOR_DOT_ROWS(NAME_DENSE_4)}, {NULL, FOR_DOT_ROWS(NAME_SPARSE_4)}};

// Columns of one panel for rows row0 to row1. A panel that one tile passes over is fetched some way ahead; else each
// pass fetches its share of the next panel, if there is one.
static void panel_run(const infc_gemm_grouped *g, int64_t panel, int64_t row0, int64_t row1, bool last) {
  const format kind = g->bits == 8 ? DENSE_8 : g->sparse ? SPARSE_4 : DENSE_4;
  const tiling t = tile_rows_of(row1 - row0, DOT_ROWS);
  const uint8_t *b = g->b + panel * g->groups * g->group_bytes;
  const int64_t cols = g->n - panel * INFC_PANEL < INFC_PANEL ? g->n - panel * INFC_PANEL : INFC_PANEL;
  const int64_t passes = t.count * ((cols + TILE_COLS - 1) / TILE_COLS);
  const int64_t fetched = passes > 1 && last ? 0 : g->group_bytes / passes;
  uintptr_t ahead = (uintptr_t)(passes == 1 ? b + STREAM_AHEAD : b + g->groups * g->group_bytes);
  for (int64_t col = 0; col < cols; col += TILE_COLS) {
    for (int64_t i = 0, row = row0, rows; i < t.count; i++, row += rows) {
      rows = t.height + (i < t.taller);
      const int64_t n = cols - col < TILE_COLS ? cols - col : TILE_COLS, at = panel * INFC_PANEL + col;
      const tile_place place = {
          .a = g->a + row * g->lda,
          .params = g->params + row * 2 * g->groups,
          .b = b,
          .col = col,
          .out = {g->bias ? g->bias + at : NULL, g->residual ? g->residual + row * g->ldr + at : NULL,
                  g->y + row * g->ldy + at, g->ldr, g->ldy, g->activation, g->residual_first, n},
          .ahead = ahead,
          .fetched = fetched,
      };
      tiles[kind][rows](g, &place);
      ahead += (uintptr_t)(fetched * g->groups);
    }
  }
}

INLINE void gemm_grouped_run(const infc_task *task, const infc_range *range) {
  const infc_gemm_grouped g = infc_gemm_grouped_view(task);
  const int64_t rows = range->row1 - range->row0;
  if (rows <= 0)
    return;
  const int64_t fit = BLOCK_BYTES / g.k, block = fit > DOT_ROWS ? fit : DOT_ROWS;
  const int64_t blocks = (rows + block - 1) / block;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row0 = range->row0 + rows * i / blocks, row1 = range->row0 + rows * (i + 1) / blocks;
    for (int64_t panel = range->col0; panel < range->col1; panel++)
      panel_run(&g, panel, row0, row1, panel + 1 == range->col1);
  }
}
