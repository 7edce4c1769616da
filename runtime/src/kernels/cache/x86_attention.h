// cache_attention, written once for both vector widths: flash attention (Dao et al., 2022) over chunks of four blocks.
//
// The queries that pass over a chunk together are those of some rows and of all heads that share its keys and values, a
// row's heads one after the other; tiles of them meet the chunk's panels as rows of a in a gemm (../gemm/x86_tile.h). A
// tile alone, as in decoding, reads 8- and 16-bit panels as they are and widens them in registers, the next panel being
// fetched; for several tiles a chunk is widened once, into scratch.
//
// Chunks start at multiples of their size, so that a row's sums are made in the same order whatever lies beside it: how
// rows are split, batched or cut into runs changes no bit.
#include "steps.h"
#include "x86_elements.h"

#include "../gemm/x86_tile.h"

#include <float.h>
#include <math.h>

_Static_assert((int)TILE_ROWS <= (int)INFC_CACHE_TILE, "scratch");

enum {
  BLOCKS = INFC_CACHE_CHUNK / INFC_CACHE_TOKENS,
  PANEL = INFC_CACHE_PANEL * INFC_CACHE_TOKENS,         // elements of one of values
  TILE_LANES = (TILE_ROWS + LANES - 1) / LANES * LANES, // that hold a tile's queries
  AHEAD = 2, // panels between the one that is fetched and the one that is computed
};

// ---- Products of a tile

// c[r] = factor[r] * c[r] + sum over the panels b of a[r] b, a moving on by 32 from one panel to the next.
typedef struct product {
  const float *a;
  int64_t lda;
  const char *const *b;
  const char *const *next; // what is fetched beside each panel
  int64_t count;           // panels
  int64_t k, last;         // rows of a panel and of the last one
  const float *factor;     // NULL: zeros
  float *c;
  int64_t ldc;
} product;

INLINE void product_step(const int kind, const int rows, infc_vec acc[][2], const float *a, int64_t lda,
                         const char *b) {
  const infc_vec b0 = load_elements(kind, b), b1 = load_elements(kind, b + LANES * kind_size(kind));
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const infc_vec x = vec_set(a[r * lda]);
    acc[r][0] = vec_fma(x, b0, acc[r][0]);
    acc[r][1] = vec_fma(x, b1, acc[r][1]);
  }
}

INLINE void product_panel(const int kind, const int rows, infc_vec acc[][2], const float *a, int64_t lda, int64_t k,
                          const char *b, const char *next) {
  const int64_t row = INFC_CACHE_TOKENS * kind_size(kind);
  int64_t i = 0;
  for (; i + PREFETCH_STEP <= k; i += PREFETCH_STEP) {
    if (next)
#pragma GCC unroll 16
      for (int64_t line = 0; line < PREFETCH_STEP * row; line += CACHE_LINE)
        _mm_prefetch(next + i * row + line, _MM_HINT_T0);
    if (rows <= TILE_SHORT) {
#pragma GCC unroll 8
      for (int j = 0; j < PREFETCH_STEP; j++)
        product_step(kind, rows, acc, a + i + j, lda, b + (i + j) * row);
    } else {
#pragma GCC unroll 1
      for (int j = 0; j < PREFETCH_STEP; j++)
        product_step(kind, rows, acc, a + i + j, lda, b + (i + j) * row);
    }
  }
#pragma GCC unroll 1
  for (; i < k; i++)
    product_step(kind, rows, acc, a + i, lda, b + i * row);
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
    for (int64_t i = 0; i < p->count; i++)
      product_panel(kind, rows, acc, p->a + i * INFC_CACHE_TOKENS, p->lda, i + 1 < p->count ? p->k : p->last,
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

#define DEFINE_PRODUCT(rows)                                                                                           \
  static void product_##rows(const product *p) {                                                                       \
    product_run(KIND_F32, rows, p);                                                                                    \
  }
#define DEFINE_NARROW(rows, kind)                                                                                      \
  static void product_##kind##_##rows(const product *p) {                                                              \
    product_run(kind, rows, p);                                                                                        \
  }
#define NAME_PRODUCT(rows) product_##rows,
#define NAME_NARROW(rows, kind) product_##kind##_##rows,
FOR_TILE_ROWS(DEFINE_PRODUCT)
FOR_NARROW_ROWS(DEFINE_NARROW, KIND_BF16)
FOR_NARROW_ROWS(DEFINE_NARROW, KIND_I8)
FOR_NARROW_ROWS(DEFINE_NARROW, KIND_F8)
static void (*const products[KINDS][TILE_ROWS + 1])(const product *) = {
    [KIND_F32] = {NULL, FOR_TILE_ROWS(NAME_PRODUCT)},
    [KIND_BF16] = {NULL, FOR_NARROW_ROWS(NAME_NARROW, KIND_BF16)},
    [KIND_I8] = {NULL, FOR_NARROW_ROWS(NAME_NARROW, KIND_I8)},
    [KIND_F8] = {NULL, FOR_NARROW_ROWS(NAME_NARROW, KIND_F8)},
};

// ---- Queries that pass over the cache together

typedef struct queries {
  const infc_cache_attention *a;
  const infc_cache_layer *layer;
  const infc_cache_sequence *sequence;
  int64_t head;              // of keys and values
  int64_t head0, heads;      // of queries
  int64_t row, place, count; // rows, and the first one's place
  float *q, *sums, *scores,
      *wide; // in scratch: [count * heads][k_dim], [.][v_dim padded], [tile][chunk], a chunk as f32
  float top[INFC_CACHE_QUERIES + LANES], total[INFC_CACHE_QUERIES]; // greatest score so far, sum of exp(score - top)
} queries;

// Panels of keys and values as tiles read them, and what lies after them in the cache.
typedef struct chunk {
  int kind;
  int64_t place;                 // its first
  int64_t block0, block1;        // those that hold what is seen
  int64_t panels;                // of values
  const char *heads[2 * BLOCKS]; // of each block, and of the chunk that follows; NULL: not seen
  const infc_cache_layer *layer;
  const char *wide; // NULL: read where they are
} chunk;

INLINE const char *key_panel(const chunk *c, int64_t block) {
  return c->wide ? c->wide + block * c->layer->k_dim * INFC_CACHE_TOKENS * 4 : c->heads[block];
}
INLINE const char *value_panel(const chunk *c, int64_t panel, int64_t block) {
  if (c->wide)
    return c->wide + (BLOCKS * INFC_CACHE_TOKENS * (int64_t)c->layer->k_dim + (panel * BLOCKS + block) * PANEL) * 4;
  return c->heads[block] + c->layer->v_at + panel * PANEL * kind_size(c->kind);
}

// The panel that is number n of those computed: keys of each block, then for each panel of values the blocks'; then the
// keys of the next chunk.
INLINE const char *panel_at(const chunk *c, int64_t n) {
  const int64_t blocks = c->block1 - c->block0;
  if (n < blocks)
    return key_panel(c, c->block0 + n);
  n -= blocks;
  if (n < blocks * c->panels)
    return value_panel(c, n / blocks, c->block0 + n % blocks);
  n -= blocks * c->panels;
  return n < BLOCKS ? c->heads[BLOCKS + n] : NULL;
}

static chunk chunk_at(const queries *s, int64_t place, int64_t first, int64_t end) {
  chunk c = {.kind = kind_of(s->layer->dtype),
             .place = place,
             .panels = infc_cache_padded(s->a->v_dim) / INFC_CACHE_PANEL,
             .layer = s->layer};
  for (int64_t block = 0; block < 2 * BLOCKS; block++) {
    const int64_t at = place + block * INFC_CACHE_TOKENS;
    if (at + INFC_CACHE_TOKENS > first && at < end)
      c.heads[block] = (const char *)infc_cache_head(s->layer, s->sequence, at, s->head);
  }
  while (!c.heads[c.block0])
    c.block0++;
  c.block1 = c.block0;
  while (c.block1 < BLOCKS && c.heads[c.block1])
    c.block1++;
  return c;
}

INLINE void widen(const int kind, const char *from, int64_t n, float *to) {
  for (int64_t i = 0; i < n; i += LANES)
    vec_store(to + i, load_elements(kind, from + i * kind_size(kind)));
}

static void widen_panel(int kind, const char *from, int64_t n, const char *to) {
  float *floats = (float *)(void *)(uintptr_t)to;
  if (kind == KIND_BF16)
    widen(KIND_BF16, from, n, floats);
  else if (kind == KIND_I8)
    widen(KIND_I8, from, n, floats);
  else
    widen(KIND_F8, from, n, floats);
}

// The chunk's panels as f32.
static chunk chunk_widened(const chunk *c, float *scratch) {
  chunk wide = *c;
  wide.wide = (const char *)scratch;
  for (int64_t block = c->block0; block < c->block1; block++) {
    widen_panel(c->kind, key_panel(c, block), (int64_t)c->layer->k_dim * INFC_CACHE_TOKENS, key_panel(&wide, block));
    for (int64_t panel = 0; panel < c->panels; panel++)
      widen_panel(c->kind, value_panel(c, panel, block), PANEL, value_panel(&wide, panel, block));
  }
  wide.kind = KIND_F32;
  return wide;
}

// ---- A tile and a chunk

typedef struct tile {
  queries *s;
  const chunk *c;
  int64_t query0, rows;
  int64_t block0, block1; // of the chunk that its queries see, and where in it they end
  int64_t end;
  bool fetch; // the chunk comes from memory, and what follows
} tile;

static void fetch_list(const tile *t, int64_t n, int64_t count, const char **next) {
  for (int64_t i = 0; i < count; i++)
    next[i] = t->fetch ? panel_at(t->c, n + i + AHEAD) : NULL;
}

static void find_scores(const tile *t) {
  const int64_t k_dim = t->s->a->k_dim;
  for (int64_t block = t->block0; block < t->block1; block++) {
    const char *panel = key_panel(t->c, block), *next;
    fetch_list(t, block - t->c->block0, 1, &next);
    const product p = {.a = t->s->q + t->query0 * k_dim,
                       .lda = k_dim,
                       .b = &panel,
                       .next = &next,
                       .count = 1,
                       .k = k_dim,
                       .last = k_dim,
                       .c = t->s->scores + block * INFC_CACHE_TOKENS,
                       .ldc = INFC_CACHE_CHUNK};
    products[t->c->kind][t->rows](&p);
  }
}

static void add_values(const tile *t, const float *factor) {
  const int64_t ld = infc_cache_padded(t->s->a->v_dim), blocks = t->block1 - t->block0,
                all = t->c->block1 - t->c->block0;
  for (int64_t panel = 0; panel < t->c->panels; panel++) {
    const char *panels[BLOCKS], *next[BLOCKS];
    for (int64_t i = 0; i < blocks; i++)
      panels[i] = value_panel(t->c, panel, t->block0 + i);
    fetch_list(t, all + panel * all + t->block0 - t->c->block0, blocks, next);
    const product p = {.a = t->s->scores + t->block0 * INFC_CACHE_TOKENS,
                       .lda = INFC_CACHE_CHUNK,
                       .b = panels,
                       .next = next,
                       .count = blocks,
                       .k = INFC_CACHE_TOKENS,
                       .last = t->end - (t->block1 - 1) * INFC_CACHE_TOKENS,
                       .factor = factor,
                       .c = t->s->sums + t->query0 * ld + panel * INFC_CACHE_PANEL,
                       .ldc = ld};
    products[t->c->kind][t->rows](&p);
  }
}

// Scales of a block's keys (0) or values (1), NULL where there are none.
INLINE const float *scales_of(const chunk *c, int64_t block, int64_t which) {
  if (infc_dtype_size(c->layer->dtype) != 1)
    return NULL;
  return (const float *)(const void *)(c->heads[block] + c->layer->scales_at) + which * INFC_CACHE_TOKENS;
}

INLINE infc_vec vec_softcap(infc_vec x, float cap) {
  return cap == 0.0f ? x : vec_mul(vec_set(cap), INFC_VEC_NAME(tanh)(x / vec_set(cap)));
}

// Finishes a query's scores, of which it sees those from `low` to before `high`, and gives the greatest.
static float finish_scores(const tile *t, float *scores, int64_t low, int64_t high) {
  const float cap = t->s->a->softcap, factor = t->s->layer->dtype == INFC_DTYPE_F8E4M3FN ? F8_FACTOR : 1.0f;
  float numbers[LANES];
  for (int i = 0; i < LANES; i++)
    numbers[i] = (float)i;
  infc_vec top = vec_set(-INFINITY);
  for (int64_t block = t->block0; block < t->block1; block++) {
    const float *scales = scales_of(t->c, block, 0);
    for (int64_t lane = 0; lane < INFC_CACHE_TOKENS; lane += LANES) {
      const int64_t at = block * INFC_CACHE_TOKENS + lane;
      infc_vec x = vec_load(scores + at);
      if (scales)
        x = x * (vec_load(scales + lane) * vec_set(factor));
      x = vec_softcap(x, cap);
      if (at < low || at + LANES > high) {
        const infc_vec number = vec_load(numbers) + vec_set((float)at);
        x = vec_if_negative(number - vec_set((float)high), x, vec_set(-INFINITY));
        x = vec_if_negative(number - vec_set((float)low), vec_set(-INFINITY), x);
      }
      vec_store(scores + at, x);
      top = vec_max(x, top);
    }
  }
  return vec_lane0(vec_highest(top));
}

// A query's scores become exp(score - base); gives their sum. Then they take their values' scales.
static float exponentials(const tile *t, float *scores, float base) {
  const float factor = t->s->layer->dtype == INFC_DTYPE_F8E4M3FN ? F8_FACTOR : 1.0f;
  infc_vec total = vec_zero();
  for (int64_t block = t->block0; block < t->block1; block++) {
    const float *scales = scales_of(t->c, block, 1);
    for (int64_t lane = 0; lane < INFC_CACHE_TOKENS; lane += LANES) {
      const int64_t at = block * INFC_CACHE_TOKENS + lane;
      infc_vec p = INFC_VEC_NAME(exp_negative)(vec_load(scores + at) - vec_set(base));
      total = total + p;
      if (scales)
        p = p * (vec_load(scales + lane) * vec_set(factor));
      vec_store(scores + at, p);
    }
  }
  return vec_lane0(vec_sum(total));
}

static void tile_run(const tile *t) {
  queries *s = t->s;
  float *before = s->top + t->query0, *total = s->total + t->query0;
  float now[TILE_LANES], base[TILE_LANES], factor[TILE_LANES];
  find_scores(t);
  for (int64_t r = 0; r < TILE_LANES; r++) {
    const int64_t place = s->place + (t->query0 + r) / s->heads, start = t->c->place;
    now[r] = r < t->rows ? finish_scores(t, s->scores + r * INFC_CACHE_CHUNK, infc_cache_first(s->layer, place) - start,
                                         place + 1 - start)
                         : 0.0f;
  }
  for (int64_t r = 0; r < TILE_LANES; r += LANES) {
    const infc_vec old = vec_load(before + r), top = vec_max(vec_load(now + r), old);
    // Finite where nothing is seen yet, for the subtraction's sake.
    const infc_vec finite = vec_max(vec_set(-FLT_MAX), top);
    vec_store(now + r, top);
    vec_store(base + r, finite);
    vec_store(factor + r, INFC_VEC_NAME(exp_negative)(old - finite));
  }
  for (int64_t r = 0; r < t->rows; r++) {
    before[r] = now[r];
    total[r] = total[r] * factor[r] + exponentials(t, s->scores + r * INFC_CACHE_CHUNK, base[r]);
  }
  add_values(t, factor);
}

// A chunk for all tiles of the queries. `first` to before `end`: places that the queries see.
static void chunk_run(queries *s, int64_t place, int64_t first, int64_t end) {
  const int64_t count = s->count * s->heads;
  const chunk narrow = chunk_at(s, place, first, end);
  const bool alone = count <= NARROW_ROWS || narrow.kind == KIND_F32;
  const chunk c = alone ? narrow : chunk_widened(&narrow, s->wide);
  const tiling tiles = tile_rows(count);
  for (int64_t i = 0, query = 0, rows; i < tiles.count; i++, query += rows) {
    rows = tiles.height + (i < tiles.taller);
    tile t = {.s = s, .c = &c, .query0 = query, .rows = rows, .fetch = alone && i == 0};
    const int64_t low = infc_cache_first(s->layer, s->place + query / s->heads) - place;
    const int64_t high = s->place + (query + rows - 1) / s->heads + 1 - place;
    t.end = high < INFC_CACHE_CHUNK ? high : INFC_CACHE_CHUNK;
    t.block0 = low > 0 ? low / INFC_CACHE_TOKENS : 0;
    t.block1 = (t.end + INFC_CACHE_TOKENS - 1) / INFC_CACHE_TOKENS;
    if (t.block0 < t.block1)
      tile_run(&t);
  }
}

static void pack_queries(const queries *s) {
  const infc_cache_attention *a = s->a;
  const infc_vec scale = vec_set(a->scale);
  for (int64_t i = 0; i < s->count * s->heads; i++) {
    const float *q = a->q + (s->row + i / s->heads) * a->ldq + (s->head0 + i % s->heads) * a->k_dim;
    for (int64_t d = 0; d < a->k_dim; d += LANES) {
      const int64_t n = a->k_dim - d < LANES ? a->k_dim - d : LANES;
      vec_store_lanes(s->q + i * a->k_dim + d, n, vec_load_lanes(q + d, n, vec_zero()) * scale);
    }
  }
}

static void store_output(const queries *s) {
  const infc_cache_attention *a = s->a;
  for (int64_t i = 0; i < s->count * s->heads; i++) {
    const float *sums = s->sums + i * infc_cache_padded(a->v_dim);
    float *y = a->y + (s->row + i / s->heads) * a->ldy + (s->head0 + i % s->heads) * a->v_dim;
    // Where every score is -infinity total and sums are zero.
    const infc_vec total = vec_max(vec_set(0x1p-126f), vec_set(s->total[i]));
    for (int64_t d = 0; d < a->v_dim; d += LANES)
      vec_store_lanes(y + d, a->v_dim - d < LANES ? a->v_dim - d : LANES, vec_load(sums + d) / total);
  }
}

static void queries_run(queries *s) {
  const int64_t first = infc_cache_first(s->layer, s->place), end = s->place + s->count;
  for (int64_t i = 0; i < s->count * s->heads; i++) {
    s->top[i] = -INFINITY;
    s->total[i] = 0.0f;
  }
  memset(s->sums, 0, (size_t)(s->count * s->heads * infc_cache_padded(s->a->v_dim)) * sizeof(float));
  pack_queries(s);
  for (int64_t place = first / INFC_CACHE_CHUNK * INFC_CACHE_CHUNK; place < end; place += INFC_CACHE_CHUNK)
    chunk_run(s, place, first, end);
  store_output(s);
}

// ---- All rows and heads

// Rows of one sequence and heads from head0 on that share their keys and values.
static void heads_run(queries *s, const infc_cache_rows *rows) {
  const int64_t most = INFC_CACHE_QUERIES / s->heads, all = rows->row1 - rows->row0, parts = (all + most - 1) / most;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t first = all * i / parts;
    s->count = all * (i + 1) / parts - first;
    s->row = rows->row0 + first;
    s->place = rows->place + first;
    queries_run(s);
  }
}

static infc_fault cache_attention_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_cache_attention a = infc_cache_attention_view(task);
  const infc_cache *cache = worker->cache;
  const infc_cache_layer *layer = infc_cache_layer_of(cache, task->words[INFC_W_CACHE_ATTENTION_LAYER],
                                                      task->words[INFC_W_CACHE_ATTENTION_KV_HEADS], a.k_dim, a.v_dim);
  if (!layer)
    return INFC_FAULT_INDEX;
  queries s = {.a = &a, .layer = layer, .scores = worker->scratch};
  s.q = s.scores + INFC_CACHE_TILE * INFC_CACHE_CHUNK;
  s.sums = s.q + INFC_CACHE_QUERIES * infc_cache_padded(a.k_dim);
  s.wide = s.sums + INFC_CACHE_QUERIES * infc_cache_padded(a.v_dim);
  int64_t next = range->row0;
  for (uint32_t i = 0; i < cache->sequence_count; i++) {
    const infc_cache_rows rows = infc_cache_rows_of(&cache->sequences[i], range);
    infc_cache_skip(&a, range, &next, rows.row0, rows.row1);
    s.sequence = &cache->sequences[i];
    for (int64_t head = range->col0; head < range->col1 && rows.row0 < rows.row1; head += s.heads) {
      const int64_t group_end = (head / a.group + 1) * a.group;
      s.head = head / a.group;
      s.head0 = head;
      s.heads = (group_end < range->col1 ? group_end : range->col1) - head;
      s.heads = s.heads < INFC_CACHE_QUERIES ? s.heads : INFC_CACHE_QUERIES;
      heads_run(&s, &rows);
    }
  }
  infc_cache_skip(&a, range, &next, range->row1, range->row1);
  return INFC_FAULT_NONE;
}
