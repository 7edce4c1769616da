// 8 floats a vector: primitives named vec_*, and the functions of functions.h on them.
#ifndef INFC_MATH_X86_AVX2_H
#define INFC_MATH_X86_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define INFC_VEC_LANES 8
#define INFC_VEC_NAME(function) infc_##function##_avx2
#define INFC_VEC_KERNEL(operator) infc_##operator##__avx2

typedef __m256 infc_vec;

static inline infc_vec vec_set(float v) {
  return _mm256_set1_ps(v);
}
static inline infc_vec vec_load(const float *p) {
  return _mm256_loadu_ps(p);
}
static inline void vec_store(float *p, infc_vec v) {
  _mm256_storeu_ps(p, v);
}
static inline __m256i vec_first(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n lanes, 0 < n <= 8; loads fill the rest with `fill`.
static inline infc_vec vec_load_first(const float *p, int64_t n, infc_vec fill) {
  __m256i mask = vec_first(n);
  return _mm256_blendv_ps(fill, _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
static inline void vec_store_first(float *p, int64_t n, infc_vec v) {
  _mm256_maskstore_ps(p, vec_first(n), v);
}
static inline infc_vec vec_fma(infc_vec a, infc_vec b, infc_vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
static inline infc_vec vec_fnma(infc_vec a, infc_vec b, infc_vec c) {
  return _mm256_fnmadd_ps(a, b, c);
}
static inline infc_vec vec_sqrt(infc_vec v) {
  return _mm256_sqrt_ps(v);
}
// b if either is NaN.
static inline infc_vec vec_min(infc_vec a, infc_vec b) {
  return _mm256_min_ps(a, b);
}
static inline infc_vec vec_max(infc_vec a, infc_vec b) {
  return _mm256_max_ps(a, b);
}
static inline infc_vec vec_abs(infc_vec v) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}
// Magnitude of a, which is not negative, with the sign of b.
static inline infc_vec vec_with_sign(infc_vec a, infc_vec b) {
  return _mm256_or_ps(a, _mm256_and_ps(b, _mm256_set1_ps(-0.0f)));
}
// x has its sign bit set ? a : b
static inline infc_vec vec_if_negative(infc_vec x, infc_vec a, infc_vec b) {
  return _mm256_blendv_ps(b, a, x);
}
static inline infc_vec vec_power_of_two(__m256i k) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23));
}
// a * 2^n for integral |n| <= 252, rounded once if 2^(n/2) * a is normal. Two factors, as 2^n itself need not be a
// float.
static inline infc_vec vec_scale(infc_vec a, infc_vec n) {
  __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1);
  return a * vec_power_of_two(half) * vec_power_of_two(_mm256_sub_epi32(k, half));
}
// table[lane's low four bits]
static inline infc_vec vec_lookup(const float table[16], __m256i index) {
  infc_vec low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), index);
  infc_vec high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
static inline __m256i vec_bits(infc_vec v) {
  return _mm256_castps_si256(v);
}
// x = m * 2^e with m in [0.75, 1.5) and integral e; m is NaN for NaN and negative x; 0 and infinity give e = -inf and
// +inf.
static inline infc_vec vec_split(infc_vec x, infc_vec *e) {
  const infc_vec zero = vec_set(0.0f), inf = vec_set(__builtin_inff());
  infc_vec tiny = _mm256_cmp_ps(x, vec_set(0x1p-126f), _CMP_LT_OQ);
  infc_vec normal = _mm256_blendv_ps(x, x * vec_set(0x1p23f), tiny);
  const __m256i lowest = _mm256_castps_si256(vec_set(0.75f));
  __m256i k = _mm256_srai_epi32(_mm256_sub_epi32(vec_bits(normal), lowest), 23);
  infc_vec m = _mm256_castsi256_ps(_mm256_sub_epi32(vec_bits(normal), _mm256_slli_epi32(k, 23)));
  infc_vec exponent = _mm256_cvtepi32_ps(k) - _mm256_and_ps(tiny, vec_set(23.0f));
  exponent = _mm256_blendv_ps(exponent, vec_set(-__builtin_inff()), _mm256_cmp_ps(x, zero, _CMP_EQ_OQ));
  *e = _mm256_blendv_ps(exponent, inf, _mm256_cmp_ps(x, inf, _CMP_EQ_OQ));
  return _mm256_or_ps(m, _mm256_cmp_ps(x, zero, _CMP_NGE_UQ));
}
static inline infc_vec vec_floor(infc_vec v) {
  return _mm256_floor_ps(v);
}
static inline infc_vec vec_ceil(infc_vec v) {
  return _mm256_ceil_ps(v);
}
static inline infc_vec vec_rint(infc_vec v) {
  return _mm256_round_ps(v, _MM_FROUND_RINT);
}
// v > 0 ? a : b
static inline infc_vec vec_if_positive(infc_vec v, infc_vec a, infc_vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GT_OQ));
}
// v is NaN ? a : b
static inline infc_vec vec_if_nan(infc_vec v, infc_vec a, infc_vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
static inline bool vec_any_above(infc_vec v, infc_vec limit) {
  return _mm256_movemask_ps(_mm256_cmp_ps(v, limit, _CMP_GT_OQ)) != 0;
}
// The lane's bits shifted left.
static inline infc_vec vec_shift(infc_vec v, int count) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), count));
}
// All lanes combined; every lane of the result holds it.
#define INFC_VEC_FOLD(v, combine)                                                                                      \
  do {                                                                                                                 \
    v = combine(v, _mm256_permute2f128_ps(v, v, 0x01));                                                                \
    v = combine(v, _mm256_permute_ps(v, 0x4E));                                                                        \
    v = combine(v, _mm256_permute_ps(v, 0xB1));                                                                        \
  } while (0)
static inline float vec_lane0(infc_vec v) {
  return _mm256_cvtss_f32(v);
}

#include "functions.h"

#endif // INFC_MATH_X86_AVX2_H
