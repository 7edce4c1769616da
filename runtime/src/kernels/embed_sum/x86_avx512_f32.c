#include "embed_sum.h"

#include <immintrin.h>

static inline __m512 load(infc_table_row row, int64_t i, __mmask16 lanes) {
  if (row.dtype == INFC_DTYPE_F32)
    return _mm512_maskz_loadu_ps(lanes, (const float *)(const void *)row.at + i);
  const __m256i halves = _mm256_maskz_loadu_epi16(lanes, row.at + 2 * i);
  if (row.dtype == INFC_DTYPE_F16)
    return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static inline void add(const infc_table_row *rows, uint32_t count, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 lanes = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF;
    __m512 sum = load(rows[0], i, lanes);
    for (uint32_t k = 1; k < count; k++)
      sum = _mm512_add_ps(sum, load(rows[k], i, lanes));
    _mm512_mask_storeu_ps(y + i, lanes, sum);
  }
}

infc_fault infc_embed_sum_f32__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_embed_sum_run(task, range, add);
}
