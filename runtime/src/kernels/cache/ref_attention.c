// cache_attention: the scalar reference and what all its kernels rely on.
#include "elements.h"
#include "steps.h"

#include <math.h>

bool infc_cache_attention_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *w = task->words;
  if (!infc_step_has(step, 1, 1, INFC_WORDS_CACHE_ATTENTION) || step->split[0] == INFC_SPLIT_ROWS ||
      step->split[1] == INFC_SPLIT_ROWS)
    return false;
  const uint32_t heads = w[INFC_W_CACHE_ATTENTION_HEADS], kv_heads = w[INFC_W_CACHE_ATTENTION_KV_HEADS];
  const uint32_t k_dim = w[INFC_W_CACHE_ATTENTION_K_DIM], v_dim = w[INFC_W_CACHE_ATTENTION_V_DIM];
  return heads && heads <= INFC_CACHE_DIM && kv_heads && heads % kv_heads == 0 && k_dim && k_dim <= INFC_CACHE_DIM &&
         v_dim && v_dim <= INFC_CACHE_DIM && step->cols &&
         infc_rows_stride(&task->operands[0], step, (int64_t)heads * k_dim) > 0 &&
         infc_rows_stride(&task->operands[1], step, (int64_t)heads * v_dim) > 0;
}

// Queries and what they have gathered, a tile's scores, and a chunk of keys and values widened to floats.
size_t infc_cache_attention_scratch(const infc_task *task) {
  const int64_t k_dim = infc_cache_padded(task->words[INFC_W_CACHE_ATTENTION_K_DIM]);
  const int64_t v_dim = infc_cache_padded(task->words[INFC_W_CACHE_ATTENTION_V_DIM]);
  const int64_t floats = (k_dim + v_dim) * (INFC_CACHE_QUERIES + INFC_CACHE_CHUNK) + INFC_CACHE_TILE * INFC_CACHE_CHUNK;
  return (size_t)floats * sizeof(float);
}

static float load(uint32_t dtype, const uint8_t *from, size_t at) {
  uint16_t half;
  float x;
  switch (dtype) {
  case INFC_DTYPE_F32:
    memcpy(&x, from + 4 * at, 4);
    return x;
  case INFC_DTYPE_BF16:
    memcpy(&half, from + 2 * at, 2);
    return infc_float_of((uint32_t)half << 16);
  case INFC_DTYPE_I8:
    return (float)(int8_t)from[at];
  default:
    return infc_f8_value(from[at]);
  }
}

// One query and the head of keys and values that it looks at.
typedef struct query {
  const infc_cache_attention *a;
  const infc_cache_layer *layer;
  const infc_cache_sequence *sequence;
  int64_t head;
  int64_t first, place; // that it sees, the last being its own
  const float *q;
  float *y;
} query;

static float score(const query *s, int64_t place) {
  const uint8_t *block = infc_cache_head(s->layer, s->sequence, place, s->head);
  const size_t token = (size_t)place % INFC_CACHE_TOKENS;
  double sum = 0.0;
  for (int64_t d = 0; d < s->a->k_dim; d++)
    sum += (double)s->q[d] * (double)load(s->layer->dtype, block, (size_t)d * INFC_CACHE_TOKENS + token);
  if (infc_dtype_size(s->layer->dtype) == 1)
    sum *= (double)((const float *)(const void *)(block + s->layer->scales_at))[token];
  const double x = sum * (double)s->a->scale, cap = (double)s->a->softcap;
  return (float)(cap == 0.0 ? x : cap * tanh(x / cap));
}

static double value(const query *s, int64_t place, size_t d) {
  const uint8_t *block = infc_cache_head(s->layer, s->sequence, place, s->head);
  const size_t token = (size_t)place % INFC_CACHE_TOKENS;
  const size_t at = (d / INFC_CACHE_PANEL * INFC_CACHE_TOKENS + token) * INFC_CACHE_PANEL + d % INFC_CACHE_PANEL;
  const double x = (double)load(s->layer->dtype, block + s->layer->v_at, at);
  if (infc_dtype_size(s->layer->dtype) != 1)
    return x;
  return x * (double)((const float *)(const void *)(block + s->layer->scales_at))[INFC_CACHE_TOKENS + token];
}

static void query_run(const query *s, double *sums) {
  float top = -INFINITY;
  for (int64_t place = s->first; place <= s->place; place++) {
    const float x = score(s, place);
    top = x > top ? x : top;
  }
  if (top == -INFINITY)
    top = 0.0f;
  double total = 0.0;
  for (int64_t d = 0; d < s->a->v_dim; d++)
    sums[d] = 0.0;
  for (int64_t place = s->first; place <= s->place; place++) {
    const double p = exp((double)(score(s, place) - top));
    total += p;
    for (int64_t d = 0; d < s->a->v_dim; d++)
      sums[d] += p * value(s, place, (size_t)d);
  }
  for (int64_t d = 0; d < s->a->v_dim; d++)
    s->y[d] = total == 0.0 ? 0.0f : (float)(sums[d] / total);
}

infc_fault infc_cache_attention__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_cache_attention a = infc_cache_attention_view(task);
  const infc_cache *cache = worker->cache;
  const infc_cache_layer *layer = infc_cache_attention_layer(task, worker);
  if (!layer)
    return INFC_FAULT_INDEX;
  infc_cache_walk walk = infc_cache_walk_of(task, range, &a, layer, cache);
  for (infc_cache_pass pass; infc_cache_next(&walk, &pass);)
    for (int64_t row = 0; row < pass.count; row++)
      for (int64_t head = pass.head0; head < pass.head0 + pass.heads; head++) {
        const int64_t place = pass.place + row;
        const query s = {&a,
                         layer,
                         pass.sequence,
                         pass.head,
                         infc_cache_first(layer, place),
                         place,
                         a.q + (pass.row + row) * a.ldq + head * a.k_dim,
                         a.y + (pass.row + row) * a.ldy + head * a.v_dim};
        query_run(&s, worker->scratch);
      }
  infc_cache_clear_others(task, range, &a, cache);
  return INFC_FAULT_NONE;
}
