#include "copy.h"

#include <immintrin.h>

// Rows of a 16 by 16 square become columns. Each round pairs rows that lie twice as far apart and exchanges the halves
// of runs half as long: 1, 2, 4, then 8 elements.
static inline __attribute__((always_inline)) void transpose_square(__m512i x[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  // x[4g + c] now holds, in 128-bit lane l, rows 4g to 4g+3 of column 4l + c.
  for (int c = 0; c < 4; c++) {
    t[c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xDD);
    t[8 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xDD);
  }
  for (int c = 0; c < 4; c++) {
    x[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    x[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    x[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xDD);
    x[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xDD);
  }
}

static inline __mmask16 first_lanes(int64_t n) {
  return n < 16 ? (__mmask16)((1u << n) - 1) : 0xFFFF;
}

static void transpose(const char *x, int64_t stride_x, char *y, int64_t stride_y, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; c += 16)
    for (int64_t r = 0; r < rows; r += 16) {
      int64_t height = rows - r < 16 ? rows - r : 16, width = cols - c < 16 ? cols - c : 16;
      __mmask16 read = first_lanes(width), write = first_lanes(height);
      __m512i square[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++)
        square[i] =
            i < height ? _mm512_maskz_loadu_epi32(read, x + ((r + i) * stride_x + c) * 4) : _mm512_setzero_si512();
      transpose_square(square);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++)
        if (i < width)
          _mm512_mask_storeu_epi32(y + ((c + i) * stride_y + r) * 4, write, square[i]);
    }
}

infc_fault infc_copy_any__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_copy_run(task, range, transpose);
}
