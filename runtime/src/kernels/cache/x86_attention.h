// cache_attention, written once for both vector widths: flash attention (Dao et al., 2022) over chunks of four blocks.
//
// The queries that pass over a chunk together are those of some rows and of all heads that share its keys and values, a
// row's heads one after the other; tiles of them meet the chunk's panels as rows of a in a gemm (../gemm/x86_tile.h). A
// tile alone, as in decoding, reads 8- and 16-bit panels as they are and widens them in registers, while panels are
// fetched that it will read soon; for several tiles a chunk is widened once, into scratch.
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
  AHEAD = 6,                                                      // panels from the one computed to the one fetched
};
_Static_assert((int)BLOCKS <= (int)PANELS, "panels of a product");

// ---- Queries that pass over the cache together

typedef struct queries {
  infc_cache_pass pass;
  const infc_cache_attention *a;
  const infc_cache_layer *layer;
  // In scratch: [count * heads][k_dim padded], [count * heads][v_dim padded], [tile][chunk], a chunk's wide lines
  element *q;
  float *sums, *scores;
  char *wide;
  float top[INFC_CACHE_QUERIES + LANES], total[INFC_CACHE_QUERIES]; // greatest score so far, sum of exp(score - top)
} queries;

// Panels of keys and values as tiles read them.
typedef struct chunk {
  const infc_cache_layer *layer;
  int kind;
  int64_t place;                    // its first
  int64_t block0, block1;           // those that hold what is seen
  int64_t key_panels, value_panels; // of a block
  const char *heads[BLOCKS];        // of each block
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

static chunk chunk_at(const infc_cache_layer *layer, const infc_cache_pass *pass, int64_t place) {
  const int64_t first = infc_cache_first(layer, pass->place), end = pass->place + pass->count;
  const int64_t seen = end - place < INFC_CACHE_CHUNK ? end - place : INFC_CACHE_CHUNK;
  chunk c = {.layer = layer,
             .kind = kind_of(layer->dtype),
             .place = place,
             .block0 = first > place ? (first - place) / INFC_CACHE_TOKENS : 0,
             .block1 = (seen + INFC_CACHE_TOKENS - 1) / INFC_CACHE_TOKENS,
             .key_panels = (layer->k_dim + PANEL_ROWS - 1) / PANEL_ROWS,
             .value_panels = infc_cache_padded(layer->v_dim) / INFC_CACHE_PANEL};
  for (int64_t block = c.block0; block < c.block1; block++)
    c.heads[block] =
        (const char *)infc_cache_head(layer, pass->sequence, place + block * INFC_CACHE_TOKENS, pass->head);
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

// ---- What is read soon

// Whether tiles read panels where they are; the first one does so from memory.
INLINE bool reads_memory(const infc_cache_layer *layer, const infc_cache_pass *pass) {
  return kind_of(layer->dtype) == KIND_WIDE || pass->count * pass->heads <= NARROW_ROWS;
}

// All panels that tiles read from memory, in the order in which they do: of a chunk those of each block's keys, then
// for each panel of values the blocks'.
typedef struct stream {
  infc_cache_walk walk;
  infc_cache_pass pass;
  chunk c;
  int64_t end;        // place where the pass ends
  int64_t panel, all; // the next one of the chunk, and how many it has
} stream;

static bool next_chunk(stream *s) {
  int64_t place = s->c.place + INFC_CACHE_CHUNK;
  if (place >= s->end) {
    do
      if (!infc_cache_next(&s->walk, &s->pass))
        return false;
    while (!reads_memory(s->walk.layer, &s->pass));
    s->end = s->pass.place + s->pass.count;
    place = infc_cache_first(s->walk.layer, s->pass.place) / INFC_CACHE_CHUNK * INFC_CACHE_CHUNK;
  }
  s->c = chunk_at(s->walk.layer, &s->pass, place);
  s->panel = 0;
  s->all = (s->c.block1 - s->c.block0) * (s->c.key_panels + s->c.value_panels);
  return true;
}

// The next panel, NULL after the last one.
static const char *next_panel(stream *s) {
  if (s->panel == s->all && !next_chunk(s))
    return NULL;
  const chunk *c = &s->c;
  const int64_t blocks = c->block1 - c->block0, number = s->panel++, value = number - blocks * c->key_panels;
  if (value < 0)
    return key_panel(c, c->block0 + number / c->key_panels, number % c->key_panels);
  return value_panel(c, value / blocks, c->block0 + value % blocks);
}

// Leaves out blocks of a chunk.
static void skip_blocks(stream *s, const chunk *c, int64_t blocks) {
  for (int64_t i = 0; i < blocks * (c->key_panels + c->value_panels); i++)
    next_panel(s);
}

// ---- A tile and a chunk

typedef struct tile {
  queries *s;
  const chunk *c;
  int64_t query0, rows;
  int64_t block0, block1; // of the chunk that its queries see, and where in it they end
  int64_t end;
  stream *ahead; // what is fetched beside, or NULL
} tile;

INLINE const char *fetched(const tile *t) {
  return t->ahead ? next_panel(t->ahead) : NULL;
}

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
        p.next[i] = fetched(t);
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
      p.next[i] = fetched(t);
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
    const int64_t place = s->pass.place + (t->query0 + r) / s->pass.heads, start = t->c->place;
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

// A chunk for all tiles of the queries.
static void chunk_run(queries *s, int64_t place, stream *ahead) {
  const infc_cache_pass *pass = &s->pass;
  const int64_t count = pass->count * pass->heads;
  const chunk narrow = chunk_at(s->layer, pass, place);
  const bool from_memory = reads_memory(s->layer, pass);
  const chunk c = from_memory ? narrow : chunk_widened(&narrow, s->wide);
  const tiling tiles = tile_rows(count);
  for (int64_t i = 0, query = 0, rows; i < tiles.count; i++, query += rows) {
    rows = tiles.height + (i < tiles.taller);
    tile t = {.s = s, .c = &c, .query0 = query, .rows = rows, .ahead = from_memory && i == 0 ? ahead : NULL};
    const int64_t low = infc_cache_first(s->layer, pass->place + query / pass->heads) - place;
    const int64_t high = pass->place + (query + rows - 1) / pass->heads + 1 - place;
    t.end = high < INFC_CACHE_CHUNK ? high : INFC_CACHE_CHUNK;
    t.block0 = low > 0 ? low / INFC_CACHE_TOKENS : 0;
    t.block1 = (t.end + INFC_CACHE_TOKENS - 1) / INFC_CACHE_TOKENS;
    const int64_t seen = t.block1 > t.block0 ? t.block1 - t.block0 : 0;
    if (seen)
      tile_run(&t);
    if (t.ahead)
      skip_blocks(ahead, &c, c.block1 - c.block0 - seen);
  }
}

static void pack_queries(const queries *s) {
  const infc_cache_attention *a = s->a;
  const infc_cache_pass *pass = &s->pass;
  const infc_vec scale = vec_set(a->scale);
  const int64_t ld = infc_cache_padded(a->k_dim);
  for (int64_t i = 0; i < pass->count * pass->heads; i++) {
    const float *q = a->q + (pass->row + i / pass->heads) * a->ldq + (pass->head0 + i % pass->heads) * a->k_dim;
    for (int64_t d = 0; d < a->k_dim; d += LANES) {
      const int64_t n = a->k_dim - d < LANES ? a->k_dim - d : LANES;
      store_element_vec(s->q + i * ld + d, vec_load_lanes(q + d, n, vec_zero()) * scale);
    }
  }
}

static void store_output(const queries *s) {
  const infc_cache_attention *a = s->a;
  const infc_cache_pass *pass = &s->pass;
  for (int64_t i = 0; i < pass->count * pass->heads; i++) {
    const float *sums = s->sums + i * infc_cache_padded(a->v_dim);
    float *y = a->y + (pass->row + i / pass->heads) * a->ldy + (pass->head0 + i % pass->heads) * a->v_dim;
    // Where every score is -infinity total and sums are zero.
    const infc_vec total = vec_max(vec_set(0x1p-126f), vec_set(s->total[i]));
    for (int64_t d = 0; d < a->v_dim; d += LANES)
      vec_store_lanes(y + d, a->v_dim - d < LANES ? a->v_dim - d : LANES, vec_load(sums + d) / total);
  }
}

static void queries_run(queries *s, stream *ahead) {
  const int64_t first = infc_cache_first(s->layer, s->pass.place), end = s->pass.place + s->pass.count;
  const int64_t count = s->pass.count * s->pass.heads;
  for (int64_t i = 0; i < count; i++) {
    s->top[i] = -INFINITY;
    s->total[i] = 0.0f;
  }
  memset(s->sums, 0, (size_t)(count * infc_cache_padded(s->a->v_dim)) * sizeof(float));
  pack_queries(s);
  for (int64_t place = first / INFC_CACHE_CHUNK * INFC_CACHE_CHUNK; place < end; place += INFC_CACHE_CHUNK)
    chunk_run(s, place, ahead);
  store_output(s);
}

static void cache_attention_run(const infc_task *task, const infc_range *range, const infc_worker *worker,
                                const infc_cache_layer *layer) {
  const infc_cache_attention a = infc_cache_attention_view(task);
  infc_cache_walk walk = infc_cache_walk_of(task, range, &a, layer, worker->cache);
  stream ahead = {.walk = walk};
  for (int i = 0; i < AHEAD; i++)
    next_panel(&ahead);
  queries s = {.a = &a, .layer = layer, .scores = worker->scratch};
  float *q = s.scores + INFC_CACHE_TILE * INFC_CACHE_CHUNK;
  s.q = (element *)q;
  s.sums = q + INFC_CACHE_QUERIES * infc_cache_padded(a.k_dim);
  s.wide = (char *)(s.sums + INFC_CACHE_QUERIES * infc_cache_padded(a.v_dim));
  while (infc_cache_next(&walk, &s.pass))
    queries_run(&s, &ahead);
  infc_cache_clear_others(task, range, &a, worker->cache);
}
