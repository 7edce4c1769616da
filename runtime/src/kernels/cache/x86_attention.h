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
#include "x86_products.h"

#include <float.h>
#include <math.h>

_Static_assert((int)TILE_ROWS <= (int)INFC_CACHE_TILE, "scratch");

enum {
  BLOCKS = INFC_CACHE_CHUNK / INFC_CACHE_TOKENS,
  TILE_LANES = (TILE_ROWS + LANES - 1) / LANES * LANES,           // that hold a tile's queries
  LD_SCORES = INFC_CACHE_CHUNK * sizeof(float) / sizeof(element), // what becomes of scores lies where they lay
  AHEAD = 8,                                                      // panels from the one computed to the one fetched
};
_Static_assert((int)BLOCKS <= (int)PANELS, "panels of a product");

// ---- Queries that pass over the cache together

typedef struct queries {
  const infc_cache_attention *a;
  const infc_cache_layer *layer;
  const infc_cache_sequence *sequence;
  int64_t head;              // of keys and values
  int64_t head0, heads;      // of queries
  int64_t row, place, count; // rows, and the first one's place
  // In scratch: [count * heads][k_dim padded], [count * heads][v_dim padded], [tile][chunk], a chunk's wide lines
  element *q;
  float *sums, *scores;
  char *wide;
  float top[INFC_CACHE_QUERIES + LANES], total[INFC_CACHE_QUERIES]; // greatest score so far, sum of exp(score - top)
} queries;

// Panels of keys and values as tiles read them, and the keys that follow.
typedef struct chunk {
  const infc_cache_layer *layer;
  int kind;
  int64_t place;                    // its first
  int64_t block0, block1;           // those that hold what is seen
  int64_t key_panels, value_panels; // of a block
  const char *heads[2 * BLOCKS];    // of each block, and of the chunk that follows; NULL: not seen
  char *wide;                       // NULL: panels are read where they are
} chunk;

INLINE int64_t panel_size(const int kind) {
  return PANEL_ROWS / DEPTH * line_size(kind);
}
INLINE int64_t block_lines(const chunk *c) {
  return lines_of(c->layer->k_dim) + c->value_panels * PANEL_ROWS / DEPTH;
}
INLINE const char *key_panel(const chunk *c, int64_t block, int64_t panel) {
  const char *keys = c->wide ? c->wide + block * block_lines(c) * WIDE_LINE : c->heads[block];
  return keys + panel * panel_size(c->kind);
}
INLINE const char *value_panel(const chunk *c, int64_t panel, int64_t block) {
  const char *values = c->wide ? c->wide + (block * block_lines(c) + lines_of(c->layer->k_dim)) * WIDE_LINE
                               : c->heads[block] + c->layer->v_at;
  return values + panel * panel_size(c->kind);
}

// Panels are computed in this order: those of each block's keys, then for each panel of values the blocks', then the
// next chunk's keys.
INLINE int64_t key_number(const chunk *c, int64_t block, int64_t panel) {
  return (block - c->block0) * c->key_panels + panel;
}
INLINE int64_t value_number(const chunk *c, int64_t panel, int64_t block) {
  const int64_t blocks = c->block1 - c->block0;
  return blocks * (c->key_panels + panel) + block - c->block0;
}
INLINE const char *panel_at(const chunk *c, int64_t number) {
  const int64_t blocks = c->block1 - c->block0, keys = blocks * c->key_panels, values = blocks * c->value_panels;
  if (number < keys)
    return key_panel(c, c->block0 + number / c->key_panels, number % c->key_panels);
  if (number < keys + values)
    return value_panel(c, (number - keys) / blocks, c->block0 + (number - keys) % blocks);
  const int64_t rest = number - keys - values, block = BLOCKS + rest / c->key_panels;
  if (block >= 2 * BLOCKS || !c->heads[block])
    return NULL;
  return c->heads[block] + rest % c->key_panels * panel_size(c->kind);
}

static chunk chunk_at(const queries *s, int64_t place, int64_t first, int64_t end) {
  chunk c = {.layer = s->layer,
             .kind = kind_of(s->layer->dtype),
             .place = place,
             .key_panels = (s->a->k_dim + PANEL_ROWS - 1) / PANEL_ROWS,
             .value_panels = infc_cache_padded(s->a->v_dim) / INFC_CACHE_PANEL};
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

static chunk chunk_widened(const chunk *c, char *scratch) {
  chunk wide = *c;
  wide.kind = KIND_WIDE;
  wide.wide = scratch;
  for (int64_t block = c->block0; block < c->block1; block++) {
    char *to = scratch + block * block_lines(c) * WIDE_LINE;
    widen(c->kind, key_panel(c, block, 0), c->layer->k_dim, to);
    widen(c->kind, value_panel(c, 0, block), c->value_panels * PANEL_ROWS, to + lines_of(c->layer->k_dim) * WIDE_LINE);
  }
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

static void find_scores(const tile *t) {
  static const float same[INFC_CACHE_TILE] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const chunk *c = t->c;
  const int64_t lda = infc_cache_padded(t->s->a->k_dim);
  for (int64_t block = t->block0; block < t->block1; block++)
    for (int64_t panel = 0; panel < c->key_panels; panel += PANELS) {
      const int64_t left = c->key_panels - panel;
      product p = {.a = t->s->q + t->query0 * lda + panel * PANEL_ROWS,
                   .lda = lda,
                   .panels = left < PANELS ? left : PANELS,
                   .last = left <= PANELS ? t->s->a->k_dim - (c->key_panels - 1) * PANEL_ROWS : PANEL_ROWS,
                   .factor = panel ? same : NULL,
                   .c = t->s->scores + block * INFC_CACHE_TOKENS,
                   .ldc = INFC_CACHE_CHUNK};
      for (int64_t i = 0; i < p.panels; i++) {
        p.b[i] = key_panel(c, block, panel + i);
        p.next[i] = t->fetch ? panel_at(c, key_number(c, block, panel + i) + AHEAD) : NULL;
      }
      products[c->kind][t->rows](&p);
    }
}

static void add_values(const tile *t, const float *factor) {
  const chunk *c = t->c;
  const int64_t ld = infc_cache_padded(t->s->a->v_dim);
  for (int64_t panel = 0; panel < c->value_panels; panel++) {
    product p = {.a = (const element *)t->s->scores + t->block0 * INFC_CACHE_TOKENS,
                 .lda = LD_SCORES,
                 .panels = t->block1 - t->block0,
                 .last = t->end - (t->block1 - 1) * INFC_CACHE_TOKENS,
                 .factor = factor,
                 .c = t->s->sums + t->query0 * ld + panel * INFC_CACHE_PANEL,
                 .ldc = ld};
    for (int64_t i = 0; i < p.panels; i++) {
      p.b[i] = value_panel(c, panel, t->block0 + i);
      p.next[i] = t->fetch ? panel_at(c, value_number(c, panel, t->block0 + i) + AHEAD) : NULL;
    }
    products[c->kind][t->rows](&p);
  }
}

// ---- Softmax

// A block's scales of keys (0) or values (1), NULL where there are none.
INLINE const float *scales_of(const chunk *c, int64_t block, int64_t which) {
  if (infc_dtype_size(c->layer->dtype) != 1)
    return NULL;
  return (const float *)(const void *)(c->heads[block] + c->layer->scales_at) + which * INFC_CACHE_TOKENS;
}

INLINE infc_vec vec_softcap(infc_vec x, float cap) {
  return cap == 0.0f ? x : vec_mul(vec_set(cap), INFC_VEC_NAME(tanh)(x / vec_set(cap)));
}

// -infinity outside of `low` to before `high`, of scores from `at` on.
INLINE infc_vec vec_within(infc_vec x, int64_t at, int64_t low, int64_t high) {
  float numbers[LANES];
  for (int i = 0; i < LANES; i++)
    numbers[i] = (float)i;
  const infc_vec number = vec_load(numbers) + vec_set((float)at), none = vec_set(-INFINITY);
  x = vec_if_negative(number - vec_set((float)high), x, none);
  return vec_if_negative(number - vec_set((float)low), none, x);
}

// Finishes a query's scores, of which it sees those from `low` to before `high`, and gives the greatest.
static float finish_scores(const tile *t, float *scores, int64_t low, int64_t high) {
  const float cap = t->s->a->softcap;
  const infc_vec factor = vec_set(t->s->layer->dtype == INFC_DTYPE_F8E4M3FN ? F8_FACTOR : 1.0f);
  infc_vec top = vec_set(-INFINITY);
  for (int64_t block = t->block0; block < t->block1; block++) {
    const float *scales = scales_of(t->c, block, 0);
    for (int64_t lane = 0; lane < INFC_CACHE_TOKENS; lane += LANES) {
      const int64_t at = block * INFC_CACHE_TOKENS + lane;
      infc_vec x = vec_load(scores + at);
      if (scales)
        x = x * (vec_load(scales + lane) * factor);
      x = vec_softcap(x, cap);
      if (at < low || at + LANES > high)
        x = vec_within(x, at, low, high);
      vec_store(scores + at, x);
      top = vec_max(x, top);
    }
  }
  return vec_lane0(vec_highest(top));
}

// A query's scores become exp(score - base) times their values' scales. Gives the sum without these.
static float exponentials(const tile *t, float *scores, float base) {
  const infc_vec factor = vec_set(t->s->layer->dtype == INFC_DTYPE_F8E4M3FN ? F8_FACTOR : 1.0f);
  infc_vec total = vec_zero();
  for (int64_t block = t->block0; block < t->block1; block++) {
    const float *scales = scales_of(t->c, block, 1);
    for (int64_t lane = 0; lane < INFC_CACHE_TOKENS; lane += LANES) {
      const int64_t at = block * INFC_CACHE_TOKENS + lane;
      infc_vec p = INFC_VEC_NAME(exp_negative)(vec_load(scores + at) - vec_set(base));
      total = total + p;
      if (scales)
        p = p * (vec_load(scales + lane) * factor);
      store_element_vec((element *)scores + at, p);
    }
  }
  return vec_lane0(vec_sum(total));
}

static void tile_run(const tile *t) {
  queries *s = t->s;
  float *before = s->top + t->query0, *total = s->total + t->query0;
  float now[TILE_LANES] = {0}, base[TILE_LANES], factor[TILE_LANES];
  find_scores(t);
  for (int64_t r = 0; r < t->rows; r++) {
    const int64_t place = s->place + (t->query0 + r) / s->heads, start = t->c->place;
    now[r] = finish_scores(t, s->scores + r * INFC_CACHE_CHUNK, infc_cache_first(s->layer, place) - start,
                           place + 1 - start);
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
  const bool alone = count <= NARROW_ROWS || narrow.kind == KIND_WIDE;
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
  const int64_t ld = infc_cache_padded(a->k_dim);
  for (int64_t i = 0; i < s->count * s->heads; i++) {
    const float *q = a->q + (s->row + i / s->heads) * a->ldq + (s->head0 + i % s->heads) * a->k_dim;
    for (int64_t d = 0; d < a->k_dim; d += LANES) {
      const int64_t n = a->k_dim - d < LANES ? a->k_dim - d : LANES;
      store_element_vec(s->q + i * ld + d, vec_load_lanes(q + d, n, vec_zero()) * scale);
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

static void cache_attention_run(const infc_task *task, const infc_range *range, const infc_worker *worker,
                                const infc_cache_layer *layer) {
  const infc_cache_attention a = infc_cache_attention_view(task);
  const infc_cache *cache = worker->cache;
  queries s = {.a = &a, .layer = layer, .scores = worker->scratch};
  float *q = s.scores + INFC_CACHE_TILE * INFC_CACHE_CHUNK;
  s.q = (element *)q;
  s.sums = q + INFC_CACHE_QUERIES * infc_cache_padded(a.k_dim);
  s.wide = (char *)(s.sums + INFC_CACHE_QUERIES * infc_cache_padded(a.v_dim));
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
}
