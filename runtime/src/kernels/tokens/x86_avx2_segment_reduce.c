#include "tokens.h"

#include <immintrin.h>

enum { LANES = 8, BLOCK = 8 }; // columns in registers at a time: BLOCK vectors

static inline __m256 add(__m256 a, __m256 b) {
  return _mm256_add_ps(a, b);
}

// NaN stays: max_ps gives its second argument where either is NaN, so only a new NaN is left to put in.
static inline __m256 max(__m256 a, __m256 b) {
  return _mm256_blendv_ps(_mm256_max_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
}

static inline __attribute__((always_inline)) void fold(const float *x, int64_t rows, int64_t n, float *y, int vectors,
                                                       __m256 (*step)(__m256, __m256)) {
  __m256 sum[BLOCK];
  for (int v = 0; v < vectors; v++)
    sum[v] = _mm256_loadu_ps(x + v * LANES);
  for (int64_t r = 1; r < rows; r++)
    for (int v = 0; v < vectors; v++)
      sum[v] = step(sum[v], _mm256_loadu_ps(x + r * n + v * LANES));
  for (int v = 0; v < vectors; v++)
    _mm256_storeu_ps(y + v * LANES, sum[v]);
}

static inline __attribute__((always_inline)) void fold_all(const float *x, int64_t rows, int64_t n, float *y,
                                                           __m256 (*step)(__m256, __m256)) {
  int64_t i = 0;
  for (; i + BLOCK * LANES <= n; i += BLOCK * LANES)
    fold(x + i, rows, n, y + i, BLOCK, step);
  for (; i + LANES <= n; i += LANES)
    fold(x + i, rows, n, y + i, 1, step);
  for (; i < n; i++) {
    __m256 sum = _mm256_set1_ps(x[i]);
    for (int64_t r = 1; r < rows; r++)
      sum = step(sum, _mm256_set1_ps(x[r * n + i]));
    y[i] = _mm256_cvtss_f32(sum);
  }
}

static void fold_sum(const float *x, int64_t rows, int64_t n, float *y) {
  fold_all(x, rows, n, y, add);
}
static void fold_max(const float *x, int64_t rows, int64_t n, float *y) {
  fold_all(x, rows, n, y, max);
}

infc_fault infc_segment_reduce_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  static const infc_segment_folds folds = {fold_sum, fold_max};
  return infc_segment_reduce_run(task, range, worker, &folds);
}
