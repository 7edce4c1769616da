// 16 floats a vector: primitives named vec_*, and the functions of functions.h on them.
#ifndef INFC_MATH_X86_AVX512_H
#define INFC_MATH_X86_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define INFC_VEC_LANES 16
#define INFC_VEC_NAME(function) infc_##function##_avx512
#define INFC_VEC_KERNEL(operator) infc_##operator##__avx512

typedef __m512 infc_vec;

static inline infc_vec vec_set(float v) {
  return _mm512_set1_ps(v);
}
static inline infc_vec vec_load(const float *p) {
  return _mm512_loadu_ps(p);
}
static inline void vec_store(float *p, infc_vec v) {
  _mm512_storeu_ps(p, v);
}
static inline __mmask16 vec_first(int64_t n) {
  return (__mmask16)_bzhi_u32(0xFFFF, (uint32_t)n);
}
// The first n lanes, 0 < n <= 16; loads fill the rest with `fill`.
static inline infc_vec vec_load_first(const float *p, int64_t n, infc_vec fill) {
  return _mm512_mask_loadu_ps(fill, vec_first(n), p);
}
static inline void vec_store_first(float *p, int64_t n, infc_vec v) {
  _mm512_mask_storeu_ps(p, vec_first(n), v);
}
static inline infc_vec vec_fma(infc_vec a, infc_vec b, infc_vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline infc_vec vec_fnma(infc_vec a, infc_vec b, infc_vec c) {
  return _mm512_fnmadd_ps(a, b, c);
}
static inline infc_vec vec_sqrt(infc_vec v) {
  return _mm512_sqrt_ps(v);
}
// b if either is NaN.
static inline infc_vec vec_min(infc_vec a, infc_vec b) {
  return _mm512_min_ps(a, b);
}
static inline infc_vec vec_max(infc_vec a, infc_vec b) {
  return _mm512_max_ps(a, b);
}
static inline infc_vec vec_abs(infc_vec v) {
  return _mm512_abs_ps(v);
}
// Magnitude of a, which is not negative, with the sign of b.
static inline infc_vec vec_with_sign(infc_vec a, infc_vec b) {
  return _mm512_or_ps(a, _mm512_and_ps(b, _mm512_set1_ps(-0.0f)));
}
// x has its sign bit set ? a : b
static inline infc_vec vec_if_negative(infc_vec x, infc_vec a, infc_vec b) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(x)), b, a);
}
// a * 2^n for integral n, rounded once.
static inline infc_vec vec_scale(infc_vec a, infc_vec n) {
  return _mm512_scalef_ps(a, n);
}
// table[lane's low four bits]
static inline infc_vec vec_lookup(const float table[16], __m512i index) {
  return _mm512_permutexvar_ps(index, _mm512_load_ps(table));
}
static inline __m512i vec_bits(infc_vec v) {
  return _mm512_castps_si512(v);
}
// x = m * 2^e with m in [0.75, 1.5) and integral e; m is NaN for NaN and negative x; 0 and infinity give e = -inf and
// +inf.
static inline infc_vec vec_split(infc_vec x, infc_vec *e) {
  infc_vec m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  *e = _mm512_getexp_ps(x) - _mm512_getexp_ps(m);
  return m;
}
static inline infc_vec vec_floor(infc_vec v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_FLOOR);
}
static inline infc_vec vec_ceil(infc_vec v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_CEIL);
}
static inline infc_vec vec_rint(infc_vec v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_RINT);
}
// v > 0 ? a : b
static inline infc_vec vec_if_positive(infc_vec v, infc_vec a, infc_vec b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GT_OQ), b, a);
}
// v is NaN ? a : b
static inline infc_vec vec_if_nan(infc_vec v, infc_vec a, infc_vec b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), b, a);
}
static inline bool vec_any_above(infc_vec v, infc_vec limit) {
  return _mm512_cmp_ps_mask(v, limit, _CMP_GT_OQ) != 0;
}
// The lane's bits shifted left.
static inline infc_vec vec_shift(infc_vec v, int count) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), (unsigned)count));
}
// All lanes combined; every lane of the result holds it.
#define INFC_VEC_FOLD(v, combine)                                                                                      \
  do {                                                                                                                 \
    v = combine(v, _mm512_shuffle_f32x4(v, v, 0x4E));                                                                  \
    v = combine(v, _mm512_shuffle_f32x4(v, v, 0xB1));                                                                  \
    v = combine(v, _mm512_permute_ps(v, 0x4E));                                                                        \
    v = combine(v, _mm512_permute_ps(v, 0xB1));                                                                        \
  } while (0)
static inline float vec_lane0(infc_vec v) {
  return _mm512_cvtss_f32(v);
}

#include "functions.h"

#endif // INFC_MATH_X86_AVX512_H
