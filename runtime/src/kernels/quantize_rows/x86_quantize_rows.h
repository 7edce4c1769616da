// quantize_rows on the vectors of ../gemm/x86_vector.h: two passes over a group, the second from L1. In MiniLM at 128
// rows on one Zen 4 core a row of 384 takes 62 ns and one of 1536 takes 230, 3 % of the whole: about what a norm takes,
// whose epilogue could save a part of the first pass alone.
// Groups of 32 to 128 take 16 to 18 cycles for 32 elements, as long rows do, and 35 to 55 one after the other.
#include "quantize_rows.h"

#include "../gemm/x86_vector.h"

#include <string.h>

enum { PARTS = 4, SHORT = 128 }; // accumulators; the elements of a short group

#if INFC_VEC_LANES == 16
typedef __m512i ints;
INLINE ints ints_set(int v) {
  return _mm512_set1_epi32(v);
}
INLINE ints ints_round(infc_vec v) {
  return _mm512_cvtps_epi32(v);
}
INLINE ints ints_add(ints a, ints b) {
  return _mm512_add_epi32(a, b);
}
INLINE ints ints_clip(ints v, ints low, ints high) {
  return _mm512_min_epi32(_mm512_max_epi32(v, low), high);
}
INLINE ints ints_magnitude(infc_vec v) {
  return _mm512_castps_si512(vec_abs(v));
}
INLINE ints ints_max(ints a, ints b) {
  return _mm512_max_epi32(a, b);
}
INLINE infc_vec ints_as_floats(ints v) { // their bits
  return _mm512_castsi512_ps(v);
}
INLINE __m256i ints_half(ints v, int i) {
  return i ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v);
}
#define INTS_UNPACK(part, bits, a, b) _mm512_unpack##part##_epi##bits(a, b)
INLINE infc_vec ints_to_floats(ints v) {
  return _mm512_cvtepi32_ps(v);
}
INLINE __m128i ints_bytes(ints v) {
  return _mm512_cvtepi32_epi8(v);
}
INLINE int64_t ints_sum(ints v) {
  return _mm512_reduce_add_epi32(v);
}
#else
typedef __m256i ints;
INLINE ints ints_set(int v) {
  return _mm256_set1_epi32(v);
}
INLINE ints ints_round(infc_vec v) {
  return _mm256_cvtps_epi32(v);
}
INLINE ints ints_add(ints a, ints b) {
  return _mm256_add_epi32(a, b);
}
INLINE ints ints_clip(ints v, ints low, ints high) {
  return _mm256_min_epi32(_mm256_max_epi32(v, low), high);
}
INLINE ints ints_magnitude(infc_vec v) {
  return _mm256_castps_si256(vec_abs(v));
}
INLINE ints ints_max(ints a, ints b) {
  return _mm256_max_epi32(a, b);
}
INLINE infc_vec ints_as_floats(ints v) { // their bits
  return _mm256_castsi256_ps(v);
}
#define INTS_UNPACK(part, bits, a, b) _mm256_unpack##part##_epi##bits(a, b)
INLINE infc_vec ints_to_floats(ints v) {
  return _mm256_cvtepi32_ps(v);
}
// The low bytes of the lanes, in the first half.
INLINE __m128i ints_bytes(ints v) {
  const __m256i low = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x0C080400));
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
INLINE int64_t ints_sum(ints v) {
  int lanes[LANES], sum = 0;
  memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < LANES; i++)
    sum += lanes[i];
  return sum;
}
#endif

INLINE void store_bytes(uint8_t *to, int64_t n, __m128i bytes) {
  if (n < LANES)
    memcpy(to, &bytes, (size_t)n);
  else if (LANES == 16)
    _mm_storeu_si128((void *)to, bytes);
  else
    _mm_storel_epi64((void *)to, bytes);
}

INLINE infc_grid grid_of(const float *x, int64_t n, uint32_t kind) {
  const infc_vec zero = vec_set(0.0f);
  infc_vec low[PARTS], high[PARTS], spoilt[PARTS];
  for (int i = 0; i < PARTS; i++)
    low[i] = high[i] = spoilt[i] = zero;
#define STEP(at, lanes, part)                                                                                          \
  do {                                                                                                                 \
    const infc_vec v = vec_load_lanes(x + (at), lanes, zero);                                                          \
    low[part] = vec_min(v, low[part]);                                                                                 \
    high[part] = vec_max(v, high[part]);                                                                               \
    spoilt[part] = vec_fma(v, zero, spoilt[part]);                                                                     \
  } while (0)
  INFC_VEC_EACH(n, STEP);
#undef STEP
  for (int i = 1; i < PARTS; i++) {
    low[0] = vec_min(low[i], low[0]);
    high[0] = vec_max(high[i], high[0]);
    spoilt[0] = spoilt[0] + spoilt[i];
  }
  INFC_VEC_FOLD(low[0], vec_min);
  INFC_VEC_FOLD(high[0], vec_max);
  INFC_VEC_FOLD(spoilt[0], vec_add);
  return infc_grid_of(vec_lane0(low[0]), vec_lane0(high[0]), vec_lane0(spoilt[0]), kind);
}

INLINE void group_run(const float *x, uint8_t *q, float *params, int64_t n, uint32_t kind) {
  const infc_grid grid = grid_of(x, n, kind);
  const infc_vec inverse = vec_set(grid.inverse), fill = vec_set(0.0f);
  const ints zero = ints_set(grid.zero), low = ints_set(infc_grid_low(kind)), high = ints_set(infc_grid_high(kind));
  ints sum[PARTS] = {ints_set(0), ints_set(0), ints_set(0), ints_set(0)};
#define STEP(at, lanes, part)                                                                                          \
  do {                                                                                                                 \
    const infc_vec v = vec_load_lanes(x + (at), lanes, fill);                                                          \
    const ints value = ints_clip(ints_add(ints_round(v * inverse), zero), low, high);                                  \
    if (kind == INFC_QUANTIZE_ROWS_SYMMETRIC)                                                                          \
      sum[part] = ints_add(sum[part], value);                                                                          \
    store_bytes(q + (at), lanes, ints_bytes(value));                                                                   \
  } while (0)
  INFC_VEC_EACH(n, STEP);
#undef STEP
  params[0] = grid.scale;
  params[1] = (float)grid.zero;
  if (kind == INFC_QUANTIZE_ROWS_SYMMETRIC)
    params[1] = (float)ints_sum(ints_add(ints_add(sum[0], sum[1]), ints_add(sum[2], sum[3])));
}

// ---- Short groups: as many at once as a vector has lanes, so that what is done once a group is done for all

// The lanes of many vectors combined, each vector's for itself: first those at the same place of its quarters, which
// quarters_put writes, then those of the four places.
typedef struct quarters {
  int32_t of[LANES][4] __attribute__((aligned(64))); // of vector j at (j % 4) * LANES / 4 + j / 4
} quarters;

#if INFC_VEC_LANES == 16
#define QUARTERS_PUT(to, j, v, name)                                                                                   \
  do {                                                                                                                 \
    const __m256i half_ = _mm256_##name##_epi32(ints_half(v, 0), ints_half(v, 1));                                     \
    QUARTERS_PUT_HALF(to, j, half_, name);                                                                             \
  } while (0)
#else
#define QUARTERS_PUT(to, j, v, name) QUARTERS_PUT_HALF(to, j, v, name)
#endif
#define QUARTERS_PUT_HALF(to, j, v, name)                                                                              \
  _mm_store_si128((void *)(to)->of[(j) % 4 * (LANES / 4) + (j) / 4],                                                   \
                  _mm_##name##_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)))

// Lane j of what is returned is vector j's.
#define DEFINE_QUARTERS_JOIN(name)                                                                                     \
  INLINE ints quarters_##name(const quarters *from) {                                                                  \
    ints x[4];                                                                                                         \
    memcpy(x, from->of, sizeof x);                                                                                     \
    const ints a = ints_##name(INTS_UNPACK(lo, 32, x[0], x[1]), INTS_UNPACK(hi, 32, x[0], x[1]));                      \
    const ints b = ints_##name(INTS_UNPACK(lo, 32, x[2], x[3]), INTS_UNPACK(hi, 32, x[2], x[3]));                      \
    return ints_##name(INTS_UNPACK(lo, 64, a, b), INTS_UNPACK(hi, 64, a, b));                                          \
  }
DEFINE_QUARTERS_JOIN(max)
DEFINE_QUARTERS_JOIN(add)

// `count` symmetric groups, which lie one after the other in q. As numbers without sign, infinities and NaN are above
// all others; infc_grid_of's arithmetic.
static void batch_run(const float *const x[], uint8_t *q, float *params, int64_t group, int count) {
  quarters tops = {0}, sums = {0};
  for (int j = 0; j < count; j++) {
    ints top = ints_magnitude(vec_load(x[j]));
    for (int64_t i = LANES; i < group; i += LANES)
      top = ints_max(top, ints_magnitude(vec_load(x[j] + i)));
    QUARTERS_PUT(&tops, j, top, max);
  }
  const infc_vec most = ints_as_floats(quarters_max(&tops)), exact = most / vec_set(127.0f) + most * vec_zero();
  const infc_vec scale = vec_if_positive(vec_set(0x1p-126f) - exact, vec_set(1.0f), exact);
  float scales[LANES], inverses[LANES], wholes[LANES];
  vec_store(scales, scale);
  vec_store(inverses, vec_max(vec_set(1.0f) / scale, vec_zero()));        // not of NaN
  const ints low = ints_set(infc_grid_low(INFC_QUANTIZE_ROWS_SYMMETRIC)); // of NaN; no other is beyond the grid
  for (int j = 0; j < count; j++) {
    const infc_vec inverse = vec_set(inverses[j]);
    ints sum = ints_set(0);
    for (int64_t i = 0; i < group; i += LANES, q += LANES) {
      const ints value = ints_max(ints_round(vec_load(x[j] + i) * inverse), low);
      sum = ints_add(sum, value);
      store_bytes(q, LANES, ints_bytes(value));
    }
    QUARTERS_PUT(&sums, j, sum, add);
  }
  vec_store(wholes, ints_to_floats(quarters_add(&sums)));
  for (int j = 0; j < count; j++)
    params[2 * j] = scales[j], params[2 * j + 1] = wholes[j];
}

static void batches_run(const infc_quantize_rows *s, int64_t row0, int64_t row1) {
  const float *x[LANES];
  int count = 0;
  uint8_t *q = s->q + row0 * s->k;
  float *params = s->params + 2 * row0 * s->groups;
  for (int64_t row = row0; row < row1; row++) {
    for (int64_t g = 0; g < s->groups; g++) {
      x[count++] = s->x + row * s->ldx + g * s->group;
      if (count < LANES && (g + 1 < s->groups || row + 1 < row1))
        continue;
      batch_run(x, q, params, s->group, count);
      q += count * s->group, params += 2 * count;
      count = 0;
    }
  }
}

infc_fault INFC_VEC_KERNEL(quantize_rows_f32)(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_quantize_rows s = infc_quantize_rows_view(task);
  if (s.kind == INFC_QUANTIZE_ROWS_SYMMETRIC && s.group % LANES == 0 && s.group <= SHORT) {
    batches_run(&s, range->row0, range->row1);
    return INFC_FAULT_NONE;
  }
  for (int64_t row = range->row0; row < range->row1; row++) {
    for (int64_t g = 0; g < s.groups; g++) {
      const float *x = s.x + row * s.ldx + g * s.group;
      uint8_t *q = s.q + row * s.k + g * s.group;
      float *params = s.params + 2 * (row * s.groups + g);
      if (s.kind == INFC_QUANTIZE_ROWS_ASYMMETRIC)
        group_run(x, q, params, s.group, INFC_QUANTIZE_ROWS_ASYMMETRIC);
      else if (s.kind == INFC_QUANTIZE_ROWS_SYMMETRIC)
        group_run(x, q, params, s.group, INFC_QUANTIZE_ROWS_SYMMETRIC);
      else
        group_run(x, q, params, s.group, INFC_QUANTIZE_ROWS_SHIFTED);
    }
  }
  return INFC_FAULT_NONE;
}
