#include "embed_sum.h"

#include <immintrin.h>

static inline void add(const float *const *rows, uint32_t count, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 lanes = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF;
    __m512 sum = _mm512_maskz_loadu_ps(lanes, rows[0] + i);
    for (uint32_t k = 1; k < count; k++)
      sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes, rows[k] + i));
    _mm512_mask_storeu_ps(y + i, lanes, sum);
  }
}

infc_fault infc_embed_sum_f32__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_embed_sum_run(task, range, add);
}
