// requantise.h in vectors.
#ifndef INFC_CONV_I8_X86_REQUANTISE_H
#define INFC_CONV_I8_X86_REQUANTISE_H

#include "../gemm/x86_epilogue.h"
#include "../gemm_i8/x86_dot.h"
#include "requantise.h"

// The first n <= LANES bytes as floats, zeros after them.
INLINE infc_vec floats_of_bytes(const uint8_t *from, int64_t n) {
#if defined(__AVX512F__)
  const __m128i bytes =
      n == LANES ? _mm_loadu_si128((const void *)from) : _mm_maskz_loadu_epi8((__mmask16)((1u << n) - 1), from);
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
#else
  uint64_t bytes = 0;
  memcpy(&bytes, from, n == LANES ? LANES : (size_t)n);
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)bytes)));
#endif
}

INLINE void store_bytes(uint8_t *to, int64_t n, ivec v) {
  const __m128i bytes = ivec_bytes(v);
#if defined(__AVX512F__)
  if (n == LANES)
    _mm_storeu_si128((void *)to, bytes);
  else
    _mm_mask_storeu_epi8(to, (__mmask16)((1u << n) - 1), bytes);
#else
  memcpy(to, &bytes, n == LANES ? LANES : (size_t)n);
#endif
}

INLINE infc_vec vec_clamp(infc_vec v, infc_vec low, infc_vec high) {
  return vec_min(high, vec_max(low, v)); // NaN stays, and becomes the least integer, whose lowest byte is 0
}

static __attribute__((noinline)) infc_vec requantise_activate(const infc_requantise *r, infc_vec v) {
  v = vec_activate(v, r->activation);
  return r->quantised ? vec_fma(v, vec_set(r->step), vec_set(r->shift)) : v;
}

#endif // INFC_CONV_I8_X86_REQUANTISE_H
