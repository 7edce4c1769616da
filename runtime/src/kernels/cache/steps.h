// The operands of the cache's two steps by name, and which rows of a call belong to which sequence.
#ifndef INFC_CACHE_STEPS_H
#define INFC_CACHE_STEPS_H

#include "../gemm/rows.h"
#include "cache.h"

enum {
  INFC_CACHE_DIM = 1 << 16, // most elements of a head, and most heads
  INFC_CACHE_CHUNK = 128,   // places whose scores are held at once
  INFC_CACHE_QUERIES = 96,  // most queries that pass over a chunk together
  INFC_CACHE_TILE = 12,     // most queries whose scores are held at once
  INFC_CACHE_PANEL = 32,    // columns of a panel of values
};

static inline int64_t infc_cache_padded(int64_t dim) {
  return (dim + INFC_CACHE_PANEL - 1) / INFC_CACHE_PANEL * INFC_CACHE_PANEL;
}

typedef struct infc_cache_write {
  const float *q, *k, *v, *cos, *sin; // cos and sin: NULL without rope
  float *y;
  int64_t ldq, ldk, ldv, ldc, lds, ldy;
  int64_t heads, kv_heads, k_dim, v_dim;
  int64_t pairs; // that are rotated
  int64_t apart; // elements between the two of a pair
  int64_t step;  // and from one pair to the next
} infc_cache_write;

static inline infc_cache_write infc_cache_write_view(const infc_task *t) {
  const uint32_t *w = t->words;
  const infc_operand *o = t->operands;
  const bool rope = w[INFC_W_CACHE_WRITE_HAS_ROPE], interleaved = w[INFC_W_CACHE_WRITE_INTERLEAVED];
  const int64_t heads = w[INFC_W_CACHE_WRITE_HEADS], kv_heads = w[INFC_W_CACHE_WRITE_KV_HEADS];
  const int64_t k_dim = w[INFC_W_CACHE_WRITE_K_DIM], v_dim = w[INFC_W_CACHE_WRITE_V_DIM];
  const int64_t pairs = rope ? o[3].dims[o[3].rank - 1] : 0;
  const int y = rope ? 5 : 3;
  return (infc_cache_write){
      .q = t->ptr[0],
      .k = t->ptr[1],
      .v = t->ptr[2],
      .cos = rope ? t->ptr[3] : NULL,
      .sin = rope ? t->ptr[4] : NULL,
      .y = t->ptr[y],
      .ldq = infc_rows_stride(&o[0], t->step, heads * k_dim),
      .ldk = infc_rows_stride(&o[1], t->step, kv_heads * k_dim),
      .ldv = infc_rows_stride(&o[2], t->step, kv_heads * v_dim),
      .ldc = rope ? infc_rows_stride(&o[3], t->step, pairs) : 0,
      .lds = rope ? infc_rows_stride(&o[4], t->step, pairs) : 0,
      .ldy = infc_rows_stride(&o[y], t->step, heads * k_dim),
      .heads = heads,
      .kv_heads = kv_heads,
      .k_dim = k_dim,
      .v_dim = v_dim,
      .pairs = pairs,
      .apart = interleaved ? 1 : pairs,
      .step = interleaved ? 2 : 1,
  };
}

typedef struct infc_cache_attention {
  const float *q;
  float *y;
  int64_t ldq, ldy;
  int64_t heads;
  int64_t group; // of them that share a head of keys and values
  int64_t k_dim, v_dim;
  float scale, softcap;
} infc_cache_attention;

static inline infc_cache_attention infc_cache_attention_view(const infc_task *t) {
  const uint32_t *w = t->words;
  const int64_t heads = w[INFC_W_CACHE_ATTENTION_HEADS];
  const int64_t k_dim = w[INFC_W_CACHE_ATTENTION_K_DIM], v_dim = w[INFC_W_CACHE_ATTENTION_V_DIM];
  return (infc_cache_attention){
      .q = t->ptr[0],
      .y = t->ptr[1],
      .ldq = infc_rows_stride(&t->operands[0], t->step, heads * k_dim),
      .ldy = infc_rows_stride(&t->operands[1], t->step, heads * v_dim),
      .heads = heads,
      .group = heads / w[INFC_W_CACHE_ATTENTION_KV_HEADS],
      .k_dim = k_dim,
      .v_dim = v_dim,
      .scale = infc_word_f32(w[INFC_W_CACHE_ATTENTION_SCALE]),
      .softcap = infc_word_f32(w[INFC_W_CACHE_ATTENTION_SOFTCAP]),
  };
}

// The layer that a step names, or NULL where there is none of those sizes.
static inline const infc_cache_layer *infc_cache_layer_of(const infc_cache *cache, uint32_t layer, int64_t heads,
                                                          int64_t k_dim, int64_t v_dim) {
  if (!cache || layer >= cache->layer_count)
    return NULL;
  const infc_cache_layer *found = &cache->layers[layer];
  const bool fits =
      found->heads == heads && found->k_dim == k_dim && found->v_dim == v_dim && found->group < INFC_CACHE_GROUPS;
  return fits ? found : NULL;
}

static inline const infc_cache_layer *infc_cache_attention_layer(const infc_task *t, const infc_worker *worker) {
  const uint32_t *w = t->words;
  return infc_cache_layer_of(worker->cache, w[INFC_W_CACHE_ATTENTION_LAYER], w[INFC_W_CACHE_ATTENTION_KV_HEADS],
                             w[INFC_W_CACHE_ATTENTION_K_DIM], w[INFC_W_CACHE_ATTENTION_V_DIM]);
}

// The rows from row0 to row1 that a sequence has in a call.
typedef struct infc_cache_rows {
  int64_t row0, row1;
  int64_t place; // of row0
} infc_cache_rows;

static inline infc_cache_rows infc_cache_rows_of(const infc_cache_sequence *s, const infc_range *range) {
  const int64_t end = s->row0 + s->rows;
  int64_t row0 = s->row0 > range->row0 ? s->row0 : range->row0, row1 = end < range->row1 ? end : range->row1;
  row0 = row0 < range->row1 ? row0 : range->row1;
  row1 = row1 > row0 ? row1 : row0;
  return (infc_cache_rows){row0, row1, s->past + row0 - s->row0};
}

// A head's part of the block that holds a place.
static inline uint8_t *infc_cache_head(const infc_cache_layer *layer, const infc_cache_sequence *s, int64_t place,
                                       int64_t head) {
  const int64_t block = s->tables[layer->group][place / INFC_CACHE_TOKENS];
  return layer->blocks + (size_t)block * layer->block_bytes + (size_t)head * layer->head_bytes;
}

// The first place that the query at `place` sees.
static inline int64_t infc_cache_first(const infc_cache_layer *layer, int64_t place) {
  return layer->window && place + 1 > layer->window ? place + 1 - layer->window : 0;
}

// ---- Passes over the cache, and whose they are

// Rows of a sequence whose queries, of heads that share their keys and values, pass over these together.
typedef struct infc_cache_pass {
  const infc_cache_sequence *sequence;
  int64_t row, place, count; // rows, and the first one's place
  int64_t head;              // of keys and values
  int64_t head0, heads;      // of queries
} infc_cache_pass;

// The passes of a call, one after the other. The step's columns are shares of all its work: what a call does follows
// from where its share begins and ends, for sequences may differ much in length.
typedef struct infc_cache_walk {
  const infc_cache_attention *a;
  const infc_cache_layer *layer;
  const infc_cache *cache;
  const infc_range *range;
  double begin, end, small, done; // of the work: the call's, a small part, that of sequences before
  uint32_t sequence;              // the next one
  infc_cache_rows rows;           // of the one before it
  int64_t row, head, head_end;    // in it: what comes next, and where this call's heads end
  int64_t head0;                  // and begin
} infc_cache_walk;

// What a head of queries costs, in products of one query with one place's keys and values. To read a place's costs as
// much as some of them.
static inline double infc_cache_cost(const infc_cache_attention *a, const infc_cache_layer *layer,
                                     const infc_cache_rows *rows) {
  enum { READ = 16 };
  const int64_t count = rows->row1 - rows->row0, end = rows->place + count;
  if (count == 0)
    return 0.0;
  const double read = (double)(end - infc_cache_first(layer, rows->place));
  const double mean = (double)rows->place + 0.5 * (double)(count + 1);
  const double seen = layer->window && mean > layer->window ? layer->window : mean;
  return READ * read / (double)a->group + (double)count * seen;
}

static inline infc_cache_walk infc_cache_walk_of(const infc_task *t, const infc_range *range,
                                                 const infc_cache_attention *a, const infc_cache_layer *layer,
                                                 const infc_cache *cache) {
  infc_cache_walk walk = {.a = a, .layer = layer, .cache = cache, .range = range};
  double all = 0.0;
  for (uint32_t i = 0; i < cache->sequence_count; i++) {
    const infc_cache_rows rows = infc_cache_rows_of(&cache->sequences[i], range);
    all += (double)a->heads * infc_cache_cost(a, layer, &rows);
  }
  walk.begin = all * (double)range->col0 / t->step->cols;
  walk.end = all * (double)range->col1 / t->step->cols;
  walk.small = all / 8;
  return walk;
}

// The first head that belongs to what comes after `at`, of heads that cost so much each: that which lies more behind
// than before. Heads that share their keys and values stay together where they are a small part of all.
static inline int64_t infc_cache_head_at(const infc_cache_walk *walk, double at, double cost) {
  const int64_t unit = cost * (double)walk->a->group < walk->small ? walk->a->group : 1;
  const int64_t units = walk->a->heads / unit;
  const double first = (at - walk->done) / (cost * (double)unit) + 0.5;
  return (first < 0.0 ? 0 : first < (double)units ? (int64_t)first : units) * unit;
}

// Goes on to the next sequence of which the call has heads; false if there is none.
static inline bool infc_cache_next_sequence(infc_cache_walk *walk) {
  while (walk->sequence < walk->cache->sequence_count) {
    walk->rows = infc_cache_rows_of(&walk->cache->sequences[walk->sequence++], walk->range);
    const double cost = infc_cache_cost(walk->a, walk->layer, &walk->rows);
    if (cost == 0.0)
      continue;
    walk->head0 = infc_cache_head_at(walk, walk->begin, cost);
    walk->head_end = infc_cache_head_at(walk, walk->end, cost);
    walk->done += (double)walk->a->heads * cost;
    walk->head = walk->head0;
    walk->row = walk->rows.row0;
    if (walk->head < walk->head_end)
      return true;
  }
  return false;
}

// The next pass: false if there is none.
static inline bool infc_cache_next(infc_cache_walk *walk, infc_cache_pass *pass) {
  if (walk->head >= walk->head_end && !infc_cache_next_sequence(walk))
    return false;
  const int64_t group = walk->a->group, left = walk->rows.row1 - walk->row;
  const int64_t group_end = (walk->head / group + 1) * group;
  int64_t heads = (group_end < walk->head_end ? group_end : walk->head_end) - walk->head;
  heads = heads < INFC_CACHE_QUERIES ? heads : INFC_CACHE_QUERIES;
  const int64_t most = INFC_CACHE_QUERIES / heads, passes = (left + most - 1) / most, count = left / passes;
  *pass = (infc_cache_pass){.sequence = &walk->cache->sequences[walk->sequence - 1],
                            .row = walk->row,
                            .place = walk->rows.place + walk->row - walk->rows.row0,
                            .count = count,
                            .head = walk->head / group,
                            .head0 = walk->head,
                            .heads = heads};
  walk->row += count;
  if (walk->row == walk->rows.row1) {
    walk->row = walk->rows.row0;
    walk->head += heads;
  }
  return true;
}

// Rows of no sequence give zeros. Each call clears its share of their columns.
static inline void infc_cache_clear_others(const infc_task *t, const infc_range *range, const infc_cache_attention *a,
                                           const infc_cache *cache) {
  const int64_t width = a->heads * a->v_dim, cols = t->step->cols;
  const int64_t col0 = width * range->col0 / cols, col1 = width * range->col1 / cols;
  int64_t row = range->row0;
  for (uint32_t i = 0; i <= cache->sequence_count; i++) {
    const bool last = i == cache->sequence_count;
    const infc_cache_rows rows =
        last ? (infc_cache_rows){range->row1, range->row1, 0} : infc_cache_rows_of(&cache->sequences[i], range);
    for (; row < rows.row0; row++)
      memset(a->y + row * a->ldy + col0, 0, (size_t)(col1 - col0) * sizeof(float));
    row = rows.row1 > row ? rows.row1 : row;
  }
}

#endif // INFC_CACHE_STEPS_H
