// Lines of a cache's panels as the products take them: each is DEPTH of a panel's rows, of 32 numbers. Elements of 8
// and 16 bits are widened in registers, to floats or, where there is BF16, to pairs of bf16, whose products are one
// instruction.
#ifndef INFC_X86_CACHE_LINES_H
#define INFC_X86_CACHE_LINES_H

#include "x86_elements.h"

enum { WIDE_LINE = INFC_CACHE_PANEL * 4 }; // bytes

#if defined(__AVX512BF16__)

enum { DEPTH = 2, KIND_WIDE = KIND_F32 }; // a wide line is 32 pairs of bf16
typedef uint16_t element;                 // of what lines are multiplied by
#undef F8_FACTOR
#define F8_FACTOR 1.0f
typedef __m512i line_vec;

// `half`, of these and of lines: only the first of a pair is there.
INLINE line_vec line_set(const element *a, bool half) {
  uint32_t pair;
  memcpy(&pair, a, sizeof pair);
  return _mm512_set1_epi32((int)(half ? pair & 0xFFFF : pair));
}
INLINE infc_vec line_fma(line_vec a, line_vec b, infc_vec sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
INLINE void line_store(char *to, line_vec x) {
  _mm512_storeu_si512(to, x);
}
INLINE void store_element_vec(element *to, infc_vec x) {
  store_elements(KIND_BF16, (char *)to, x, x);
}

#define EIGHT(X, i) X(i), X(i + 1), X(i + 2), X(i + 3), X(i + 4), X(i + 5), X(i + 6), X(i + 7)
#define SIXTEEN(X, i) EIGHT(X, i), EIGHT(X, i + 8)
#define THIRTY_TWO(X, i) SIXTEEN(X, i), SIXTEEN(X, i + 16)
#define ALL(X) THIRTY_TWO(X, 0), THIRTY_TWO(X, 32), THIRTY_TWO(X, 64), THIRTY_TWO(X, 96)

// The bf16 that an i8's or an f8e4m3fn's low seven bits stand for.
#define LOG2(m) ((m) >= 64 ? 6 : (m) >= 32 ? 5 : (m) >= 16 ? 4 : (m) >= 8 ? 3 : (m) >= 4 ? 2 : (m) >= 2 ? 1 : 0)
#define BF16_OF(m, power) ((m) == 0 ? 0 : ((127 + (power) + LOG2(m)) << 7 | ((m) << 7 >> LOG2(m) & 0x7F)))
#define BF16_OF_I8(m) BF16_OF(m, 0)
#define BF16_OF_F8(m) ((m) < 8 ? BF16_OF(m, -9) : ((m) << 4) + (120 << 7))
#define LOW_I8(m) BF16_OF_I8(m) & 0xFF
#define HIGH_I8(m) BF16_OF_I8(m) >> 8
#define LOW_F8(m) BF16_OF_F8(m) & 0xFF
#define HIGH_F8(m) BF16_OF_F8(m) >> 8
typedef uint8_t byte_table[128];
static const byte_table I8_TABLES[2] = {{ALL(LOW_I8)}, {ALL(HIGH_I8)}}, F8_TABLES[2] = {{ALL(LOW_F8)}, {ALL(HIGH_F8)}};

// Where a pair's bytes lie among 64 low ones and 64 high ones of two rows, and its words among those of two rows.
#define PAIR_BYTES(t) t, (t) + 64, (t) + 32, (t) + 96
#define PAIR_WORDS(t) t, (t) + 32
static const uint8_t PAIRS_OF_BYTES[2][64] = {{SIXTEEN(PAIR_BYTES, 0)}, {SIXTEEN(PAIR_BYTES, 16)}};
static const uint16_t PAIRS_OF_WORDS[2][32] = {{SIXTEEN(PAIR_WORDS, 0)}, {SIXTEEN(PAIR_WORDS, 16)}};

INLINE __m512i table_at(const byte_table table, __m512i x) {
  return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), x, _mm512_loadu_si512(table + 64));
}

INLINE void load_line(const int kind, const char *from, bool half, line_vec to[2]) {
#pragma GCC unroll 2
  for (int v = 0; v < 2; v++)
    if (kind == KIND_WIDE) {
      to[v] = _mm512_loadu_si512(from + 64 * v);
    } else if (kind == KIND_BF16) {
      to[v] = _mm512_permutex2var_epi16(_mm512_loadu_si512(from), _mm512_loadu_si512(PAIRS_OF_WORDS[v]),
                                        _mm512_loadu_si512(from + 64));
    } else {
      const __m512i x = _mm512_loadu_si512(from), magnitude = kind == KIND_I8 ? _mm512_abs_epi8(x) : x;
      const byte_table *tables = kind == KIND_I8 ? I8_TABLES : F8_TABLES;
      const __m512i low = table_at(tables[0], magnitude), high = table_at(tables[1], magnitude);
      const __m512i sign = _mm512_and_si512(x, _mm512_set1_epi8((char)0x80));
      to[v] = _mm512_permutex2var_epi8(low, _mm512_loadu_si512(PAIRS_OF_BYTES[v]), _mm512_or_si512(high, sign));
    }
  if (half)
    for (int v = 0; v < 2; v++)
      to[v] = _mm512_and_si512(to[v], _mm512_set1_epi32(0xFFFF));
}

#else

enum { DEPTH = 1, KIND_WIDE = KIND_F32 };
typedef float element;
typedef infc_vec line_vec;

INLINE line_vec line_set(const element *a, bool half) {
  (void)half;
  return vec_set(*a);
}
INLINE infc_vec line_fma(line_vec a, line_vec b, infc_vec sum) {
  return vec_fma(a, b, sum);
}
INLINE void line_store(char *to, line_vec x) {
  vec_store((float *)(void *)to, x);
}
INLINE void store_element_vec(element *to, infc_vec x) {
  vec_store(to, x);
}
INLINE void load_line(const int kind, const char *from, bool half, line_vec to[2]) {
  (void)half;
  to[0] = load_elements(kind, from);
  to[1] = load_elements(kind, from + LANES * kind_size(kind));
}

#endif

INLINE int64_t lines_of(int64_t rows) {
  return (rows + DEPTH - 1) / DEPTH;
}
INLINE int64_t line_size(const int kind) {
  return kind == KIND_WIDE ? WIDE_LINE : INFC_CACHE_PANEL * DEPTH * kind_size(kind);
}

// `rows` rows of 32 elements, as wide lines.
INLINE void widen_rows(const int kind, const char *from, int64_t rows, char *to) {
  for (int64_t i = 0; i < lines_of(rows); i++, from += line_size(kind), to += WIDE_LINE)
    for (int64_t col = 0; col < INFC_CACHE_PANEL; col += 2 * LANES) {
      line_vec x[2];
      load_line(kind, from + col * kind_size(kind), false, x);
      line_store(to + col * 4, x[0]);
      line_store(to + (col + LANES) * 4, x[1]);
    }
}

static void widen(int kind, const char *from, int64_t rows, char *to) {
  if (kind == KIND_BF16)
    widen_rows(KIND_BF16, from, rows, to);
  else if (kind == KIND_I8)
    widen_rows(KIND_I8, from, rows, to);
  else
    widen_rows(KIND_F8, from, rows, to);
}

#endif // INFC_X86_CACHE_LINES_H
