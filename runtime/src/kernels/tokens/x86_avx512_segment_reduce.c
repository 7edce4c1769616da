#include "tokens.h"

#include <immintrin.h>

enum { LANES = 16, BLOCK = 8 }; // columns in registers at a time: BLOCK vectors

static inline __m512 add(__m512 a, __m512 b) {
  return _mm512_add_ps(a, b);
}

// NaN stays: max_ps gives its second argument where either is NaN, so only a new NaN is left to put in.
static inline __m512 max(__m512 a, __m512 b) {
  return _mm512_mask_mov_ps(_mm512_max_ps(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b);
}

static inline __attribute__((always_inline)) void fold(const float *x, int64_t rows, int64_t n, float *y, int vectors,
                                                       __mmask16 lanes, __m512 (*step)(__m512, __m512)) {
  __m512 sum[BLOCK];
  for (int v = 0; v < vectors; v++)
    sum[v] = _mm512_maskz_loadu_ps(lanes, x + v * LANES);
  for (int64_t r = 1; r < rows; r++)
    for (int v = 0; v < vectors; v++)
      sum[v] = step(sum[v], _mm512_maskz_loadu_ps(lanes, x + r * n + v * LANES));
  for (int v = 0; v < vectors; v++)
    _mm512_mask_storeu_ps(y + v * LANES, lanes, sum[v]);
}

static inline __attribute__((always_inline)) void fold_all(const float *x, int64_t rows, int64_t n, float *y,
                                                           __m512 (*step)(__m512, __m512)) {
  int64_t i = 0;
  for (; i + BLOCK * LANES <= n; i += BLOCK * LANES)
    fold(x + i, rows, n, y + i, BLOCK, 0xFFFF, step);
  for (; i < n; i += LANES)
    fold(x + i, rows, n, y + i, 1, n - i < LANES ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF, step);
}

static void fold_sum(const float *x, int64_t rows, int64_t n, float *y) {
  fold_all(x, rows, n, y, add);
}
static void fold_max(const float *x, int64_t rows, int64_t n, float *y) {
  fold_all(x, rows, n, y, max);
}

infc_fault infc_segment_reduce_f32__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  static const infc_segment_folds folds = {fold_sum, fold_max};
  return infc_segment_reduce_run(task, range, worker, &folds);
}
