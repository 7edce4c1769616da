#include "embed_sum.h"

#include <immintrin.h>

static inline void add(const float *const *rows, uint32_t count, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 sum = _mm256_loadu_ps(rows[0] + i);
    for (uint32_t k = 1; k < count; k++)
      sum = _mm256_add_ps(sum, _mm256_loadu_ps(rows[k] + i));
    _mm256_storeu_ps(y + i, sum);
  }
  for (; i < n; i++) {
    float sum = rows[0][i];
    for (uint32_t k = 1; k < count; k++)
      sum += rows[k][i];
    y[i] = sum;
  }
}

infc_fault infc_embed_sum_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_embed_sum_run(task, range, add);
}
