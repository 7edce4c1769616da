// The vectors the x86 kernels are written in: eight floats with AVX2, sixteen with AVX-512, by what the file is
// compiled for.
#ifndef INFC_X86_VECTOR_H
#define INFC_X86_VECTOR_H

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

#include "../math/x86_avx512.h"

enum { LANES = 16 };

// Rows become columns.
INLINE void vec_transpose(infc_vec x[LANES]) {
  __m512 t[16], u[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; j++) {
      const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + 2 + j]);
      u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; i++) {
    const __m512 a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88), b = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88);
    const __m512 c = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xdd), d = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xdd);
    x[i] = _mm512_shuffle_f32x4(a, b, 0x88);
    x[4 + i] = _mm512_shuffle_f32x4(c, d, 0x88);
    x[8 + i] = _mm512_shuffle_f32x4(a, b, 0xdd);
    x[12 + i] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

#else

#include "../math/x86_avx2.h"

enum { LANES = 8 };

INLINE void vec_transpose(infc_vec x[LANES]) {
  __m256 t[8], u[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; j++) {
      u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
      u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; i++) {
    x[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
    x[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
  }
}

#endif

INLINE infc_vec vec_zero(void) {
  return vec_set(0.0f);
}
INLINE infc_vec vec_activate(infc_vec x, uint32_t function) {
  return INFC_VEC_NAME(activate)(x, function);
}

// to[c][r] = from[r * stride + c] for r < rows <= LANES, c < cols <= LANES; zero in rows that do not exist.
INLINE void load_transposed(infc_vec to[LANES], const float *from, int64_t stride, int64_t rows, int64_t cols) {
  for (int r = 0; r < LANES; r++)
    to[r] = r >= rows       ? vec_zero()
            : cols == LANES ? vec_load(from + r * stride)
                            : vec_load_first(from + r * stride, cols, vec_zero());
  vec_transpose(to);
}

#endif // INFC_X86_VECTOR_H
