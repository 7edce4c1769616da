#include "embed_sum.h"

#include <immintrin.h>

static inline __m256 load(infc_table_row row, int64_t i) {
  if (row.dtype == INFC_DTYPE_F32)
    return _mm256_loadu_ps((const float *)(const void *)row.at + i);
  const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(row.at + 2 * i));
  if (row.dtype == INFC_DTYPE_F16)
    return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline void add(const infc_table_row *rows, uint32_t count, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 sum = load(rows[0], i);
    for (uint32_t k = 1; k < count; k++)
      sum = _mm256_add_ps(sum, load(rows[k], i));
    _mm256_storeu_ps(y + i, sum);
  }
  for (; i < n; i++) {
    float sum = infc_table_number(rows[0], i);
    for (uint32_t k = 1; k < count; k++)
      sum += infc_table_number(rows[k], i);
    y[i] = sum;
  }
}

infc_fault infc_embed_sum_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_embed_sum_run(task, range, add);
}
