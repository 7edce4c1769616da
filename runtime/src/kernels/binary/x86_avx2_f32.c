#include "binary.h"

#include <immintrin.h>
#include <string.h>

static inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Eight bools, as bytes in the low half.
static inline __m128i bools(__m256 mask) {
  __m256i m = _mm256_castps_si256(mask);
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  return _mm_and_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(1));
}

#define ARITHMETIC(name, expression)                                                                                   \
  static inline __m256 name##_of(__m256 a, __m256 b) {                                                                 \
    (void)b;                                                                                                           \
    return expression;                                                                                                 \
  }                                                                                                                    \
  static void name(const void *pa, const void *pb, void *py, int64_t n) {                                              \
    const float *a = pa, *b = pb;                                                                                      \
    float *y = py;                                                                                                     \
    int64_t i = 0;                                                                                                     \
    for (; i + 8 <= n; i += 8)                                                                                         \
      _mm256_storeu_ps(y + i, name##_of(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));                              \
    if (i < n) {                                                                                                       \
      __m256i lanes = first_lanes(n - i);                                                                              \
      _mm256_maskstore_ps(y + i, lanes,                                                                                \
                          name##_of(_mm256_maskload_ps(a + i, lanes), _mm256_maskload_ps(b + i, lanes)));              \
    }                                                                                                                  \
  }

#define COMPARISON(name, predicate)                                                                                    \
  static void name(const void *pa, const void *pb, void *py, int64_t n) {                                              \
    const float *a = pa, *b = pb;                                                                                      \
    uint8_t *y = py;                                                                                                   \
    int64_t i = 0;                                                                                                     \
    for (; i + 8 <= n; i += 8)                                                                                         \
      _mm_storel_epi64((__m128i *)(y + i),                                                                             \
                       bools(_mm256_cmp_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), predicate)));               \
    if (i < n) {                                                                                                       \
      __m256i lanes = first_lanes(n - i);                                                                              \
      uint64_t last = (uint64_t)_mm_cvtsi128_si64(                                                                     \
          bools(_mm256_cmp_ps(_mm256_maskload_ps(a + i, lanes), _mm256_maskload_ps(b + i, lanes), predicate)));        \
      memcpy(y + i, &last, (size_t)(n - i));                                                                           \
    }                                                                                                                  \
  }

static inline __m256 is_nan(__m256 a) {
  return _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
}
static inline __m256 is_minus_infinity(__m256 a) {
  return _mm256_cmp_ps(a, _mm256_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
}
// +0 for -0, as pow has it.
static inline __m256 root(__m256 a) {
  return _mm256_sqrt_ps(_mm256_add_ps(a, _mm256_setzero_ps()));
}

ARITHMETIC(add, _mm256_add_ps(a, b))
ARITHMETIC(sub, _mm256_sub_ps(a, b))
ARITHMETIC(mul, _mm256_mul_ps(a, b))
ARITHMETIC(div_, _mm256_div_ps(a, b))
// min_ps and max_ps give b where either is NaN.
ARITHMETIC(min, _mm256_blendv_ps(_mm256_min_ps(a, b), a, is_nan(a)))
ARITHMETIC(max, _mm256_blendv_ps(_mm256_max_ps(a, b), a, is_nan(a)))
ARITHMETIC(prelu, _mm256_blendv_ps(a, _mm256_mul_ps(a, b), _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_LT_OQ)))
ARITHMETIC(sqrt_, _mm256_blendv_ps(root(a), _mm256_set1_ps(__builtin_inff()), is_minus_infinity(a)))
ARITHMETIC(rsqrt,
           _mm256_blendv_ps(_mm256_div_ps(_mm256_set1_ps(1), root(a)), _mm256_setzero_ps(), is_minus_infinity(a)))
COMPARISON(equal, _CMP_EQ_OQ)
COMPARISON(less, _CMP_LT_OQ)
COMPARISON(less_equal, _CMP_LE_OQ)
COMPARISON(greater, _CMP_GT_OQ)
COMPARISON(greater_equal, _CMP_GE_OQ)

infc_fault infc_binary_any__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  static const infc_binary_f32 loops = {
      .function = {[INFC_BINARY_ADD] = add,
                   [INFC_BINARY_SUB] = sub,
                   [INFC_BINARY_MUL] = mul,
                   [INFC_BINARY_DIV] = div_,
                   [INFC_BINARY_MIN] = min,
                   [INFC_BINARY_MAX] = max,
                   [INFC_BINARY_PRELU] = prelu,
                   [INFC_BINARY_EQUAL] = equal,
                   [INFC_BINARY_LESS] = less,
                   [INFC_BINARY_LESS_EQUAL] = less_equal,
                   [INFC_BINARY_GREATER] = greater,
                   [INFC_BINARY_GREATER_EQUAL] = greater_equal},
      .sqrt = sqrt_,
      .rsqrt = rsqrt,
  };
  (void)worker;
  return infc_binary_run(task, range, &loops);
}
