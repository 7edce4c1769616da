#include <immintrin.h>
#include <stdint.h>

#define KERNEL infc_cast_any__avx512
enum { STEP = 16 };

static inline void half_to_single(const uint16_t *x, float *y) {
  _mm512_storeu_ps(y, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x)));
}

static inline void single_to_half(const float *x, uint16_t *y) {
  _mm256_storeu_si256((__m256i *)y, _mm512_cvtps_ph(_mm512_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "x86_cast.h"
