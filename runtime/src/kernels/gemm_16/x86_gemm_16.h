// gemm_16, written once for all ways of products (x86_lines.h). Blocks, panels, tiles and what is fetched ahead are
// those of gemm (../gemm/x86_gemm.h, which says why), a line of weights taking the place of a row of b. But one pass is
// so short here that it is faster with help: the page that follows is fetched into L2.
//
// Measured on one core of a busy Zen 4, in the same process as gemm in f32, whose speed is 100: K × N of 384 × 1152,
// 384 × 384, 384 × 1536 with GELU, 1536 × 384 and 2048 × 2048, rows 8 to 512:
//   bf16               187 to 207    f16    86 to 95
//   bf16, 2:4          the same      f8     160 to 200 from 64 rows on, 126 with 8
// With weights from memory (bench_decode), share of what a plain read loop gets; K × N of 4096 × 4096 and four shapes
// of a small model:
//   rows               1           2           8
//   bf16               88 to 94    88 to 97    74 to 79 %
//   bf16, 2:4          78 to 93    64 to 91    47 %, which is 1.5 to 1.9, 1.3 to 1.8 and 1.1 times as fast as bf16
// Fetched 4096 bytes ahead, 1 row had 69 to 83 %, and 8 rows 57 to 61.
#include "x86_lines.h"

enum {
  // Bytes ahead of what one pass streams: up to so many rows the loads come early enough by themselves.
  NEAR_ROWS = 4,
  NEAR_SPARSE_ROWS = 2,
  NEAR_AHEAD = 1024,
  FAR_AHEAD = 8192,
  CHUNK_BYTES = 8192,  // of a panel
  STRETCH_BYTES = 1024 // between prefetches; a line of sparse weights is longer
};

// What a tile multiplies: weights of f8e4m3 come as bf16.
enum { LINES_BF16, LINES_F16, LINES_SPARSE, LINES_KINDS };

// Where one tile finds its operands.
typedef struct tile_place {
  const char *a;
  int64_t lda;
  const uint8_t *b;
  int64_t lines;
  bool half;                // the last of them has one row alone
  float (*sums)[TILE_COLS]; // of the chunks of K before this one, or room for them
  bool first, last;         // of the chunks; the output is written by the last
  const float *scales;      // of the first column, or NULL
  epilogue out;
  prefetch ahead;
} tile_place;

INLINE void stretch_fetch(prefetch *ahead) {
  for (int64_t n = 0; n < ahead->lines; n++, ahead->address += CACHE_LINE) {
    if (ahead->near)
      _mm_prefetch((const char *)ahead->address, _MM_HINT_T0);
    else
      _mm_prefetch((const char *)ahead->address, _MM_HINT_T1);
  }
}

INLINE int64_t stretch_of(const int lines) {
  return lines == LINES_SPARSE ? 1 : STRETCH_BYTES / (lines == LINES_BF16 ? INFC_PANEL * 4 : INFC_PANEL * 2);
}

INLINE void line_run(const int lines, const int rows, infc_vec acc[][2], const char *a, int64_t lda, size_t bytes,
                     const uint8_t *b) {
  if (lines == LINES_BF16)
    line_bf16(rows, acc, (const bf16_row *)(const void *)a, lda, bytes, b);
  else if (lines == LINES_F16)
    line_f16(rows, acc, (const float *)(const void *)a, lda, b);
  else
    line_sparse(rows, acc, (const uint16_t *)(const void *)a, lda, b);
}

INLINE void lines_run(const int lines, const int rows, infc_vec acc[][2], const tile_place *p) {
  const int64_t a_step = lines == LINES_SPARSE ? INFC_16_SPARSE_ROWS * 2
                         : lines == LINES_F16  ? (int64_t)sizeof(float)
                                               : 2 * (int64_t)sizeof(bf16_row);
  const int64_t lda = p->lda;
  const int64_t b_step =
      infc_gemm_16_line(lines == LINES_F16 ? INFC_GEMM_16_F16 : INFC_GEMM_16_BF16, lines == LINES_SPARSE);
  const int64_t stretch = stretch_of(lines), whole = p->lines - p->half;
  const char *a = p->a;
  const uint8_t *b = p->b;
  prefetch ahead = p->ahead;
  int64_t i = 0;
  for (; i + stretch <= whole; i += stretch) {
    stretch_fetch(&ahead);
    for (int64_t j = 0; j < stretch; j++, a += a_step, b += b_step)
      line_run(lines, rows, acc, a, lda, 4, b);
  }
  for (; stretch > 1 && i < whole; i++, a += a_step, b += b_step)
    line_run(lines, rows, acc, a, lda, 4, b);
  if (lines == LINES_BF16 && p->half)
    line_run(lines, rows, acc, a, lda, 2, b);
}

// By way of memory: there once for all heights.
static __attribute__((noinline)) void finish(const tile_place *p, int rows) {
  for (int64_t c = 0; c < p->out.cols; c += LANES) {
    const int64_t n = p->out.cols - c < LANES ? p->out.cols - c : LANES;
    const infc_vec scale = p->scales ? load_cols(p->scales + c, n) : vec_set(1.0f);
    const infc_vec bias = p->out.bias ? load_cols(p->out.bias + c, n) : vec_zero();
    for (int r = 0; r < rows; r++)
      vec_store(p->sums[r] + c, vec_load(p->sums[r] + c) * scale + bias);
  }
  epilogue_activate(&p->out, rows, p->sums);
}

INLINE void tile_run(const int lines, const int rows, const tile_place *p) {
  const tile_kind kind = {rows, 2};
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      acc[r][v] = p->first ? vec_zero() : vec_load(p->sums[r] + v * LANES);
  if (p->last)
    epilogue_fetch(kind, &p->out);
  lines_run(lines, rows, acc, p);
  store_tile(kind, p->sums, acc);
  if (p->last)
    finish(p, rows);
}

#define DEFINE_BF16(rows)                                                                                              \
  static void tile_bf16_##rows(const tile_place *p) {                                                                  \
    tile_run(LINES_BF16, rows, p);                                                                                     \
  }
#define DEFINE_F16(rows)                                                                                               \
  static void tile_f16_##rows(const tile_place *p) {                                                                   \
    tile_run(LINES_F16, rows, p);                                                                                      \
  }
#define DEFINE_SPARSE(rows)                                                                                            \
  static void tile_sparse_##rows(const tile_place *p) {                                                                \
    tile_run(LINES_SPARSE, rows, p);                                                                                   \
  }
#define NAME_BF16(rows) tile_bf16_##rows,
#define NAME_F16(rows) tile_f16_##rows,
#define NAME_SPARSE(rows) tile_sparse_##rows,
FOR_TILE_ROWS(DEFINE_BF16)
#if !defined(__AVX512BF16__)
FOR_TILE_ROWS(DEFINE_F16)
#endif
FOR_SPARSE_ROWS(DEFINE_SPARSE)
static void (*const tiles[LINES_KINDS][TILE_ROWS + 1])(const tile_place *) = {
    [LINES_BF16] = {NULL, FOR_TILE_ROWS(NAME_BF16)},
#if !defined(__AVX512BF16__) // its caller keeps f16 to itself
    [LINES_F16] = {NULL, FOR_TILE_ROWS(NAME_F16)},
#endif
    [LINES_SPARSE] = {NULL, FOR_SPARSE_ROWS(NAME_SPARSE)}};

// What is the same for all tiles of a panel.
typedef struct pass {
  int lines;     // LINES_*
  int64_t line;  // bytes of one
  tiling t;      // of the rows
  int64_t row0;  // of the block
  const char *a; // its rows, as tiles read them
  int64_t lda;
  int64_t a_size;    // bytes of an element of a
  int64_t depth;     // rows of b in a line
  uint16_t *widened; // lines of the panel that were f8e4m3
} pass;

// TILE_COLS columns from `col` on and lines i0 to i1 of K, that lie at b, by all tiles of the rows.
static void columns_run(const infc_gemm_16 *g, const pass *s, const uint8_t *b, int64_t col, int64_t i0, int64_t i1,
                        float (*sums)[TILE_COLS], prefetch *ahead) {
  const int64_t cols = g->n - col < TILE_COLS ? g->n - col : TILE_COLS;
  const bool whole = i0 == 0 && i1 == g->lines;
  for (int64_t i = 0, row = s->row0, rows; i < s->t.count; i++, row += rows) {
    rows = s->t.height + (i < s->t.taller);
    const tile_place place = {
        .a = s->a + ((row - s->row0) * s->lda + i0 * s->depth) * s->a_size,
        .lda = s->lda,
        .b = b + col % INFC_PANEL * (s->lines == LINES_F16 ? 2 : 4),
        .lines = i1 - i0,
        .half = i1 * s->depth > g->k,
        .sums = whole ? sums : sums + i * TILE_ROWS,
        .first = i0 == 0,
        .last = i1 == g->lines,
        .scales = g->scales ? g->scales + col : NULL,
        .out = {g->bias ? g->bias + col : NULL, g->residual ? g->residual + row * g->ldr + col : NULL,
                g->y + row * g->ldy + col, g->ldr, g->ldy, g->activation, g->residual_first, cols},
        .ahead = *ahead,
    };
    tiles[s->lines][rows](&place);
    ahead->address += (uintptr_t)(ahead->lines * ((i1 - i0) / stretch_of(s->lines)) * CACHE_LINE);
  }
}

static int64_t stream_ahead(const pass *s) {
  const int64_t rows = s->t.height + (s->t.taller > 0);
  return rows <= (s->lines == LINES_SPARSE ? NEAR_SPARSE_ROWS : NEAR_ROWS) ? NEAR_AHEAD : FAR_AHEAD;
}

// Columns of one panel for the rows of a block. `last`: no panel follows.
static void panel_run(const infc_gemm_16 *g, const pass *s, int64_t panel, bool last) {
  const int64_t passes = s->t.count * (INFC_PANEL / TILE_COLS);
  const int64_t chunks = passes == 2 || (passes == 1 && s->widened) ? parts_of(g->lines, CHUNK_BYTES / s->line) : 1;
  const int64_t stretch = stretch_of(s->lines) * g->line;
  const uint8_t *b = g->b + panel * g->lines * g->line;
  float sums[2 * TILE_ROWS][TILE_COLS] __attribute__((aligned(64))); // of two passes
  for (int64_t chunk = 0, i = 0, i1; chunk < chunks; chunk++, i = i1) {
    i1 = part_end(g->lines, chunk, chunks, stretch_of(s->lines));
    const bool stream = passes == 1 && !s->widened;
    prefetch ahead = {
        .address = (uintptr_t)b + (uintptr_t)(stream ? i * g->line + stream_ahead(s) : i1 * g->line),
        .lines = !stream && last && i1 == g->lines ? 0 : (stretch / CACHE_LINE + passes - 1) / passes,
        .near = passes > 2,
    };
    const uint8_t *lines = b + i * g->line;
    if (s->widened) {
      widen_f8(lines, (i1 - i) * g->line, s->widened);
      lines = (const uint8_t *)s->widened;
    }
    float (*at)[TILE_COLS] = sums;
    for (int64_t col = panel * INFC_PANEL; col < (panel + 1) * INFC_PANEL && col < g->n; col += TILE_COLS) {
      columns_run(g, s, lines, col, i, i1, at, &ahead);
      at += chunks > 1 ? s->t.count * TILE_ROWS : 0;
    }
  }
}

INLINE void gemm_16_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_gemm_16 g = infc_gemm_16_view(task);
  const int64_t rows = range->row1 - range->row0;
  if (rows <= 0)
    return;
  const bool f16 = g.format == INFC_GEMM_16_F16;
  pass s = {
      .lda = g.lda,
      .lines = g.sparse ? LINES_SPARSE
               : f16    ? LINES_F16
                        : LINES_BF16,
      .line = g.format == INFC_GEMM_16_F8E4M3 ? infc_gemm_16_line(INFC_GEMM_16_BF16, false) : g.line,
      .a_size = f16        ? sizeof(float)
                : g.sparse ? sizeof(uint16_t)
                           : sizeof(bf16_row),
      .depth = infc_gemm_16_depth(g.format, g.sparse),
      .widened = g.format == INFC_GEMM_16_F8E4M3 ? worker->scratch : NULL,
  };
  const bool widens = !f16 && !g.sparse && sizeof(bf16_row) == sizeof(float);
  float *wide = (float *)(void *)((char *)worker->scratch + infc_gemm_16_panel_scratch(g.format, g.k));
  if (widens)
    s.lda = infc_gemm_16_wide_row(g.k);
  const int64_t height = g.sparse ? SPARSE_TILE_ROWS : TILE_ROWS;
  const int64_t block = infc_gemm_16_block(g.k * s.a_size, height);
  const int64_t blocks = (rows + block - 1) / block;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row1 = range->row0 + rows * (i + 1) / blocks;
    s.row0 = range->row0 + rows * i / blocks;
    s.t = tile_rows_of(row1 - s.row0, height);
    s.a = widens ? (const char *)wide : (const char *)g.a + s.row0 * g.lda * s.a_size;
    for (int64_t row = s.row0; widens && row < row1; row++)
      widen_row((const uint16_t *)g.a + row * g.lda, g.k, wide + (row - s.row0) * s.lda);
    for (int64_t panel = range->col0; panel < range->col1; panel++)
      panel_run(&g, &s, panel, panel + 1 == range->col1);
  }
}
