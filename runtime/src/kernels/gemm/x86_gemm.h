// gemm in f32, written once for both vector widths; included by x86_avx2_f32.c and x86_avx512_f32.c.
//
// Loops: blocks of rows whose A fits half of L2, panels of 32 columns, tiles of rows. A panel is read from memory once
// a block and stays in L2 while the block's tiles pass over it; meanwhile the next panel is fetched, evenly over the
// tiles, so that with few rows, where weights arrive from memory no faster than they are used, reading never pauses.
#include "gemm.h"
#include "x86_tile.h"

#include <string.h>

enum { BLOCK_BYTES = 512 * 1024 };

// Where one tile of g->k × TILE_COLS finds its operands; all of its columns exist.
typedef struct tile_place {
  const float *a, *b;
  const float *bias;     // of the first column, or NULL
  const float *residual; // at the first element, or NULL
  float *y;
  int64_t ldr, ldy;
  prefetch ahead;
} tile_place;

static void activate(uint32_t function, const tile_place *p, int rows, float x[][TILE_COLS]) {
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < TILE_COLS; c += LANES) {
      infc_vec v = vec_activate(vec_load(x[r] + c), function);
      if (p->residual)
        v = v + vec_load(p->residual + r * p->ldr + c);
      vec_store(p->y + r * p->ldy + c, v);
    }
  }
}

INLINE void tile_run(const int rows, const infc_gemm *g, const tile_place *p) {
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    acc[r][0] = acc[r][1] = vec_zero();
    for (int c = 0; c < TILE_COLS * 4; c += CACHE_LINE)
      __builtin_prefetch((char *)(p->y + r * p->ldy) + c, 1);
  }
  tile_product(rows, acc, p->a, g->lda, 1, p->b, INFC_PANEL, g->k, p->ahead);
  if (p->bias) {
    const infc_vec bias0 = vec_load(p->bias), bias1 = vec_load(p->bias + LANES);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      acc[r][0] = acc[r][0] + bias0;
      acc[r][1] = acc[r][1] + bias1;
    }
  }
  if (g->activation == INFC_UNARY_IDENTITY) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      if (p->residual) {
        acc[r][0] = acc[r][0] + vec_load(p->residual + r * p->ldr);
        acc[r][1] = acc[r][1] + vec_load(p->residual + r * p->ldr + LANES);
      }
      vec_store(p->y + r * p->ldy, acc[r][0]);
      vec_store(p->y + r * p->ldy + LANES, acc[r][1]);
    }
    return;
  }
  // By way of memory, so that the activations, a lot of code, are there once and in a loop.
  float x[TILE_ROWS][TILE_COLS] __attribute__((aligned(64)));
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    vec_store(x[r], acc[r][0]);
    vec_store(x[r] + LANES, acc[r][1]);
  }
  activate(g->activation, p, rows, x);
}

#define DEFINE_TILE(rows)                                                                                              \
  static void tile_##rows(const infc_gemm *g, const tile_place *p) {                                                   \
    tile_run(rows, g, p);                                                                                              \
  }
#define NAME_TILE(rows) tile_##rows,
FOR_TILE_ROWS(DEFINE_TILE)
static void (*const tiles[])(const infc_gemm *, const tile_place *) = {NULL, FOR_TILE_ROWS(NAME_TILE)};

// A tile of which only `cols` columns exist: computed aside and copied.
static void tile_partial(const infc_gemm *g, const tile_place *p, int64_t rows, int64_t cols) {
  float bias[TILE_COLS] = {0}, residual[TILE_ROWS][TILE_COLS] = {{0}}, y[TILE_ROWS][TILE_COLS];
  const size_t bytes = (size_t)cols * sizeof(float);
  if (p->bias)
    memcpy(bias, p->bias, bytes);
  for (int64_t r = 0; p->residual && r < rows; r++)
    memcpy(residual[r], p->residual + r * p->ldr, bytes);
  const tile_place aside = {p->a, p->b, bias, residual[0], y[0], TILE_COLS, TILE_COLS, p->ahead};
  tiles[rows](g, &aside);
  for (int64_t r = 0; r < rows; r++)
    memcpy(p->y + r * p->ldy, y[r], bytes);
}

// Columns of one panel for rows row0 to row1. `last`: no panel follows.
static void panel_run(const infc_gemm *g, int64_t panel, int64_t row0, int64_t row1, bool last) {
  const tiling t = tile_rows(row1 - row0);
  const int64_t passes = t.count * (INFC_PANEL / TILE_COLS);
  const int64_t lines = last ? 0 : (PREFETCH_STEP * INFC_PANEL * 4 / CACHE_LINE + passes - 1) / passes;
  const float *b = g->b + panel * g->k * INFC_PANEL;
  prefetch ahead = {(uintptr_t)(b + g->k * INFC_PANEL), lines};
  for (int64_t col = panel * INFC_PANEL; col < (panel + 1) * INFC_PANEL && col < g->n; col += TILE_COLS) {
    for (int64_t i = 0, row = row0; i < t.count; i++) {
      const int64_t rows = t.height + (i < t.taller);
      const tile_place place = {
          .a = g->a + row * g->lda,
          .b = b + col % INFC_PANEL,
          .bias = g->bias ? g->bias + col : NULL,
          .residual = g->residual ? g->residual + row * g->ldr + col : NULL,
          .y = g->y + row * g->ldy + col,
          .ldr = g->ldr,
          .ldy = g->ldy,
          .ahead = ahead,
      };
      if (g->n - col >= TILE_COLS)
        tiles[rows](g, &place);
      else
        tile_partial(g, &place, rows, g->n - col);
      row += rows;
      ahead.address += (uintptr_t)(lines * (g->k / PREFETCH_STEP) * CACHE_LINE);
    }
  }
}

static infc_fault gemm_run(const infc_task *task, const infc_range *range) {
  const infc_gemm g = infc_gemm_view(task);
  const int64_t rows = range->row1 - range->row0;
  if (rows <= 0)
    return INFC_FAULT_NONE;
  const int64_t fit = BLOCK_BYTES / 4 / g.k,
                blocks = (rows + (fit > TILE_ROWS ? fit : TILE_ROWS) - 1) / (fit > TILE_ROWS ? fit : TILE_ROWS);
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row0 = range->row0 + rows * i / blocks, row1 = range->row0 + rows * (i + 1) / blocks;
    for (int64_t panel = range->col0; panel < range->col1; panel++)
      panel_run(&g, panel, row0, row1, panel + 1 == range->col1);
  }
  return INFC_FAULT_NONE;
}
