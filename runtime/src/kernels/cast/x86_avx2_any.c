#include <immintrin.h>
#include <stdint.h>

#define KERNEL infc_cast_any__avx2
enum { STEP = 8 };

static inline void half_to_single(const uint16_t *x, float *y) {
  _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)));
}

static inline void single_to_half(const float *x, uint16_t *y) {
  _mm_storeu_si128((__m128i *)y, _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "x86_cast.h"
