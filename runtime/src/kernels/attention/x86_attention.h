// attention in f32, written once for both vector widths; included by x86_avx2_f32.c and x86_avx512_f32.c.
//
// Flash attention (Dao et al., 2022) turned on its side: lanes are queries. TILE_COLS queries of a head are transposed
// once; then keys and values enter both products as the operand that is broadcast, straight from where they lie, and
// nothing else is packed. The scores of a tile of keys are [key][query], so that maximum, sum and rescaling of the
// softmax go down a column, with no operation across lanes, and the exponentials lie as the second product wants them.
// Its result, [v][query], is transposed back.
//
// Measured with bench_kernels on one Zen 4 core, all included, 12 heads of 32, AVX-512: (1,128) 276 us, 78 % of the
// multiply-add peak; (1,77) 106 us, 73 %; (1,16) 6 us, 56 %; (8,128) 65 %, keys and values coming from L3; 12 heads of
// 64 at (1,512) 83 %.
#include "attention.h"
#include "scratch.h"

#include "../gemm/x86_tile.h"

#include <float.h>
#include <math.h>

_Static_assert((int)TILE_COLS <= (int)INFC_ATTENTION_QUERIES, "scratch");

// One head's block of queries and where its parts lie in scratch.
typedef struct block {
  const infc_attention *a;
  const infc_sequence *s;
  int64_t head;
  int64_t query0, queries; // within the sequence
  int64_t width;           // lanes computed: LANES or TILE_COLS
  bool fresh;              // the first of its head: keys and values are not in L2 yet
  float *q;                // [head_dim][TILE_COLS], scaled
  float *o;                // [v_dim padded][TILE_COLS]
  float *scores;           // [INFC_ATTENTION_KEYS][TILE_COLS]
} block;

// Running statistics of each query.
typedef struct softmax {
  float top[TILE_COLS];   // greatest score so far
  float total[TILE_COLS]; // sum of exp(score - top)
  float scale[TILE_COLS]; // what earlier sums are multiplied by in this tile
} softmax;

static const prefetch no_prefetch = {0};

// Scores of `rows` keys and `vectors` of queries, and their maximum into `top`.
INLINE void score_tile(const int rows, const int vectors, const float *k, const block *b, float *scores, float *top) {
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
    acc[r][0] = acc[r][1] = vec_zero();
  tile_product(rows, vectors, acc, k, b->a->ldk, 1, b->q, TILE_COLS, b->a->head_dim, no_prefetch);
#pragma GCC unroll 2
  for (int c = 0; c < vectors; c++) {
    infc_vec most = vec_load(top + c * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      most = vec_max(acc[r][c], most);
      vec_store(scores + r * TILE_COLS + c * LANES, acc[r][c]);
    }
    vec_store(top + c * LANES, most);
  }
}

// o[v][query] = o * scale + sum over keys of v[key][v] * p[key][query] for `rows` columns of v.
INLINE void value_tile(const int rows, const int vectors, const float *v, const block *b, int64_t keys,
                       const float *scale, float *o) {
  infc_vec acc[TILE_ROWS][2];
#pragma GCC unroll 2
  for (int c = 0; c < vectors; c++) {
    const infc_vec factor = vec_load(scale + c * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
      acc[r][c] = vec_load(o + r * TILE_COLS + c * LANES) * factor;
  }
  // Rows of v lie apart and may come from L3: unrolled, (8,128) is 8 % faster.
  tile_product_by(vectors == 2, rows, vectors, acc, v, 1, b->a->ldv, b->scores, TILE_COLS, keys, no_prefetch);
#pragma GCC unroll 2
  for (int c = 0; c < vectors; c++)
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
      vec_store(o + r * TILE_COLS + c * LANES, acc[r][c]);
}

#define DEFINE_TILES(rows)                                                                                             \
  static void score_##rows(const float *k, const block *b, float *scores, float *top) {                                \
    if (b->width == TILE_COLS)                                                                                         \
      score_tile(rows, 2, k, b, scores, top);                                                                          \
    else                                                                                                               \
      score_tile(rows, 1, k, b, scores, top);                                                                          \
  }                                                                                                                    \
  static void value_##rows(const float *v, const block *b, int64_t keys, const float *scale, float *o) {               \
    if (b->width == TILE_COLS)                                                                                         \
      value_tile(rows, 2, v, b, keys, scale, o);                                                                       \
    else                                                                                                               \
      value_tile(rows, 1, v, b, keys, scale, o);                                                                       \
  }
#define NAME_SCORE(rows) score_##rows,
#define NAME_VALUE(rows) value_##rows,
FOR_TILE_ROWS(DEFINE_TILES)
static void (*const score_tiles[])(const float *, const block *, float *, float *) = {NULL, FOR_TILE_ROWS(NAME_SCORE)};
static void (*const value_tiles[])(const float *, const block *, int64_t, const float *,
                                   float *) = {NULL, FOR_TILE_ROWS(NAME_VALUE)};

// Brings rows of keys or values into the cache: their stride hides them from the hardware's prefetcher.
INLINE void fetch_rows(const float *x, int64_t stride, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t d = 0; d < dim; d += CACHE_LINE / (int64_t)sizeof(float))
      _mm_prefetch((const char *)(x + r * stride + d), _MM_HINT_T0);
}

static void pack_queries(const block *b) {
  const infc_attention *a = b->a;
  const infc_vec scale = vec_set(a->scale);
  const float *q = a->q + (b->s->row0 + b->query0) * a->ldq + b->head * a->head_dim;
  for (int64_t lane = 0; lane < b->width; lane += LANES) {
    for (int64_t d = 0; d < a->head_dim; d += LANES) {
      const int64_t cols = a->head_dim - d < LANES ? a->head_dim - d : LANES;
      infc_vec x[LANES];
      load_transposed(x, q + lane * a->ldq + d, a->ldq, b->queries - lane, cols);
      for (int c = 0; c < cols; c++)
        vec_store(b->q + (d + c) * TILE_COLS + lane, x[c] * scale);
    }
  }
}

static void store_output(const block *b, const softmax *m) {
  const infc_attention *a = b->a;
  float *y = a->y + (b->s->row0 + b->query0) * a->ldy + b->head * a->v_dim;
  for (int64_t lane = 0; lane < b->width; lane += LANES) {
    // A query without keys has a total and sums of zero.
    const infc_vec factor = vec_set(1.0f) / vec_max(vec_set(0x1p-126f), vec_load(m->total + lane));
    for (int64_t d = 0; d < a->v_dim; d += LANES) {
      const int64_t cols = a->v_dim - d < LANES ? a->v_dim - d : LANES;
      infc_vec x[LANES];
      for (int c = 0; c < LANES; c++)
        x[c] = vec_load(b->o + (d + c) * TILE_COLS + lane) * factor;
      vec_transpose(x);
      for (int r = 0; r < LANES && r < b->queries - lane; r++) {
        float *to = y + (lane + r) * a->ldy + d;
        if (cols == LANES)
          vec_store(to, x[r]);
        else
          vec_store_first(to, cols, x[r]);
      }
    }
  }
}

// Keys from `first` on, `count` of them, whose scores lie in b->scores: adds the bias.
static void add_bias(const block *b, int64_t first, int64_t count) {
  const infc_attention *a = b->a;
  const int64_t at = infc_attention_bias_at(a, b->s, b->head) + b->query0 * a->bias_q + first;
  for (int64_t lane = 0; lane < b->queries; lane += LANES) {
    for (int64_t j = 0; j < count; j += LANES) {
      const int64_t keys = count - j < LANES ? count - j : LANES;
      const int64_t queries = b->queries - lane < LANES ? b->queries - lane : LANES, from = at + lane * a->bias_q + j;
      infc_vec x[LANES];
      if (a->bias_is_bool) {
        float limit[LANES][LANES];
        for (int64_t r = 0; r < queries; r++)
          for (int64_t c = 0; c < keys; c++)
            limit[r][c] = ((const uint8_t *)a->bias)[from + r * a->bias_q + c] ? INFINITY : -INFINITY;
        load_transposed(x, limit[0], LANES, queries, keys);
      } else {
        load_transposed(x, (const float *)a->bias + from, a->bias_q, queries, keys);
      }
      for (int c = 0; c < keys; c++) {
        float *score = b->scores + (j + c) * TILE_COLS + lane;
        if (a->bias_is_bool)
          vec_store(score, vec_min(vec_load(score), x[c]));
        else
          vec_store(score, vec_load(score) + x[c]);
      }
    }
  }
}

// Takes keys away from queries that come before them: query i sees keys up to i + shift.
static void mask_causal(const block *b, int64_t first, int64_t count, int64_t shift) {
  float lane_number[TILE_COLS];
  for (int i = 0; i < TILE_COLS; i++)
    lane_number[i] = (float)i;
  for (int64_t j = 0; j < count; j++) {
    // Lanes below `limit` do not see key first + j.
    const infc_vec limit = vec_set((float)infc_clamp(first + j - shift - b->query0, 0, TILE_COLS));
    for (int64_t lane = 0; lane < b->width; lane += LANES) {
      float *score = b->scores + j * TILE_COLS + lane;
      vec_store(score, vec_if_negative(vec_load(lane_number + lane) - limit, vec_set(-INFINITY), vec_load(score)));
    }
  }
}

static void find_top(const block *b, int64_t count, float *top) {
  for (int64_t lane = 0; lane < b->width; lane += LANES) {
    infc_vec x = vec_set(-INFINITY);
    for (int64_t j = 0; j < count; j++)
      x = vec_max(vec_load(b->scores + j * TILE_COLS + lane), x);
    vec_store(top + lane, x);
  }
}

// Scores become exp(score - top), and the statistics follow. `top` is the tile's maximum.
static void exponentials(const block *b, int64_t count, const float *top, softmax *m) {
  for (int64_t lane = 0; lane < b->width; lane += LANES) {
    const infc_vec before = vec_load(m->top + lane), now = vec_max(vec_load(top + lane), before);
    // Where there is no key yet, now is -infinity, and finite for the subtraction's sake.
    const infc_vec base = vec_max(vec_set(-FLT_MAX), now);
    const infc_vec scale = INFC_VEC_NAME(exp_negative)(before - base);
    infc_vec total = vec_zero();
    for (int64_t j = 0; j < count; j++) {
      const infc_vec p = INFC_VEC_NAME(exp_negative)(vec_load(b->scores + j * TILE_COLS + lane) - base);
      total = total + p;
      vec_store(b->scores + j * TILE_COLS + lane, p);
    }
    vec_store(m->top + lane, now);
    vec_store(m->scale + lane, scale);
    vec_store(m->total + lane, vec_fma(vec_load(m->total + lane), scale, total));
  }
}

static void key_tile(const block *b, softmax *m, int64_t first, int64_t count, int64_t shift) {
  const infc_attention *a = b->a;
  const int64_t kv_head = b->head / a->group;
  float top[TILE_COLS];
  for (int i = 0; i < TILE_COLS; i++)
    top[i] = -INFINITY;
  const tiling keys = tile_rows(count), columns = tile_rows(a->v_dim);
  const float *k = a->k + (b->s->key0 + first) * a->ldk + kv_head * a->head_dim;
  const float *v = a->v + (b->s->key0 + first) * a->ldv + kv_head * a->v_dim;
  for (int64_t i = 0, at = 0, rows; i < keys.count; i++, at += rows) {
    rows = keys.height + (i < keys.taller);
    if (b->fresh) {
      const int64_t next = at + rows, left = count - next;
      fetch_rows(k + next * a->ldk, a->ldk, left < TILE_ROWS ? left : TILE_ROWS, a->head_dim);
      fetch_rows(v + at * a->ldv, a->ldv, rows, a->v_dim);
    }
    score_tiles[rows](k + at * a->ldk, b, b->scores + at * TILE_COLS, top);
  }
  const bool diagonal = a->causal && first + count - 1 > b->query0 + shift;
  if (a->bias)
    add_bias(b, first, count);
  if (diagonal)
    mask_causal(b, first, count, shift);
  if (a->bias || diagonal)
    find_top(b, count, top);
  exponentials(b, count, top, m);
  for (int64_t i = 0, at = 0, rows; i < columns.count; i++, at += rows) {
    rows = columns.height + (i < columns.taller);
    value_tiles[rows](v + at, b, count, m->scale, b->o + at * TILE_COLS);
  }
}

static void run_block(const block *b) {
  const int64_t shift = b->s->keys - b->s->rows; // causal: query i sees keys up to i + shift
  const int64_t seen = b->query0 + b->queries + shift;
  const int64_t keys = b->a->causal ? infc_clamp(seen, 0, b->s->keys) : b->s->keys;
  const int64_t tiles = (keys + INFC_ATTENTION_KEYS - 1) / INFC_ATTENTION_KEYS;
  softmax m;
  for (int i = 0; i < TILE_COLS; i++) {
    m.top[i] = -INFINITY;
    m.total[i] = 0.0f;
  }
  for (int64_t i = 0; i < infc_attention_padded(b->a->v_dim) * TILE_COLS; i++)
    b->o[i] = 0.0f;
  pack_queries(b);
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t first = keys * i / tiles;
    key_tile(b, &m, first, keys * (i + 1) / tiles - first, shift);
  }
  store_output(b, &m);
}

static infc_fault attention_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_attention a = infc_attention_view(task, range, worker);
  float *scratch = worker->scratch;
  for (int64_t i = 0; i < a.batch; i++) {
    const infc_sequence s = infc_attention_sequence(&a, i);
    const int64_t first = infc_clamp(range->row0 - s.row0, 0, s.rows),
                  last = infc_clamp(range->row1 - s.row0, 0, s.rows);
    for (int64_t head = range->col0; head < range->col1; head++) {
      for (int64_t query = first; query < last; query += TILE_COLS) {
        const block b = {
            .a = &a,
            .s = &s,
            .head = head,
            .query0 = query,
            .width = last - query <= LANES ? LANES : TILE_COLS,
            .fresh = query == first,
            .queries = last - query < TILE_COLS ? last - query : TILE_COLS,
            .scores = scratch,
            .q = scratch + INFC_ATTENTION_KEYS * TILE_COLS,
            .o = scratch + (INFC_ATTENTION_KEYS + infc_attention_padded(a.head_dim)) * TILE_COLS,
        };
        run_block(&b);
      }
    }
  }
  return INFC_FAULT_NONE;
}
