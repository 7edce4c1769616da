// gemm in f32, written once for both vector widths; included by x86_avx2_f32.c and x86_avx512_f32.c.
//
// Loops: blocks of rows whose A fits a part of L2, panels of 32 columns, tiles of rows over the whole of K, their sums
// in registers. A panel comes from memory once a block and stays in L2 while the block's tiles pass over it. What is
// fetched ahead depends on how many passes there are, since weights of a model larger than the caches come from memory
// at every run:
//   1    nothing: the panel is a stream, and the hardware's prefetcher alone is faster than with any help
//   2    memory would idle in the second pass, so both go over a short chunk of K in turn and fetch the next chunk
//   3…   each pass fetches its share of the next panel
// The output's lines are fetched before a tile's product, or its stores would wait for them: 90 % of the peak
// becomes 97.
//
// Measured with bench_kernels on one Zen 4 core of a busy machine, peak 117 GFLOP/s, AVX-512. Share of the peak with K
// × N of 384 × 1152, 384 × 384, 384 × 1536 with GELU and 1536 × 384:
//   rows 128, 66, 64, 32, 12, 8    98, 98, 94, 99 %
//   rows 16                        93 %: the price of chunks when weights are in cache after all
//   rows 4, 2                      94, 60 %: the panel no longer comes out of L2 fast enough
//   rows 512, 1024                 84 to 98 %
// With weights from memory, 4 KiB pages, a plain read loop at 15 GB/s:
//   rows 64, 32, 16                90, 83, 77 % of the peak (3.3, 6.1, 11.4 GB/s)
//   rows 12, 8, 4, 1               86, 99, 104, 90 % of the read loop
// AVX2: 95 % of the peak at 64 rows and more, 86 to 93 % at 8 to 32.
#include "gemm.h"
#include "x86_epilogue.h"

enum {
  BLOCK_BYTES = 320 * 1024,
  CHUNK = 64, // of K at most
};

// Where one tile, all of whose columns exist, finds its operands.
typedef struct tile_place {
  const float *a, *b;
  int64_t k;
  float (*sums)[TILE_COLS]; // of the chunks of K before this one
  bool first, last;         // of the chunks; the output is written by the last
  epilogue out;
  prefetch ahead;
} tile_place;

INLINE void tile_run(tile_kind kind, const infc_gemm *g, const tile_place *p) {
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < kind.rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < kind.vectors; v++)
      acc[r][v] = p->first ? vec_zero() : vec_load(p->sums[r] + v * LANES);
  if (p->last)
    epilogue_fetch(kind, &p->out);
  tile_product(kind.rows, kind.vectors, acc, p->a, g->lda, 1, p->b, INFC_PANEL, p->k, p->ahead);
  if (p->last)
    epilogue_run(kind, &p->out, acc);
  else
    store_tile(kind, p->sums, acc);
}

#define DEFINE_TILE(rows)                                                                                              \
  static void tile_##rows(const infc_gemm *g, const tile_place *p) {                                                   \
    tile_run((tile_kind){rows, 2}, g, p);                                                                              \
  }                                                                                                                    \
  static void tile_one_##rows(const infc_gemm *g, const tile_place *p) {                                               \
    tile_run((tile_kind){rows, 1}, g, p);                                                                              \
  }
#define NAME_TILE(rows) tile_##rows,
#define NAME_ONE(rows) tile_one_##rows,
FOR_TILE_ROWS(DEFINE_TILE)
// By whether the columns fill more than one vector.
static void (*const tiles[2][TILE_ROWS + 1])(const infc_gemm *, const tile_place *) = {
    {NULL, FOR_TILE_ROWS(NAME_ONE)}, {NULL, FOR_TILE_ROWS(NAME_TILE)}};

// TILE_COLS columns from `col` on and k0 to k1 of K, by all tiles of the rows from row0 on.
static void columns_run(const infc_gemm *g, const tiling *t, int64_t row0, int64_t col, int64_t k0, int64_t k1,
                        float (*sums)[TILE_COLS], prefetch *ahead) {
  const float *b = g->b + (col / INFC_PANEL * g->k + k0) * INFC_PANEL + col % INFC_PANEL;
  const int64_t cols = g->n - col < TILE_COLS ? g->n - col : TILE_COLS;
  for (int64_t i = 0, row = row0, rows; i < t->count; i++, row += rows) {
    rows = t->height + (i < t->taller);
    const tile_place place = {
        .a = g->a + row * g->lda + k0,
        .b = b,
        .k = k1 - k0,
        .sums = k0 == 0 && k1 == g->k ? NULL : sums + i * TILE_ROWS,
        .first = k0 == 0,
        .last = k1 == g->k,
        .out = {g->bias ? g->bias + col : NULL, g->residual ? g->residual + row * g->ldr + col : NULL,
                g->y + row * g->ldy + col, g->ldr, g->ldy, g->activation, g->residual_first, cols},
        .ahead = *ahead,
    };
    tiles[cols > LANES][rows](g, &place);
    ahead->address += (uintptr_t)(ahead->lines * ((k1 - k0) / PREFETCH_STEP) * CACHE_LINE);
  }
}

// Columns of one panel for rows row0 to row1. `last`: no panel follows.
static void panel_run(const infc_gemm *g, int64_t panel, int64_t row0, int64_t row1, bool last) {
  const tiling t = tile_rows(row1 - row0);
  const int64_t passes = t.count * (INFC_PANEL / TILE_COLS), chunks = passes == 2 ? parts_of(g->k, CHUNK) : 1;
  const int64_t lines = (PREFETCH_STEP * INFC_PANEL * 4 / CACHE_LINE + passes - 1) / passes;
  float sums[2 * TILE_ROWS][TILE_COLS] __attribute__((aligned(64))); // of two passes
  for (int64_t chunk = 0, k = 0, k1; chunk < chunks; chunk++, k = k1) {
    k1 = part_end(g->k, chunk, chunks, PREFETCH_STEP);
    prefetch ahead = {
        .address = (uintptr_t)(g->b + (panel * g->k + k1) * INFC_PANEL), // what follows, be it this panel or the next
        .lines = passes == 1 || (last && k1 == g->k) ? 0 : lines,
        .near = passes > 2,
    };
    float (*at)[TILE_COLS] = sums;
    for (int64_t col = panel * INFC_PANEL; col < (panel + 1) * INFC_PANEL && col < g->n; col += TILE_COLS) {
      columns_run(g, &t, row0, col, k, k1, at, &ahead);
      at += chunks > 1 ? t.count * TILE_ROWS : 0;
    }
  }
}

static infc_fault gemm_run(const infc_task *task, const infc_range *range) {
  const infc_gemm g = infc_gemm_view(task);
  const int64_t rows = range->row1 - range->row0;
  if (rows <= 0)
    return INFC_FAULT_NONE;
  const int64_t fit = BLOCK_BYTES / (int64_t)sizeof(float) / g.k, block = fit > TILE_ROWS ? fit : TILE_ROWS;
  const int64_t blocks = (rows + block - 1) / block;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row0 = range->row0 + rows * i / blocks, row1 = range->row0 + rows * (i + 1) / blocks;
    for (int64_t panel = range->col0; panel < range->col1; panel++)
      panel_run(&g, panel, row0, row1, panel + 1 == range->col1);
  }
  return INFC_FAULT_NONE;
}
