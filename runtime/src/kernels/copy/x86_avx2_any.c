#include "copy.h"

#include <immintrin.h>
#include <string.h>

// Rows of an 8 by 8 square become columns.
static inline __attribute__((always_inline)) void transpose_square(__m256i x[8]) {
  __m256i t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      x[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + j + 2]);
      x[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  // x[4g + c] now holds, in 128-bit lane l, rows 4g to 4g+3 of column 4l + c.
  for (int c = 0; c < 4; c++) {
    t[c] = _mm256_permute2x128_si256(x[c], x[4 + c], 0x20);
    t[4 + c] = _mm256_permute2x128_si256(x[c], x[4 + c], 0x31);
  }
  for (int i = 0; i < 8; i++)
    x[i] = t[i];
}

static void transpose(const char *x, int64_t stride_x, char *y, int64_t stride_y, int64_t rows, int64_t cols) {
  int64_t whole_rows = rows & ~7, whole_cols = cols & ~7;
  for (int64_t c = 0; c < whole_cols; c += 8)
    for (int64_t r = 0; r < whole_rows; r += 8) {
      __m256i square[8];
      for (int i = 0; i < 8; i++)
        square[i] = _mm256_loadu_si256((const __m256i *)(x + ((r + i) * stride_x + c) * 4));
      transpose_square(square);
      for (int i = 0; i < 8; i++)
        _mm256_storeu_si256((__m256i *)(y + ((c + i) * stride_y + r) * 4), square[i]);
    }
  for (int64_t c = 0; c < cols; c++) // what no square covers
    for (int64_t r = c < whole_cols ? whole_rows : 0; r < rows; r++)
      memcpy(y + (c * stride_y + r) * 4, x + (r * stride_x + c) * 4, 4);
}

infc_fault infc_copy_any__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_copy_run(task, range, transpose);
}
