// winograd in f32, written once for both vector widths; included by x86_avx2_f32.c and x86_avx512_f32.c.
//
// Blocks of tiles whose transformed input stays in L2: 36 matrices [tiles, C]. Then, a panel of 32 columns at a time,
// 36 products and the transform of their results. A panel's 36 matrices of weights lie one after the other.
#include "../gemm/x86_clamp.h"
#include "../gemm/x86_tile.h"
#include "winograd.h"

enum { HALVES = INFC_PANEL / TILE_COLS };

INLINE infc_vec load_some(const float *from, int64_t n) {
  return n == LANES ? vec_load(from) : vec_load_first(from, n, vec_zero());
}
INLINE void store_some(float *to, int64_t n, infc_vec x) {
  if (n == LANES)
    vec_store(to, x);
  else
    vec_store_first(to, n, x);
}

// ---- Input

// to[e * point + c] for the channels of one tile.
static void transform_input(const infc_winograd *g, const infc_winograd_tile *t, float *to, int64_t point) {
  const float *source[6][6];
  for (int i = 0; i < 6; i++)
    for (int j = 0; j < 6; j++)
      source[i][j] = infc_winograd_source(g, t, i, j);
  for (int64_t c = 0; c < g->channels; c += LANES) {
    const int64_t n = g->channels - c < LANES ? g->channels - c : LANES;
    infc_vec half[6][6];
#pragma GCC unroll 6
    for (int j = 0; j < 6; j++) {
      infc_vec d[6], column[6];
#pragma GCC unroll 6
      for (int i = 0; i < 6; i++)
        d[i] = source[i][j] ? load_some(source[i][j] + c, n) : vec_zero();
      INFC_WINOGRAD_INPUT(infc_vec, vec_set, d, column);
#pragma GCC unroll 6
      for (int i = 0; i < 6; i++)
        half[i][j] = column[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++) {
      infc_vec row[6];
      INFC_WINOGRAD_INPUT(infc_vec, vec_set, half[i], row);
#pragma GCC unroll 6
      for (int j = 0; j < 6; j++)
        store_some(to + (i * 6 + j) * point + c, n, row[j]);
    }
  }
}

// ---- Products

INLINE void product_run(const int rows, const float *a, int64_t lda, const float *b, int64_t k, float *to,
                        prefetch ahead) {
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
    acc[r][0] = acc[r][1] = vec_zero();
  tile_product(rows, 2, acc, a, lda, 1, b, INFC_PANEL, k, ahead);
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    vec_store(to + r * TILE_COLS, acc[r][0]);
    vec_store(to + r * TILE_COLS + LANES, acc[r][1]);
  }
}

#define DEFINE_PRODUCT(rows)                                                                                           \
  static void product_##rows(const float *a, int64_t lda, const float *b, int64_t k, float *to, prefetch ahead) {      \
    product_run(rows, a, lda, b, k, to, ahead);                                                                        \
  }
#define NAME_PRODUCT(rows) product_##rows,
FOR_TILE_ROWS(DEFINE_PRODUCT)
static void (*const products[])(const float *, int64_t, const float *, int64_t, float *,
                                prefetch) = {NULL, FOR_TILE_ROWS(NAME_PRODUCT)};

// to[(e * HALVES + half) * tiles + t][TILE_COLS] for all points of one panel.
static void multiply(const infc_winograd *g, const float *transformed, int64_t tiles, const float *b, float *to) {
  const int64_t stride = infc_winograd_stride(g), k = g->channels;
  const tiling t = tile_rows(tiles);
  const int64_t passes = t.count * HALVES;
  const int64_t lines = (PREFETCH_STEP * INFC_PANEL * 4 / CACHE_LINE + passes - 1) / passes;
  for (int64_t e = 0; e < INFC_WINOGRAD_POINTS; e++, b += k * INFC_PANEL) {
    prefetch ahead = {(uintptr_t)(b + k * INFC_PANEL), lines, passes > 2};
    for (int64_t half = 0; half < HALVES; half++) {
      const float *a = transformed + e * tiles * stride;
      for (int64_t i = 0, rows; i < t.count; i++, a += rows * stride, to += rows * TILE_COLS) {
        rows = t.height + (i < t.taller);
        products[rows](a, stride, b + half * TILE_COLS, k, to, ahead);
        ahead.address += (uintptr_t)(lines * (k / PREFETCH_STEP) * CACHE_LINE);
      }
    }
  }
}

// ---- Output

// Activations that are not done in registers.
static __attribute__((noinline)) void activate_all(infc_vec y[4][4], uint32_t activation) {
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      y[i][j] = vec_activate(y[i][j], activation);
}

// One vector of columns of one tile, from column `col` on, n of them; m[e * point].
static void transform_output(const infc_winograd *g, const infc_winograd_tile *t, const float *m, int64_t point,
                             int64_t col, int64_t n) {
  infc_vec half[4][6], y[4][4];
#pragma GCC unroll 6
  for (int j = 0; j < 6; j++) {
    infc_vec column[6], to[4];
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++)
      column[i] = vec_load(m + (i * 6 + j) * point);
    INFC_WINOGRAD_OUTPUT(infc_vec, vec_set, column, to);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
      half[i][j] = to[i];
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    INFC_WINOGRAD_OUTPUT(infc_vec, vec_set, half[i], y[i]);
  const infc_vec bias = g->bias ? load_some(g->bias + col, n) : vec_zero();
  const int64_t rows = g->out_h - t->h < 4 ? g->out_h - t->h : 4, cols = g->out_w - t->w < 4 ? g->out_w - t->w : 4;
  const int64_t first = (t->image * g->out_h + t->h) * g->out_w + t->w;
  const clamp cheap = clamp_of(g->activation);
  infc_vec residual[4][4];
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      const bool there = g->residual && i < rows && j < cols;
      residual[i][j] = there ? load_some(g->residual + (first + i * g->out_w + j) * g->ldr + col, n) : vec_zero();
      y[i][j] = y[i][j] + bias + (g->residual_first ? residual[i][j] : vec_zero());
    }
  if (!cheap.cheap)
    activate_all(y, g->activation);
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < cols; j++) {
      infc_vec v = cheap.cheap ? clamp_run(cheap, y[i][j]) : y[i][j];
      if (g->residual && !g->residual_first)
        v = v + residual[i][j];
      store_some(g->y + (first + i * g->out_w + j) * g->ldy + col, n, v);
    }
}

static void transform_panel(const infc_winograd *g, int64_t row0, int64_t tiles, const float *m, int64_t panel) {
  const int64_t point = HALVES * tiles * TILE_COLS;
  for (int64_t r = 0; r < tiles; r++) {
    const infc_winograd_tile t = infc_winograd_tile_of(g, row0 + r);
    for (int64_t c = 0; c < INFC_PANEL && panel * INFC_PANEL + c < g->columns; c += LANES) {
      const int64_t col = panel * INFC_PANEL + c, n = g->columns - col < LANES ? g->columns - col : LANES;
      transform_output(g, &t, m + (c / TILE_COLS * tiles + r) * TILE_COLS + c % TILE_COLS, point, col, n);
    }
  }
}

static infc_fault winograd_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_winograd g = infc_winograd_view(task);
  const int64_t block = infc_winograd_block(&g), stride = infc_winograd_stride(&g);
  const int64_t all = range->row1 - range->row0, blocks = (all + block - 1) / block;
  float *transformed = worker->scratch, *results = transformed + INFC_WINOGRAD_POINTS * block * stride;
  if (range->col0 >= range->col1)
    return INFC_FAULT_NONE;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row0 = range->row0 + all * i / blocks, tiles = range->row0 + all * (i + 1) / blocks - row0;
    for (int64_t r = 0; r < tiles; r++) {
      const infc_winograd_tile t = infc_winograd_tile_of(&g, row0 + r);
      transform_input(&g, &t, transformed + r * stride, tiles * stride);
    }
    for (int64_t panel = range->col0; panel < range->col1; panel++) {
      const float *b = g.b + panel * INFC_WINOGRAD_POINTS * g.channels * INFC_PANEL;
      multiply(&g, transformed, tiles, b, results);
      transform_panel(&g, row0, tiles, results, panel);
    }
  }
  return INFC_FAULT_NONE;
}
