// matmul in f32, written once for both vector widths; included by x86_avx2_f32.c and x86_avx512_f32.c.
//
// A block of B, TILE_COLS columns of at most INFC_MATMUL_DEPTH of K, is packed into scratch, transposed where B is, and
// gemm's tile passes over all rows of A with it. B is used where it lies if it needs no transposing and one tile covers
// A's rows.
//
// Measured with bench_kernels on one Zen 4 core, AVX-512: [512,512] [512,512] 91 % of the multiply-add peak, transposed
// 93 %; 12 × [128,32] [32,128]^T 79 %, 12 × [128,128] [128,32] 92 %.
#include "matmul.h"

#include "../gemm/x86_tile.h"

_Static_assert((int)TILE_COLS <= (int)INFC_MATMUL_PANEL, "scratch");

typedef struct block {
  const infc_matmul *p;
  const float *a; // at its first row and the block's first k
  const float *b;
  int64_t ldb, depth;
  float *y; // at its first row and the block's first column
  int64_t cols;
  bool first; // of the blocks along K: y is set, else added to
} block;

INLINE void store(float *y, infc_vec x, int64_t cols, bool first) {
  if (cols <= 0)
    return;
  if (cols >= LANES) {
    if (!first)
      x = x + vec_load(y);
    vec_store(y, x);
  } else {
    if (!first)
      x = x + vec_load_first(y, cols, x);
    vec_store_first(y, cols, x);
  }
}

INLINE void tile_run(const int rows, const block *b, const float *a, float *y) {
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
    acc[r][0] = acc[r][1] = vec_zero();
  tile_product(rows, 2, acc, a, b->p->k, 1, b->b, b->ldb, b->depth, (prefetch){0});
  const infc_vec alpha = vec_set(b->p->alpha);
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    store(y + r * b->p->n, acc[r][0] * alpha, b->cols, b->first);
    store(y + r * b->p->n + LANES, acc[r][1] * alpha, b->cols - LANES, b->first);
  }
}

#define DEFINE_TILE(rows)                                                                                              \
  static void tile_##rows(const block *b, const float *a, float *y) {                                                  \
    tile_run(rows, b, a, y);                                                                                           \
  }
#define NAME_TILE(rows) tile_##rows,
FOR_TILE_ROWS(DEFINE_TILE)
static void (*const tiles[])(const block *, const float *, float *) = {NULL, FOR_TILE_ROWS(NAME_TILE)};

// to[l][c] = b[l][c] for l < depth, c < cols, zero up to TILE_COLS.
static void pack(float *to, const float *b, int64_t ldb, int64_t depth, int64_t cols) {
  for (int64_t l = 0; l < depth; l++) {
    for (int64_t c = 0; c < TILE_COLS; c += LANES) {
      const int64_t left = cols - c;
      vec_store(to + l * TILE_COLS + c, left >= LANES ? vec_load(b + l * ldb + c)
                                        : left > 0    ? vec_load_first(b + l * ldb + c, left, vec_zero())
                                                      : vec_zero());
    }
  }
}

// The same of b[c][l].
static void pack_transposed(float *to, const float *b, int64_t ldb, int64_t depth, int64_t cols) {
  for (int64_t c = 0; c < TILE_COLS; c += LANES) {
    for (int64_t l = 0; l < depth; l += LANES) {
      const int64_t count = depth - l < LANES ? depth - l : LANES;
      infc_vec x[LANES];
      load_transposed(x, b + c * ldb + l, ldb, cols - c, count);
      for (int i = 0; i < count; i++)
        vec_store(to + (l + i) * TILE_COLS + c, x[i]);
    }
  }
}

// One batch element's columns from `col` on, at most TILE_COLS of them.
static void columns_run(const infc_matmul *p, int64_t element, int64_t col, int64_t cols, float *scratch) {
  const float *a = p->a + element * p->stride_a, *b = p->b + element * p->stride_b;
  const int64_t ldb = p->trans_b ? p->k : p->n;
  const tiling t = tile_rows(p->m);
  for (int64_t l = 0; l < p->k; l += INFC_MATMUL_DEPTH) {
    block k = {p,
               a + l,
               scratch,
               TILE_COLS,
               p->k - l < INFC_MATMUL_DEPTH ? p->k - l : INFC_MATMUL_DEPTH,
               p->y + element * p->m * p->n + col,
               cols,
               l == 0};
    if (p->trans_b) {
      pack_transposed(scratch, b + col * ldb + l, ldb, k.depth, cols);
    } else if (t.count > 1 || cols < TILE_COLS) {
      pack(scratch, b + l * ldb + col, ldb, k.depth, cols);
    } else {
      k.b = b + l * ldb + col;
      k.ldb = ldb;
    }
    for (int64_t i = 0, row = 0, rows; i < t.count; i++, row += rows) {
      rows = t.height + (i < t.taller);
      tiles[rows](&k, k.a + row * p->k, k.y + row * p->n);
    }
  }
}

static infc_fault matmul_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (task->operands[0].dtype != INFC_DTYPE_F32)
    return infc_matmul_other(task, range);
  const infc_matmul p = infc_matmul_view(task);
  const infc_columns cols = infc_matmul_columns(&p, task, range);
  for (int64_t element = range->row0; element < range->row1; element++)
    for (int64_t col = cols.first; col < cols.last; col += TILE_COLS)
      columns_run(&p, element, col, cols.last - col < TILE_COLS ? cols.last - col : TILE_COLS, worker->scratch);
  return INFC_FAULT_NONE;
}
