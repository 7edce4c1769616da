#include "binary.h"

#include <immintrin.h>

#define LOOP(name, R, store)                                                                                           \
  static void name(const void *pa, const void *pb, void *py, int64_t n) {                                              \
    const float *as = pa, *bs = pb;                                                                                    \
    R *y = py;                                                                                                         \
    for (int64_t i = 0; i < n; i += 16) {                                                                              \
      __mmask16 lanes = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : 0xFFFF;                                        \
      __m512 a = _mm512_maskz_loadu_ps(lanes, as + i), b = _mm512_maskz_loadu_ps(lanes, bs + i);                       \
      (void)b;                                                                                                         \
      store;                                                                                                           \
    }                                                                                                                  \
  }
#define ARITHMETIC(name, expression) LOOP(name, float, _mm512_mask_storeu_ps(y + i, lanes, expression))
#define COMPARISON(name, predicate)                                                                                    \
  LOOP(name, uint8_t, _mm_mask_storeu_epi8(y + i, lanes, _mm_maskz_set1_epi8(_mm512_cmp_ps_mask(a, b, predicate), 1)))

static inline __mmask16 is_nan(__m512 a) {
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
static inline __mmask16 is_minus_infinity(__m512 a) {
  return _mm512_cmp_ps_mask(a, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
}
// +0 for -0, as pow has it.
static inline __m512 root(__m512 a) {
  return _mm512_sqrt_ps(_mm512_add_ps(a, _mm512_setzero_ps()));
}

ARITHMETIC(add, _mm512_add_ps(a, b))
ARITHMETIC(sub, _mm512_sub_ps(a, b))
ARITHMETIC(mul, _mm512_mul_ps(a, b))
ARITHMETIC(div_, _mm512_div_ps(a, b))
// min_ps and max_ps give b where either is NaN.
ARITHMETIC(min, _mm512_mask_mov_ps(_mm512_min_ps(a, b), is_nan(a), a))
ARITHMETIC(max, _mm512_mask_mov_ps(_mm512_max_ps(a, b), is_nan(a), a))
ARITHMETIC(prelu, _mm512_mask_mul_ps(a, _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_LT_OQ), a, b))
ARITHMETIC(sqrt_, _mm512_mask_mov_ps(root(a), is_minus_infinity(a), _mm512_set1_ps(__builtin_inff())))
ARITHMETIC(rsqrt,
           _mm512_mask_mov_ps(_mm512_div_ps(_mm512_set1_ps(1), root(a)), is_minus_infinity(a), _mm512_setzero_ps()))
COMPARISON(equal, _CMP_EQ_OQ)
COMPARISON(less, _CMP_LT_OQ)
COMPARISON(less_equal, _CMP_LE_OQ)
COMPARISON(greater, _CMP_GT_OQ)
COMPARISON(greater_equal, _CMP_GE_OQ)

infc_fault infc_binary_any__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
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
