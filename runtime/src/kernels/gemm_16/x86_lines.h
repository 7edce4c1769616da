// One line of weights (see gemm_16.h) multiplied into a tile's sums. Pairs of bf16 are one instruction where there is
// BF16; elsewhere both are widened to f32: rows beforehand, once for all columns, and of weights the even rows of a
// line and the odd ones in turn.
#ifndef INFC_X86_LINES_H
#define INFC_X86_LINES_H

#include "../gemm/x86_epilogue.h"
#include "gemm_16.h"

#include <string.h>

#if defined(__AVX512F__)
enum { SPARSE_TILE_ROWS = 8 }; // codes and kept numbers take registers
#define FOR_SPARSE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
typedef __m512i ivec;
#define IVEC(name) _mm512_##name
INLINE ivec ivec_load(const void *p) {
  return _mm512_loadu_si512(p);
}
INLINE infc_vec vec_of_bits(ivec v) {
  return _mm512_castsi512_ps(v);
}
INLINE ivec ivec_and(ivec a, ivec b) {
  return _mm512_and_si512(a, b);
}
INLINE infc_vec vec_load_f16(const void *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
#else
enum { SPARSE_TILE_ROWS = 4 };
#define FOR_SPARSE_ROWS(X) X(1) X(2) X(3) X(4)
typedef __m256i ivec;
#define IVEC(name) _mm256_##name
INLINE ivec ivec_load(const void *p) {
  return _mm256_loadu_si256(p);
}
INLINE infc_vec vec_of_bits(ivec v) {
  return _mm256_castsi256_ps(v);
}
INLINE ivec ivec_and(ivec a, ivec b) {
  return _mm256_and_si256(a, b);
}
INLINE infc_vec vec_load_f16(const void *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
#endif

// Of a pair in each lane: the low bf16 and the high one as f32.
INLINE infc_vec vec_low(ivec pairs) {
  return vec_of_bits(IVEC(slli_epi32)(pairs, 16));
}
INLINE infc_vec vec_high(ivec pairs) {
  return vec_of_bits(ivec_and(pairs, IVEC(set1_epi32)((int)0xFFFF0000)));
}

INLINE infc_vec pairs_dot(infc_vec sum, ivec a, ivec b) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
  return vec_fma(vec_high(a), vec_high(b), vec_fma(vec_low(a), vec_low(b), sum));
#endif
}

// `bytes` of a row, 2 or 4, and zeros, in every lane.
INLINE ivec row_pair(const uint16_t *a, size_t bytes) {
  int32_t pair = 0;
  memcpy(&pair, a, bytes);
  return IVEC(set1_epi32)(pair);
}

#if defined(__AVX512BF16__)
typedef uint16_t bf16_row; // what a tile reads of a row
INLINE void line_bf16(const int rows, infc_vec acc[][2], const bf16_row *a, int64_t lda, size_t bytes,
                      const uint8_t *b) {
  const ivec w[2] = {ivec_load(b), ivec_load(b + LANES * 4)};
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const ivec x = row_pair(a + r * lda, bytes);
    acc[r][0] = pairs_dot(acc[r][0], x, w[0]);
    acc[r][1] = pairs_dot(acc[r][1], x, w[1]);
  }
}
#else
typedef float bf16_row;
INLINE void line_bf16(const int rows, infc_vec acc[][2], const bf16_row *a, int64_t lda, size_t bytes,
                      const uint8_t *b) {
  (void)bytes; // widened rows end with whole pairs
  const infc_vec low[2] = {vec_low(ivec_load(b)), vec_low(ivec_load(b + LANES * 4))};
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const infc_vec x = vec_set(a[r * lda]);
    acc[r][0] = vec_fma(x, low[0], acc[r][0]);
    acc[r][1] = vec_fma(x, low[1], acc[r][1]);
  }
  __asm__("" : "+r"(b)); // loaded again: sums take all registers but four, and a mask would take one
  const infc_vec high[2] = {vec_low(IVEC(srli_epi32)(ivec_load(b), 16)),
                            vec_low(IVEC(srli_epi32)(ivec_load(b + LANES * 4), 16))};
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const infc_vec x = vec_set(a[r * lda + 1]);
    acc[r][0] = vec_fma(x, high[0], acc[r][0]);
    acc[r][1] = vec_fma(x, high[1], acc[r][1]);
  }
}
#endif

// k numbers of a row as f32, and a zero where k is odd.
INLINE void widen_row(const uint16_t *from, int64_t k, float *to) {
  for (int64_t i = 0; i < k; i++) {
    const uint32_t bits = (uint32_t)from[i] << 16;
    memcpy(to + i, &bits, sizeof bits);
  }
  if (k % 2)
    to[k] = 0.0f;
}

INLINE void line_f16(const int rows, infc_vec acc[][2], const float *a, int64_t lda, const uint8_t *b) {
  const infc_vec w[2] = {vec_load_f16(b), vec_load_f16(b + LANES * 2)};
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const infc_vec x = vec_set(a[r * lda]);
    acc[r][0] = vec_fma(x, w[0], acc[r][0]);
    acc[r][1] = vec_fma(x, w[1], acc[r][1]);
  }
}

// Bytes of the pair that a pattern takes out of eight numbers of a row, those of the first group and of the second;
// patterns that are none take zeros.
#define PAIR(i, j) 2 * (i), 2 * (i) + 1, 2 * (j), 2 * (j) + 1
#define PAIRS(g)                                                                                                       \
  PAIR(g, g + 1), PAIR(g, g + 2), PAIR(g, g + 3), PAIR(g + 1, g + 2), PAIR(g + 1, g + 3), PAIR(g + 2, g + 3), -1, -1,  \
      -1, -1, -1, -1, -1, -1
static const int8_t PATTERNS[2][32] __attribute__((aligned(64))) = {{PAIRS(0)}, {PAIRS(4)}};

// What codes choose of eight numbers: those of a group in the low bits, of which the highest says which of the two it
// is.
INLINE ivec choice_of(ivec codes, const int second) {
#if defined(__AVX512F__)
  (void)second;
  return _mm512_permutexvar_epi32(codes, ivec_load(PATTERNS));
#else
  return _mm256_permutevar8x32_epi32(ivec_load(PATTERNS[second]), codes);
#endif
}
INLINE ivec row_eight(const uint16_t *a) {
  const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)a);
#if defined(__AVX512F__)
  return _mm512_broadcast_i32x4(x);
#else
  return _mm256_broadcastsi128_si256(x);
#endif
}

// The kept numbers stay as they are, and meet those of the row that they belong to: half the products of a dense line.
INLINE void line_sparse(const int rows, infc_vec acc[][2], const uint16_t *a, int64_t lda, const uint8_t *b) {
  const ivec codes[2] = {ivec_load(b), ivec_load(b + LANES * 4)};
#pragma GCC unroll 4
  for (int group = 0; group < INFC_16_GROUPS; group += 2) {
    ivec w[2][2], choice[2][2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) {
        choice[h][v] = choice_of(IVEC(srli_epi32)(codes[v], 4 * (group + h)), h);
        w[h][v] = ivec_load(b + (1 + group + h) * INFC_PANEL * 4 + v * LANES * 4);
      }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const ivec x = row_eight(a + r * lda + group * 4);
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++)
          acc[r][v] = pairs_dot(acc[r][v], IVEC(shuffle_epi8)(x, choice[h][v]), w[h][v]);
    }
  }
}

#if defined(__AVX512VBMI__)
// Low and high bytes of infc_bf16_of_f8, by magnitude.
#define LOW(i) ((i) << 4 & 0xFF)
#define HIGH(i) (((127 - 7) >> 1) + ((i) >> 4))
#define EIGHT(X, i) X(i), X(i + 1), X(i + 2), X(i + 3), X(i + 4), X(i + 5), X(i + 6), X(i + 7)
#define FROM_EIGHT(X)                                                                                                  \
  EIGHT(X, 8), EIGHT(X, 16), EIGHT(X, 24), EIGHT(X, 32), EIGHT(X, 40), EIGHT(X, 48), EIGHT(X, 56), EIGHT(X, 64),       \
      EIGHT(X, 72), EIGHT(X, 80), EIGHT(X, 88), EIGHT(X, 96), EIGHT(X, 104), EIGHT(X, 112), EIGHT(X, 120)
static const uint8_t F8_LOW[128] = {0, 0, 0x80, 0xC0, 0, 0x20, 0x40, 0x60, FROM_EIGHT(LOW)};
static const uint8_t F8_HIGH[128] = {0, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C, FROM_EIGHT(HIGH)};
#endif

// n bytes, a multiple of 64, of f8e4m3 to bf16.
static void widen_f8(const uint8_t *from, int64_t n, uint16_t *to) {
#if defined(__AVX512VBMI__)
  const ivec low0 = ivec_load(F8_LOW), low1 = ivec_load(F8_LOW + 64);
  const ivec high0 = ivec_load(F8_HIGH), high1 = ivec_load(F8_HIGH + 64);
  const ivec first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
             second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const ivec sign = _mm512_set1_epi8((char)0x80);
  for (int64_t i = 0; i < n; i += 64) {
    const ivec x = ivec_load(from + i), l = _mm512_permutex2var_epi8(low0, x, low1);
    const ivec h =
        _mm512_ternarylogic_epi64(_mm512_permutex2var_epi8(high0, x, high1), x, sign, 0xF8); // h | (x & sign)
    const ivec even = _mm512_unpacklo_epi8(l, h), odd = _mm512_unpackhi_epi8(l, h);
    _mm512_storeu_si512(to + i, _mm512_permutex2var_epi64(even, first, odd));
    _mm512_storeu_si512(to + i + 32, _mm512_permutex2var_epi64(even, second, odd));
  }
#else // infc_bf16_of_f8 of 16 at once
  const __m256i small = _mm256_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60, 0, 0x3B00, 0x3B80,
                                          0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60);
  for (int64_t i = 0; i < n; i += 16) {
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(from + i)));
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7F));
    const __m256i large = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi16((127 - 7) << 7));
    const __m256i twice = _mm256_slli_epi16(magnitude, 1); // where a number's two bytes are in the table
    const __m256i at = _mm256_add_epi16(_mm256_or_si256(twice, _mm256_slli_epi16(twice, 8)), _mm256_set1_epi16(0x100));
    const __m256i is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
    const __m256i number = _mm256_blendv_epi8(large, _mm256_shuffle_epi8(small, at), is_small);
    const __m256i sign = _mm256_slli_epi16(_mm256_srli_epi16(x, 7), 15);
    _mm256_storeu_si256((__m256i *)(void *)(to + i), _mm256_or_si256(number, sign));
  }
#endif
}

#endif // INFC_X86_LINES_H
