// cache_write: the scalar reference and what all its kernels rely on.
#include "elements.h"
#include "steps.h"

#include <math.h>

static bool are_heads(uint32_t heads, uint32_t kv_heads, uint32_t k_dim, uint32_t v_dim) {
  return heads && kv_heads && heads <= INFC_CACHE_DIM && heads % kv_heads == 0 && k_dim && k_dim <= INFC_CACHE_DIM &&
         v_dim && v_dim <= INFC_CACHE_DIM;
}

bool infc_cache_write_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *w = task->words;
  if (step->word_count != INFC_WORDS_CACHE_WRITE)
    return false;
  const uint32_t heads = w[INFC_W_CACHE_WRITE_HEADS], kv_heads = w[INFC_W_CACHE_WRITE_KV_HEADS];
  const uint32_t k_dim = w[INFC_W_CACHE_WRITE_K_DIM], v_dim = w[INFC_W_CACHE_WRITE_V_DIM];
  const uint32_t rope = w[INFC_W_CACHE_WRITE_HAS_ROPE];
  if (rope > 1 || w[INFC_W_CACHE_WRITE_INTERLEAVED] > 1 || !are_heads(heads, kv_heads, k_dim, v_dim) ||
      !infc_step_has(step, rope ? 5 : 3, 1, INFC_WORDS_CACHE_WRITE) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *o = task->operands;
  if (rope) {
    const uint32_t pairs = o[3].rank ? o[3].dims[o[3].rank - 1] : 0;
    if (!pairs || pairs > k_dim / 2 || infc_rows_stride(&o[3], step, pairs) < 0 ||
        infc_rows_stride(&o[4], step, pairs) < 0)
      return false;
  }
  return infc_rows_stride(&o[0], step, (int64_t)heads * k_dim) > 0 &&
         infc_rows_stride(&o[1], step, (int64_t)kv_heads * k_dim) > 0 &&
         infc_rows_stride(&o[2], step, (int64_t)kv_heads * v_dim) > 0 &&
         infc_rows_stride(&o[rope ? 5 : 3], step, (int64_t)heads * k_dim) > 0;
}

// A block's keys or values as floats.
size_t infc_cache_write_scratch(const infc_task *task) {
  const int64_t k_dim = task->words[INFC_W_CACHE_WRITE_K_DIM], v_dim = task->words[INFC_W_CACHE_WRITE_V_DIM];
  const int64_t most = infc_cache_padded(k_dim > v_dim ? k_dim : v_dim);
  return (size_t)most * INFC_CACHE_TOKENS * sizeof(float);
}

static void rotate(const infc_cache_write *s, int64_t row, const float *x, float *y) {
  for (int64_t i = 2 * s->pairs; i < s->k_dim; i++)
    y[i] = x[i];
  for (int64_t i = 0; i < s->pairs; i++) {
    const int64_t first = i * s->step, second = first + s->apart;
    const float cos = s->cos[row * s->ldc + i], sin = s->sin[row * s->lds + i], a = x[first], b = x[second];
    y[first] = fmaf(a, cos, -(b * sin));
    y[second] = fmaf(b, cos, a * sin);
  }
}

static float scale_of(const float *x, int64_t n, float limit) {
  float most = 0.0f, spoilt = 0.0f;
  for (int64_t i = 0; i < n; i++) {
    const float magnitude = fabsf(x[i]);
    most = magnitude > most ? magnitude : most;
    spoilt += x[i] * 0.0f;
  }
  return infc_cache_scale(most, spoilt, limit);
}

static void store(uint32_t dtype, uint8_t *to, size_t at, float x, float inverse) {
  if (dtype == INFC_DTYPE_F32)
    memcpy(to + 4 * at, &x, 4);
  else if (dtype == INFC_DTYPE_BF16)
    memcpy(to + 2 * at, &(uint16_t){infc_bf16_of(x)}, 2);
  else if (dtype == INFC_DTYPE_I8)
    to[at] = (uint8_t)(int)rintf(infc_cache_held(x, inverse, INFC_CACHE_I8_MAX));
  else
    to[at] = infc_f8_of(infc_cache_held(x, inverse, INFC_CACHE_F8_MAX));
}

// Sets the scale, and gives its inverse.
static float grid(uint32_t dtype, const float *x, int64_t n, float *scale) {
  if (infc_dtype_size(dtype) != 1)
    return 1.0f;
  *scale = scale_of(x, n, dtype == INFC_DTYPE_I8 ? INFC_CACHE_I8_MAX : INFC_CACHE_F8_MAX);
  return 1.0f / *scale;
}

static void write_head(const infc_cache_write *s, const infc_cache_layer *layer, uint8_t *to, size_t token,
                       const float *k, const float *v) {
  float *scales = (float *)(void *)(to + layer->scales_at);
  float inverse = grid(layer->dtype, k, s->k_dim, scales + token);
  for (int64_t d = 0; d < s->k_dim; d++)
    store(layer->dtype, to, (size_t)d * INFC_CACHE_TOKENS + token, k[d], inverse);
  inverse = grid(layer->dtype, v, s->v_dim, scales + INFC_CACHE_TOKENS + token);
  for (int64_t d = 0; d < infc_cache_padded(s->v_dim); d++) {
    const size_t at = ((size_t)d / INFC_CACHE_PANEL * INFC_CACHE_TOKENS + token) * INFC_CACHE_PANEL;
    store(layer->dtype, to + layer->v_at, at + (size_t)d % INFC_CACHE_PANEL, d < s->v_dim ? v[d] : 0.0f, inverse);
  }
}

infc_fault infc_cache_write__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_cache_write s = infc_cache_write_view(task);
  const infc_cache *cache = worker->cache;
  const infc_cache_layer *layer =
      infc_cache_layer_of(cache, task->words[INFC_W_CACHE_WRITE_LAYER], s.kv_heads, s.k_dim, s.v_dim);
  if (!layer)
    return INFC_FAULT_INDEX;
  float *key = worker->scratch;
  for (uint32_t i = 0; i < cache->sequence_count; i++) {
    const infc_cache_sequence *sequence = &cache->sequences[i];
    const infc_cache_rows rows = infc_cache_rows_of(sequence, range);
    for (int64_t row = rows.row0; row < rows.row1; row++)
      for (int64_t head = 0; head < s.kv_heads; head++) {
        const int64_t place = rows.place + row - rows.row0;
        rotate(&s, row, s.k + row * s.ldk + head * s.k_dim, key);
        write_head(&s, layer, infc_cache_head(layer, sequence, place, head), (size_t)place % INFC_CACHE_TOKENS, key,
                   s.v + row * s.ldv + head * s.v_dim);
      }
  }
  for (int64_t row = range->row0; row < range->row1; row++)
    for (int64_t head = 0; head < s.heads; head++)
      rotate(&s, row, s.q + row * s.ldq + head * s.k_dim, s.y + row * s.ldy + head * s.k_dim);
  return INFC_FAULT_NONE;
}
