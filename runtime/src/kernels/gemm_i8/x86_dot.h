// Dot products of four bytes a lane, u8 activations against i8 weights, added to i32: exact by each of three ways.
//
// VNNI has one instruction. Without it vpmaddubsw will not do, whose sums of two products saturate at 16 bits: both
// factors are widened to 16 bits, even bytes and odd bytes apart, for two vpmaddwd.
#ifndef INFC_X86_DOT_H
#define INFC_X86_DOT_H

#include "../gemm/x86_vector.h"

#include <string.h>

#if defined(__AVX512F__)
typedef __m512i ivec;
#define IVEC(name) _mm512_##name
INLINE ivec ivec_load(const void *p) {
  return _mm512_loadu_si512(p);
}
INLINE void ivec_store(void *p, ivec v) {
  _mm512_storeu_si512(p, v);
}
INLINE ivec ivec_zero(void) {
  return _mm512_setzero_si512();
}
INLINE ivec ivec_and(ivec a, ivec b) {
  return _mm512_and_si512(a, b);
}
INLINE ivec ivec_of_bits(infc_vec v) {
  return _mm512_castps_si512(v);
}
// The lowest byte of each lane.
INLINE __m128i ivec_bytes(ivec v) {
  return _mm512_cvtepi32_epi8(v);
}
#else
typedef __m256i ivec;
#define IVEC(name) _mm256_##name
INLINE ivec ivec_load(const void *p) {
  return _mm256_loadu_si256(p);
}
INLINE void ivec_store(void *p, ivec v) {
  _mm256_storeu_si256(p, v);
}
INLINE ivec ivec_zero(void) {
  return _mm256_setzero_si256();
}
INLINE ivec ivec_and(ivec a, ivec b) {
  return _mm256_and_si256(a, b);
}
INLINE ivec ivec_of_bits(infc_vec v) {
  return _mm256_castps_si256(v);
}
INLINE __m128i ivec_bytes(ivec v) {
  const __m256i low = _mm256_shuffle_epi8(v, _mm256_set1_epi32(0x0C080400));
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

#if defined(__AVX512F__)
enum { DOT_ROWS = 12 }; // of a tile, as the registers allow: two accumulators a row, two vectors of weights, one of a
#define FOR_DOT_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
enum { DOT_ROWS = 6 };
#define FOR_DOT_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
typedef struct factor {
  ivec bytes;
} factor;
INLINE factor factor_signed(ivec v) {
  return (factor){v};
}
INLINE factor factor_unsigned(ivec v) {
  return (factor){v};
}
INLINE ivec dot(ivec sum, factor a, factor b) {
#if defined(__AVX512F__)
  return _mm512_dpbusd_epi32(sum, a.bytes, b.bytes);
#else
  return _mm256_dpbusd_avx_epi32(sum, a.bytes, b.bytes);
#endif
}

#else

#if defined(__AVX512F__)
enum { DOT_ROWS = 10 };
#define FOR_DOT_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10)
#else
enum { DOT_ROWS = 4 };
#define FOR_DOT_ROWS(X) X(1) X(2) X(3) X(4)
#endif
typedef struct factor {
  ivec even, odd;
} factor;
INLINE factor factor_signed(ivec v) {
  return (factor){IVEC(srai_epi16)(IVEC(slli_epi16)(v, 8), 8), IVEC(srai_epi16)(v, 8)};
}
INLINE factor factor_unsigned(ivec v) {
  return (factor){ivec_and(v, IVEC(set1_epi16)(0xFF)), IVEC(srli_epi16)(v, 8)};
}
INLINE ivec dot(ivec sum, factor a, factor b) {
  return IVEC(add_epi32)(sum, IVEC(add_epi32)(IVEC(madd_epi16)(a.even, b.even), IVEC(madd_epi16)(a.odd, b.odd)));
}

#endif

// Four bytes of a row, or the first n of them and zeros, in every lane.
INLINE factor row_factor(const uint8_t *a, size_t n) {
  int32_t bytes = 0;
  memcpy(&bytes, a, n);
  return factor_unsigned(IVEC(set1_epi32)(bytes));
}

#endif // INFC_X86_DOT_H
