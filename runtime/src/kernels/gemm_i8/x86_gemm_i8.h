// gemm_i8, written once for all ways of dot products (x86_dot.h). Blocks, panels, tiles and what is fetched ahead are
// those of gemm (../gemm/x86_gemm.h, which says why), a line of INFC_I8_DEPTH rows of b taking the place of a row. But
// the panel of a single pass is fetched too, some way ahead: there is less to compute a byte.
//
// Measured as gemm was, against four times its peak (469 GOP/s), AVX-512 with VNNI, bias, rows' own scales:
//   rows 64 to 512     K 384: 91 %, with GELU 80; K 1536: 92 to 98 %
//   rows 32, 16, 12, 8 K 384: 91, 89, 91, 91 %; K 1536: 96, 94, 96, 97 %
// The rest of K 384 is what follows a tile: 24 vectors become floats after only 96 lines.
// With weights from memory (bench_decode), share of a read loop: rows 8, 4, 1: 80, 65, 90 %; fetched 4096 bytes ahead
// 62, 59, 85 %, 1024 bytes ahead 37 % with 8 rows. Fetched into L1 rather than L2: less.
// AVX2 without VNNI: 145 GOP/s, AVX2's f32 having 110.
#include "gemm_i8.h"

#include "../gemm/x86_epilogue.h"
#include "x86_dot.h"

enum {
  BLOCK_BYTES = 320 * 1024,
  CHUNK = 64, // lines at most
  // Bytes ahead of what one pass streams: up to so many rows the loads come early enough by themselves.
  NEAR_ROWS = 2,
  NEAR_AHEAD = 1024,
  FAR_AHEAD = 8192,
};

// Where one tile finds its operands.
typedef struct tile_place {
  const uint8_t *a;
  const int8_t *b;
  int64_t lines;
  int64_t rest;               // elements of K beyond the lines that are whole
  int32_t (*sums)[TILE_COLS]; // of the chunks of K before this one, or room for them
  bool first, last;           // of the chunks; the output is written by the last
  const float *params;
  int64_t col;
  uint8_t *yq;
  epilogue out;
  prefetch ahead;
} tile_place;

INLINE void dot_step(tile_kind kind, ivec acc[][2], const uint8_t *a, int64_t lda, size_t bytes, const int8_t *b) {
  factor w[2];
#pragma GCC unroll 2
  for (int v = 0; v < kind.vectors; v++)
    w[v] = factor_signed(ivec_load(b + v * LANES * INFC_I8_DEPTH));
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++) {
    const factor x = row_factor(a + r * lda, bytes);
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++)
      acc[r][v] = dot(acc[r][v], x, w[v]);
  }
}

INLINE void dot_product(tile_kind kind, ivec acc[][2], const infc_gemm_i8 *g, const tile_place *p) {
  const uint8_t *a = p->a;
  const int8_t *b = p->b;
  prefetch ahead = p->ahead;
  int64_t i = 0;
  for (; i + PREFETCH_STEP <= p->lines; i += PREFETCH_STEP) {
    for (int64_t n = 0; n < ahead.lines; n++, ahead.address += CACHE_LINE) {
      if (ahead.near)
        _mm_prefetch((const char *)ahead.address, _MM_HINT_T0);
      else
        _mm_prefetch((const char *)ahead.address, _MM_HINT_T1);
    }
    if (kind.rows <= TILE_SHORT) {
#pragma GCC unroll 8
      for (int j = 0; j < PREFETCH_STEP; j++, a += INFC_I8_DEPTH, b += INFC_I8_LINE)
        dot_step(kind, acc, a, g->lda, INFC_I8_DEPTH, b);
    } else {
#pragma GCC unroll 1
      for (int j = 0; j < PREFETCH_STEP; j++, a += INFC_I8_DEPTH, b += INFC_I8_LINE)
        dot_step(kind, acc, a, g->lda, INFC_I8_DEPTH, b);
    }
  }
#pragma GCC unroll 1
  for (; i < p->lines; i++, a += INFC_I8_DEPTH, b += INFC_I8_LINE)
    dot_step(kind, acc, a, g->lda, INFC_I8_DEPTH, b);
  if (p->rest)
    dot_step(kind, acc, a, g->lda, (size_t)p->rest, b);
}

// Sums of products become numbers: (sum - zero of the row * sum of the column's weights) * both scales.
INLINE infc_vec dequantized(ivec sum, ivec zero, ivec sums, infc_vec column_scale, infc_vec row_scale) {
  return IVEC(cvtepi32_ps)(IVEC(sub_epi32)(sum, IVEC(mullo_epi32)(zero, sums))) * column_scale * row_scale;
}
INLINE ivec load_sums(const infc_gemm_i8 *g, int64_t col, int64_t n) {
  return ivec_of_bits(load_cols((const float *)(const void *)(g->sums + col), n));
}

// In registers, for tiles all of whose columns exist and that become floats.
INLINE void finish(tile_kind kind, const infc_gemm_i8 *g, const tile_place *p, ivec acc[][2]) {
  infc_vec scales[2], y[DOT_ROWS][2];
  ivec sums[2];
#pragma GCC unroll 2
  for (int v = 0; v < kind.vectors; v++) {
    scales[v] = vec_load(g->scales + p->col + v * LANES);
    sums[v] = load_sums(g, p->col + v * LANES, LANES);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++) {
    const float *params = p->params + r * g->params_step;
    const ivec zero = IVEC(set1_epi32)(infc_zero_point(params[1]));
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++)
      y[r][v] = dequantized(acc[r][v], zero, sums[v], scales[v], vec_set(params[0]));
  }
  epilogue_run(kind, &p->out, y);
}

// The first n bytes of round(y / scale) + zero.
INLINE void store_quantized(uint8_t *to, int64_t n, infc_vec y, infc_vec inverse, ivec zero) {
  const infc_vec q = vec_min(vec_set(1024.0f), y * inverse); // NaN stays and becomes the least integer
  const ivec sum = IVEC(add_epi32)(IVEC(cvtps_epi32)(q), zero);
  const __m128i bytes = ivec_bytes(IVEC(min_epi32)(IVEC(max_epi32)(sum, ivec_zero()), IVEC(set1_epi32)(255)));
  memcpy(to, &bytes, (size_t)n);
}

// Bounds of bytes in steps of the output, where that is all there is to activation and rounding.
typedef struct byte_bounds {
  bool cheap;
  infc_vec inverse, low, high;
} byte_bounds;

INLINE byte_bounds byte_bounds_of(const infc_gemm_i8 *g) {
  if (!g->out || g->residual || infc_zero_point(g->out[1]) != 0 || !(g->out[0] > 1e-30f && g->out[0] < 1e30f))
    return (byte_bounds){.cheap = false};
  const float inverse = 1.0f / g->out[0], six = 6.0f * inverse; // activation, then steps: the same the other way round
  return (byte_bounds){clamp_of(g->activation).cheap, vec_set(inverse), vec_zero(),
                       vec_set(g->activation == INFC_UNARY_RELU6 && six < 255.0f ? six : 255.0f)};
}

// In registers too, for tiles all of whose columns exist and become bytes from zero on.
INLINE void finish_bytes(tile_kind kind, const infc_gemm_i8 *g, const tile_place *p, byte_bounds to, ivec acc[][2]) {
  int32_t zeros[DOT_ROWS];
  float scales[DOT_ROWS];
  for (int r = 0; r < kind.rows; r++) {
    scales[r] = p->params[r * g->params_step];
    zeros[r] = infc_zero_point(p->params[r * g->params_step + 1]);
  }
#pragma GCC unroll 2
  for (int v = 0; v < kind.vectors; v++) {
    const int64_t col = p->col + v * LANES;
    const infc_vec scale = vec_load(g->scales + col), bias = g->bias ? vec_load(g->bias + col) : vec_zero();
    const ivec sums = load_sums(g, col, LANES);
#pragma GCC unroll 16
    for (int r = 0; r < kind.rows; r++) {
      const infc_vec y = dequantized(acc[r][v], IVEC(set1_epi32)(zeros[r]), sums, scale, vec_set(scales[r])) + bias;
      const infc_vec q =
          vec_min(to.high, vec_max(to.low, y * to.inverse)); // NaN becomes an integer whose low byte is 0
      const __m128i bytes = ivec_bytes(IVEC(cvtps_epi32)(q));
      memcpy(p->yq + r * g->ldy + v * LANES, &bytes, LANES);
    }
  }
}

// By way of memory, for all other tiles: there once for all heights.
static __attribute__((noinline)) void finish_any(const infc_gemm_i8 *g, const tile_place *p, int rows,
                                                 int32_t sums[][TILE_COLS]) {
  const epilogue *e = &p->out;
  const infc_vec inverse = vec_set(g->out ? 1.0f / g->out[0] : 0.0f);
  const ivec out_zero = IVEC(set1_epi32)(g->out ? infc_zero_point(g->out[1]) : 0);
  for (int r = 0; r < rows; r++) {
    const float *params = p->params + r * g->params_step;
    const ivec zero = IVEC(set1_epi32)(infc_zero_point(params[1]));
    for (int64_t c = 0; c < e->cols; c += LANES) {
      const int64_t n = e->cols - c < LANES ? e->cols - c : LANES;
      const infc_vec residual = e->residual ? load_cols(e->residual + r * e->ldr + c, n) : vec_zero();
      infc_vec y = dequantized(ivec_load(sums[r] + c), zero, load_sums(g, p->col + c, n),
                               load_cols(g->scales + p->col + c, n), vec_set(params[0]));
      if (e->bias)
        y = y + load_cols(e->bias + c, n);
      if (e->residual && e->residual_first)
        y = y + residual;
      y = vec_activate(y, e->activation);
      if (e->residual && !e->residual_first)
        y = y + residual;
      if (g->out)
        store_quantized(p->yq + r * g->ldy + c, n, y, inverse, out_zero);
      else
        store_cols(e->y + r * e->ldy + c, n, y);
    }
  }
}

INLINE void tile_run(tile_kind kind, const infc_gemm_i8 *g, const tile_place *p) {
  const bool plain = kind.vectors == 2 && p->out.cols == TILE_COLS && !g->out;
  ivec acc[DOT_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++)
      acc[r][v] = p->first ? ivec_zero() : ivec_load(p->sums[r] + v * LANES);
  if (p->last && plain)
    epilogue_fetch(kind, &p->out);
  dot_product(kind, acc, g, p);
  if (p->last && plain) {
    finish(kind, g, p, acc);
    return;
  }
  const byte_bounds to = byte_bounds_of(g);
  if (p->last && to.cheap && p->out.cols == kind.vectors * LANES) {
    finish_bytes(kind, g, p, to, acc);
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++)
      ivec_store(p->sums[r] + v * LANES, acc[r][v]);
  if (p->last)
    finish_any(g, p, kind.rows, p->sums);
}

#define DEFINE_TILE(rows)                                                                                              \
  static void tile_##rows(const infc_gemm_i8 *g, const tile_place *p) {                                                \
    tile_run((tile_kind){rows, 2}, g, p);                                                                              \
  }                                                                                                                    \
  static void tile_one_##rows(const infc_gemm_i8 *g, const tile_place *p) {                                            \
    tile_run((tile_kind){rows, 1}, g, p);                                                                              \
  }
#define NAME_TILE(rows) tile_##rows,
#define NAME_ONE(rows) tile_one_##rows,
FOR_DOT_ROWS(DEFINE_TILE)
// By whether the columns fill one vector or more.
static void (*const tiles[2][DOT_ROWS + 1])(const infc_gemm_i8 *, const tile_place *) = {
    {NULL, FOR_DOT_ROWS(NAME_ONE)}, {NULL, FOR_DOT_ROWS(NAME_TILE)}};

// TILE_COLS columns from `col` on and lines i0 to i1 of K, by all tiles of the rows from row0 on.
static void columns_run(const infc_gemm_i8 *g, const tiling *t, int64_t row0, int64_t col, int64_t i0, int64_t i1,
                        int32_t (*sums)[TILE_COLS], prefetch *ahead) {
  const int8_t *b = g->b + (col / INFC_PANEL * g->lines + i0) * INFC_I8_LINE + col % INFC_PANEL * INFC_I8_DEPTH;
  const int64_t cols = g->n - col < TILE_COLS ? g->n - col : TILE_COLS;
  const int64_t whole = g->k / INFC_I8_DEPTH < i1 ? g->k / INFC_I8_DEPTH : i1; // of these lines
  for (int64_t i = 0, row = row0, rows; i < t->count; i++, row += rows) {
    rows = t->height + (i < t->taller);
    const tile_place place = {
        .a = g->a + row * g->lda + i0 * INFC_I8_DEPTH,
        .b = b,
        .lines = whole - i0,
        .rest = i1 > whole ? g->k % INFC_I8_DEPTH : 0,
        .sums = i0 == 0 && i1 == g->lines ? sums : sums + i * DOT_ROWS,
        .first = i0 == 0,
        .last = i1 == g->lines,
        .params = g->params + row * g->params_step,
        .col = col,
        .yq = g->out ? g->yq + row * g->ldy + col : NULL,
        .out = {g->bias ? g->bias + col : NULL, g->residual ? g->residual + row * g->ldr + col : NULL,
                g->out ? NULL : g->y + row * g->ldy + col, g->ldr, g->ldy, g->activation, g->residual_first, cols},
        .ahead = *ahead,
    };
    tiles[cols > LANES][rows](g, &place);
    ahead->address += (uintptr_t)(ahead->lines * (place.lines / PREFETCH_STEP) * CACHE_LINE);
  }
}

// Columns of one panel for rows row0 to row1. `last`: no panel follows.
static void panel_run(const infc_gemm_i8 *g, int64_t panel, int64_t row0, int64_t row1, bool last) {
  const tiling t = tile_rows_of(row1 - row0, DOT_ROWS);
  const int64_t passes = t.count * (INFC_PANEL / TILE_COLS), chunks = passes == 2 ? parts_of(g->lines, CHUNK) : 1;
  const int64_t stream_ahead = t.height + (t.taller > 0) <= NEAR_ROWS ? NEAR_AHEAD : FAR_AHEAD;
  const int64_t fetched = (PREFETCH_STEP * INFC_I8_LINE / CACHE_LINE + passes - 1) / passes;
  int32_t sums[2 * DOT_ROWS][TILE_COLS] __attribute__((aligned(64))); // of two passes
  for (int64_t chunk = 0, i = 0, i1; chunk < chunks; chunk++, i = i1) {
    i1 = part_end(g->lines, chunk, chunks, PREFETCH_STEP);
    const int8_t *next = g->b + (panel * g->lines + i1) * INFC_I8_LINE; // what follows, this panel or the next
    prefetch ahead = {
        .address = (uintptr_t)(passes == 1 ? g->b + panel * g->lines * INFC_I8_LINE + stream_ahead : next),
        .lines = passes > 1 && last && i1 == g->lines ? 0 : fetched,
        .near = passes > 2,
    };
    int32_t (*at)[TILE_COLS] = sums;
    for (int64_t col = panel * INFC_PANEL; col < (panel + 1) * INFC_PANEL && col < g->n; col += TILE_COLS) {
      columns_run(g, &t, row0, col, i, i1, at, &ahead);
      at += chunks > 1 ? t.count * DOT_ROWS : 0;
    }
  }
}

INLINE void gemm_i8_run(const infc_task *task, const infc_range *range) {
  const infc_gemm_i8 g = infc_gemm_i8_view(task);
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
