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
  int64_t group; // heads of queries that share a head of keys and values
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

// Rows of no sequence give zeros: those before `row`, from `*next` on, which is moved to `end`.
static inline void infc_cache_skip(const infc_cache_attention *a, const infc_range *range, int64_t *next, int64_t row,
                                   int64_t end) {
  for (; *next < row; ++*next)
    memset(a->y + *next * a->ldy + range->col0 * a->v_dim, 0,
           (size_t)((range->col1 - range->col0) * a->v_dim) * sizeof(float));
  *next = end > *next ? end : *next;
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

#endif // INFC_CACHE_STEPS_H
