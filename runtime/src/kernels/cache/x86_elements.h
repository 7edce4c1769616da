// Vectors of floats from a cache's elements and back.
#ifndef INFC_X86_CACHE_ELEMENTS_H
#define INFC_X86_CACHE_ELEMENTS_H

#include "../gemm/x86_vector.h"
#include "elements.h"

// What a kernel is compiled for.
enum { KIND_F32, KIND_BF16, KIND_I8, KIND_F8, KINDS };

INLINE int kind_of(uint32_t dtype) {
  return dtype == INFC_DTYPE_F32    ? KIND_F32
         : dtype == INFC_DTYPE_BF16 ? KIND_BF16
         : dtype == INFC_DTYPE_I8   ? KIND_I8
                                    : KIND_F8;
}
INLINE int64_t kind_size(const int kind) {
  return kind == KIND_F32 ? 4 : kind == KIND_BF16 ? 2 : 1;
}

// What load_f8 leaves out: an f8e4m3fn's bits make an f16 of 1/256 of its value. NaN, which no cache holds, would be
// 480.
#define F8_FACTOR 256.0f

#if defined(__AVX512F__)
INLINE infc_vec load_bf16(const void *from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)), 16));
}
INLINE infc_vec load_i8(const void *from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
}
INLINE infc_vec load_f8(const void *from) {
  const __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(from)), 7);
  return _mm512_cvtph_ps(_mm256_and_si256(x, _mm256_set1_epi16((short)0xBF80)));
}
#else
INLINE infc_vec load_bf16(const void *from) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), 16));
}
INLINE infc_vec load_i8(const void *from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from)));
}
INLINE infc_vec load_f8(const void *from) {
  const __m128i x = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(from)), 7);
  return _mm256_cvtph_ps(_mm_and_si128(x, _mm_set1_epi16((short)0xBF80)));
}
#endif

// LANES elements; those of f8 are 1 / F8_FACTOR of their value.
INLINE infc_vec load_elements(const int kind, const char *from) {
  switch (kind) {
  case KIND_F32:
    return vec_load((const float *)(const void *)from);
  case KIND_BF16:
    return load_bf16(from);
  case KIND_I8:
    return load_i8(from);
  default:
    return load_f8(from);
  }
}

typedef uint32_t lane_bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t lane_words __attribute__((vector_size(2 * LANES)));
typedef uint8_t lane_bytes __attribute__((vector_size(LANES)));

INLINE void store_words(char *to, lane_bits x) {
  const lane_words words = __builtin_convertvector(x, lane_words);
  memcpy(to, &words, sizeof words);
}
INLINE void store_bytes(char *to, lane_bits x) {
  const lane_bytes bytes = __builtin_convertvector(x, lane_bytes);
  memcpy(to, &bytes, sizeof bytes);
}

INLINE infc_vec vec_held(infc_vec x, infc_vec inverse, float limit) {
  return vec_max(vec_min(x * inverse, vec_set(limit)), vec_set(-limit));
}

// LANES floats as elements: infc_bf16_of, infc_f8_of.
INLINE void store_elements(const int kind, char *to, infc_vec x, infc_vec inverse) {
  if (kind == KIND_F32) {
    vec_store((float *)(void *)to, x);
  } else if (kind == KIND_BF16) {
    const lane_bits bits = (lane_bits)x, nan = (lane_bits)((bits & 0x7FFFFFFF) > 0x7F800000);
    const lane_bits rounded = bits + 0x7FFF + (bits >> 16 & 1);
    store_words(to, ((nan & (bits | 0x400000)) | (~nan & rounded)) >> 16);
  } else if (kind == KIND_I8) {
    const infc_vec held = vec_held(x, inverse, INFC_CACHE_I8_MAX) + vec_set(INFC_ROUNDER);
    store_bytes(to, (lane_bits)held & 0xFF);
  } else {
    const lane_bits bits = (lane_bits)vec_held(x, inverse, INFC_CACHE_F8_MAX), magnitude = bits & 0x7FFFFFFF;
    const lane_bits normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
    const lane_bits small = (lane_bits)((infc_vec)magnitude + vec_set(0x1p14f)) & 0xF;
    const lane_bits is_small = (lane_bits)(magnitude < 0x3C800000);
    store_bytes(to, (bits >> 24 & 0x80) | (is_small & small) | (~is_small & normal));
  }
}

#endif // INFC_X86_CACHE_ELEMENTS_H
