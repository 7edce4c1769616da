// cache_write, written once for both vector widths. Keys are rotated into scratch, a block's rows together, and turned
// on their side LANES tokens at a time; fewer tokens, as in decoding, go element by element.
#include "steps.h"
#include "x86_elements.h"

#if defined(__AVX512F__)
// Floats 0 0 1 1 2 2 ... of the first half of a vector's.
INLINE infc_vec load_twice(const float *from, int64_t n) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(index, vec_load_first(from, n, vec_zero()));
}
INLINE infc_vec vec_swap_pairs(infc_vec x) {
  return _mm512_permute_ps(x, 0xB1);
}
#else
INLINE infc_vec load_twice(const float *from, int64_t n) {
  const __m256i index = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  return _mm256_permutevar8x32_ps(vec_load_first(from, n, vec_zero()), index);
}
INLINE infc_vec vec_swap_pairs(infc_vec x) {
  return _mm256_permute_ps(x, 0xB1);
}
#endif

static void rotate_halves(int64_t pairs, const float *cos, const float *sin, const float *x, float *y) {
  for (int64_t i = 0; i < pairs; i += LANES) {
    const int64_t n = pairs - i < LANES ? pairs - i : LANES;
    const infc_vec c = vec_load_lanes(cos + i, n, vec_zero()), s = vec_load_lanes(sin + i, n, vec_zero());
    const infc_vec a = vec_load_lanes(x + i, n, vec_zero()), b = vec_load_lanes(x + pairs + i, n, vec_zero());
    vec_store_lanes(y + i, n, vec_fma(a, c, -(b * s)));
    vec_store_lanes(y + pairs + i, n, vec_fma(b, c, a * s));
  }
}

static void rotate_neighbours(int64_t pairs, const float *cos, const float *sin, const float *x, float *y) {
  float signs[LANES];
  for (int i = 0; i < LANES; i++)
    signs[i] = i % 2 ? 1.0f : -1.0f;
  const infc_vec sign = vec_load(signs);
  for (int64_t i = 0; i < pairs; i += LANES / 2) {
    const int64_t n = pairs - i < LANES / 2 ? pairs - i : LANES / 2;
    const infc_vec v = vec_load_lanes(x + 2 * i, 2 * n, vec_zero());
    const infc_vec turned = vec_swap_pairs(v) * (load_twice(sin + i, n) * sign);
    vec_store_lanes(y + 2 * i, 2 * n, vec_fma(v, load_twice(cos + i, n), turned));
  }
}

static void rotate(const infc_cache_write *s, int64_t row, const float *x, float *y) {
  memmove(y + 2 * s->pairs, x + 2 * s->pairs, (size_t)(s->k_dim - 2 * s->pairs) * sizeof(float));
  if (s->step == 2)
    rotate_neighbours(s->pairs, s->cos + row * s->ldc, s->sin + row * s->lds, x, y);
  else if (s->pairs)
    rotate_halves(s->pairs, s->cos + row * s->ldc, s->sin + row * s->lds, x, y);
}

static float scale_of(const float *x, int64_t n, float limit) {
  infc_vec most = vec_zero(), spoilt = vec_zero();
  for (int64_t i = 0; i < n; i += LANES) {
    const infc_vec v = vec_load_lanes(x + i, n - i < LANES ? n - i : LANES, vec_zero());
    most = vec_max(vec_abs(v), most);
    spoilt = vec_fma(v, vec_zero(), spoilt);
  }
  return infc_cache_scale(vec_lane0(vec_highest(most)), vec_lane0(vec_sum(spoilt)), limit);
}

// Rows of one head that go to tokens of one block, one after the other.
typedef struct head_rows {
  const float *x;
  int64_t ldx;
  int64_t rows, token;
  float inverse[INFC_CACHE_TOKENS];
} head_rows;

INLINE void find_scales(const int kind, head_rows *h, int64_t dim, float *scales) {
  if (kind_size(kind) > 1)
    return;
  for (int64_t r = 0; r < h->rows; r++) {
    scales[h->token + r] = scale_of(h->x + r * h->ldx, dim, kind == KIND_I8 ? INFC_CACHE_I8_MAX : INFC_CACHE_F8_MAX);
    h->inverse[r] = 1.0f / scales[h->token + r];
  }
}

INLINE void store_one(const int kind, char *to, float x, float inverse) {
  if (kind == KIND_F32)
    memcpy(to, &x, 4);
  else if (kind == KIND_BF16)
    memcpy(to, &(uint16_t){infc_bf16_of(x)}, 2);
  else if (kind == KIND_I8)
    *to = (char)infc_bits_of(infc_cache_held(x, inverse, INFC_CACHE_I8_MAX) + INFC_ROUNDER);
  else
    *to = (char)infc_f8_of(infc_cache_held(x, inverse, INFC_CACHE_F8_MAX));
}

INLINE void store_keys(const int kind, const head_rows *h, int64_t dim, char *to) {
  int64_t r = 0;
  for (; r + LANES <= h->rows; r += LANES) {
    const infc_vec inverse = vec_load(h->inverse + r);
    for (int64_t d = 0; d < dim; d += LANES) {
      infc_vec x[LANES];
      const int64_t n = dim - d < LANES ? dim - d : LANES;
      load_transposed(x, h->x + r * h->ldx + d, h->ldx, LANES, n);
      for (int64_t i = 0; i < n; i++)
        store_elements(kind, to + ((d + i) * INFC_CACHE_TOKENS + h->token + r) * kind_size(kind), x[i], inverse);
    }
  }
  for (; r < h->rows; r++)
    for (int64_t d = 0; d < dim; d++)
      store_one(kind, to + (d * INFC_CACHE_TOKENS + h->token + r) * kind_size(kind), h->x[r * h->ldx + d],
                h->inverse[r]);
}

INLINE void store_values(const int kind, const head_rows *h, int64_t dim, char *to) {
  for (int64_t r = 0; r < h->rows; r++) {
    const infc_vec inverse = vec_set(h->inverse[r]);
    for (int64_t d = 0; d < infc_cache_padded(dim); d += LANES) {
      const int64_t panel = d / INFC_CACHE_PANEL * INFC_CACHE_TOKENS + h->token + r, left = dim - d;
      const infc_vec x =
          left <= 0 ? vec_zero() : vec_load_lanes(h->x + r * h->ldx + d, left < LANES ? left : LANES, vec_zero());
      store_elements(kind, to + (panel * INFC_CACHE_PANEL + d % INFC_CACHE_PANEL) * kind_size(kind), x, inverse);
    }
  }
}

// Rows from `row` on, `count` of them, whose places from `place` on lie in one block.
INLINE void write_rows(const int kind, const infc_cache_write *s, const infc_cache_layer *layer,
                       const infc_cache_sequence *sequence, int64_t row, int64_t count, int64_t place, float *scratch) {
  const int64_t ld = infc_cache_padded(s->k_dim);
  for (int64_t head = 0; head < s->kv_heads; head++) {
    char *to = (char *)infc_cache_head(layer, sequence, place, head);
    float *scales = (float *)(void *)(to + layer->scales_at);
    for (int64_t r = 0; r < count; r++)
      rotate(s, row + r, s->k + (row + r) * s->ldk + head * s->k_dim, scratch + r * ld);
    head_rows keys = {.x = scratch, .ldx = ld, .rows = count, .token = place % INFC_CACHE_TOKENS};
    find_scales(kind, &keys, s->k_dim, scales);
    store_keys(kind, &keys, s->k_dim, to);
    head_rows values = {.x = s->v + row * s->ldv + head * s->v_dim, .ldx = s->ldv, .rows = count, .token = keys.token};
    find_scales(kind, &values, s->v_dim, scales + INFC_CACHE_TOKENS);
    store_values(kind, &values, s->v_dim, to + layer->v_at);
  }
}

// The lines that a sequence's first keys and values of a call will go to, which are far apart.
static void fetch_first(const infc_cache_write *s, const infc_cache_layer *layer, const infc_cache_sequence *sequence,
                        const infc_range *range) {
  const infc_cache_rows rows = infc_cache_rows_of(sequence, range);
  if (rows.row0 == rows.row1)
    return;
  const int64_t place = rows.place;
  const int64_t size = kind_size(kind_of(layer->dtype)), token = place % INFC_CACHE_TOKENS;
  const int64_t panel = INFC_CACHE_TOKENS * INFC_CACHE_PANEL * size, padded = infc_cache_padded(s->v_dim);
  for (int64_t head = 0; head < s->kv_heads; head++) {
    const char *to = (const char *)infc_cache_head(layer, sequence, place, head);
    for (int64_t byte = token * size; byte < s->k_dim * INFC_CACHE_TOKENS * size; byte += INFC_CACHE_TOKENS * size)
      __builtin_prefetch(to + byte, 1);
    const char *values = to + layer->v_at + token * INFC_CACHE_PANEL * size;
    for (int64_t d = 0; d < padded; d += INFC_CACHE_PANEL, values += panel)
      for (int64_t byte = 0; byte < INFC_CACHE_PANEL * size; byte += 64)
        __builtin_prefetch(values + byte, 1);
  }
}

#define DEFINE_WRITE(name, kind)                                                                                       \
  static void write_##name(const infc_cache_write *s, const infc_cache_layer *layer,                                   \
                           const infc_cache_sequence *sequence, int64_t row, int64_t count, int64_t place,             \
                           float *scratch) {                                                                           \
    write_rows(kind, s, layer, sequence, row, count, place, scratch);                                                  \
  }
DEFINE_WRITE(f32, KIND_F32)
DEFINE_WRITE(bf16, KIND_BF16)
DEFINE_WRITE(i8, KIND_I8)
DEFINE_WRITE(f8, KIND_F8)

static infc_fault cache_write_run(const infc_task *task, const infc_range *range, infc_worker *worker) {
  static void (*const writes[KINDS])(const infc_cache_write *, const infc_cache_layer *, const infc_cache_sequence *,
                                     int64_t, int64_t, int64_t, float *) = {write_f32, write_bf16, write_i8, write_f8};
  const infc_cache_write s = infc_cache_write_view(task);
  const infc_cache *cache = worker->cache;
  const infc_cache_layer *layer =
      infc_cache_layer_of(cache, task->words[INFC_W_CACHE_WRITE_LAYER], s.kv_heads, s.k_dim, s.v_dim);
  if (!layer)
    return INFC_FAULT_INDEX;
  if (cache->sequence_count)
    fetch_first(&s, layer, &cache->sequences[0], range);
  for (int64_t row = range->row0; row < range->row1; row++)
    for (int64_t head = 0; head < s.heads; head++)
      rotate(&s, row, s.q + row * s.ldq + head * s.k_dim, s.y + row * s.ldy + head * s.k_dim);
  for (uint32_t i = 0; i < cache->sequence_count; i++) {
    const infc_cache_rows rows = infc_cache_rows_of(&cache->sequences[i], range);
    if (i + 1 < cache->sequence_count)
      fetch_first(&s, layer, &cache->sequences[i + 1], range);
    int64_t place = rows.place, count;
    for (int64_t row = rows.row0; row < rows.row1; row += count, place += count) {
      const int64_t room = INFC_CACHE_TOKENS - place % INFC_CACHE_TOKENS, left = rows.row1 - row;
      count = left < room ? left : room;
      writes[kind_of(layer->dtype)](&s, layer, &cache->sequences[i], row, count, place, worker->scratch);
    }
  }
  return INFC_FAULT_NONE;
}
