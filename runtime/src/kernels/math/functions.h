// Elementwise functions on the vec_* primitives of the ISA header that includes this. Error bounds: docs/math.md.
#include "coefficients.h"

#include "ref.h"

#define F(name) INFC_VEC_NAME(name)

static inline infc_vec vec_add(infc_vec a, infc_vec b) {
  return a + b;
}
static inline infc_vec vec_mul(infc_vec a, infc_vec b) {
  return a * b;
}
// Sum and maximum of the lanes, in every lane.
static inline infc_vec vec_sum(infc_vec v) {
  INFC_VEC_FOLD(v, vec_add);
  return v;
}
static inline infc_vec vec_highest(infc_vec v) {
  INFC_VEC_FOLD(v, vec_max);
  return v;
}

// Runs step(at, lanes, part) over n elements: at is the first element of a vector, lanes the number of elements it
// holds, and part, from 0 to 3, tells which of four accumulators to use, so that the additions of neighbours overlap.
#define INFC_VEC_EACH(n, step)                                                                                         \
  do {                                                                                                                 \
    int64_t at_ = 0;                                                                                                   \
    for (; at_ + 4 * INFC_VEC_LANES <= (n); at_ += 4 * INFC_VEC_LANES) {                                               \
      step(at_, INFC_VEC_LANES, 0);                                                                                    \
      step(at_ + INFC_VEC_LANES, INFC_VEC_LANES, 1);                                                                   \
      step(at_ + 2 * INFC_VEC_LANES, INFC_VEC_LANES, 2);                                                               \
      step(at_ + 3 * INFC_VEC_LANES, INFC_VEC_LANES, 3);                                                               \
    }                                                                                                                  \
    for (; at_ + INFC_VEC_LANES <= (n); at_ += INFC_VEC_LANES)                                                         \
      step(at_, INFC_VEC_LANES, 0);                                                                                    \
    if (at_ < (n))                                                                                                     \
      step(at_, (n) - at_, 1);                                                                                         \
  } while (0)

static inline __attribute__((always_inline)) infc_vec vec_load_lanes(const float *p, int64_t lanes, infc_vec fill) {
  return lanes == INFC_VEC_LANES ? vec_load(p) : vec_load_first(p, lanes, fill);
}
static inline __attribute__((always_inline)) void vec_store_lanes(float *p, int64_t lanes, infc_vec v) {
  if (lanes == INFC_VEC_LANES)
    vec_store(p, v);
  else
    vec_store_first(p, lanes, v);
}

// Adding and subtracting it rounds a float of magnitude below 2^22 to an integer, whose low bits are those of the sum.
#define INFC_ROUNDER 0x1.8p23f
// ln 2 = HIGH + LOW; HIGH has 15 bits, so n * HIGH is exact.
#define INFC_LN2_HIGH 0x1.62e4p-1f
#define INFC_LN2_LOW 0x1.7f7d1cp-20f
#define INFC_LOG2_E 1.44269504f
// pi / 2 = HIGH + MIDDLE + LOW
#define INFC_HALF_PI_HIGH 0x1.921fb6p+0f
#define INFC_HALF_PI_MIDDLE -0x1.777a5cp-25f
#define INFC_HALF_PI_LOW -0x1.ee59dap-50f

// 2^n exp(r) for |r| <= ln(2) / 2
static inline infc_vec F(exp_reduced)(infc_vec r, infc_vec n) {
  infc_vec p = vec_fma(vec_set(INFC_EXP_6), r, vec_set(INFC_EXP_5));
  p = vec_fma(p, r, vec_set(INFC_EXP_4));
  p = vec_fma(p, r, vec_set(INFC_EXP_3));
  p = vec_fma(p, r, vec_set(INFC_EXP_2));
  p = vec_fma(p, r, vec_set(INFC_EXP_1));
  p = vec_fma(p, r, vec_set(INFC_EXP_0));
  return vec_scale(p, n);
}

// exp(c * x) for -104 <= c * x <= 89 or NaN: the product enters unrounded, which large arguments need.
static inline infc_vec F(exp_product)(infc_vec c, infc_vec x) {
  const infc_vec rounder = vec_set(INFC_ROUNDER);
  infc_vec n = vec_fma(c * x, vec_set(INFC_LOG2_E), rounder) - rounder;
  infc_vec r = vec_fma(c, x, n * vec_set(-INFC_LN2_HIGH));
  r = vec_fnma(n, vec_set(INFC_LN2_LOW), r);
  return F(exp_reduced)(r, n);
}

// exp(x) for -104 <= x <= 89 or NaN.
static inline infc_vec F(exp_bounded)(infc_vec x) {
  const infc_vec rounder = vec_set(INFC_ROUNDER);
  infc_vec n = vec_fma(x, vec_set(INFC_LOG2_E), rounder) - rounder;
  infc_vec r = vec_fnma(n, vec_set(INFC_LN2_HIGH), x);
  r = vec_fnma(n, vec_set(INFC_LN2_LOW), r);
  return F(exp_reduced)(r, n);
}

static inline infc_vec F(exp)(infc_vec x) {
  return F(exp_bounded)(vec_max(vec_set(-104.0f), vec_min(vec_set(89.0f), x)));
}

// exp(x) for x <= 0 or NaN, as softmax needs it.
static inline infc_vec F(exp_negative)(infc_vec x) {
  return F(exp_bounded)(vec_max(vec_set(-104.0f), x));
}

static inline infc_vec F(log)(infc_vec x) {
  infc_vec e, t = vec_split(x, &e) - vec_set(1.0f);
  infc_vec p = vec_fma(vec_set(INFC_LOG1P_10), t, vec_set(INFC_LOG1P_9));
  p = vec_fma(p, t, vec_set(INFC_LOG1P_8));
  p = vec_fma(p, t, vec_set(INFC_LOG1P_7));
  p = vec_fma(p, t, vec_set(INFC_LOG1P_6));
  p = vec_fma(p, t, vec_set(INFC_LOG1P_5));
  p = vec_fma(p, t, vec_set(INFC_LOG1P_4));
  p = vec_fma(p, t, vec_set(INFC_LOG1P_3));
  p = vec_fma(p, t, vec_set(INFC_LOG1P_2));
  p = vec_fma(p * t, t, vec_fma(e, vec_set(INFC_LN2_LOW), t));
  return vec_fma(e, vec_set(INFC_LN2_HIGH), p);
}

// expm1(x) = 2^n expm1(r) + (2^n - 1) for -104 <= x <= 89 or NaN.
static inline infc_vec F(expm1_bounded)(infc_vec x) {
  const infc_vec rounder = vec_set(INFC_ROUNDER), one = vec_set(1.0f);
  infc_vec n = vec_fma(x, vec_set(INFC_LOG2_E), rounder) - rounder;
  infc_vec r = vec_fnma(n, vec_set(INFC_LN2_HIGH), x);
  r = vec_fnma(n, vec_set(INFC_LN2_LOW), r);
  infc_vec p = vec_fma(vec_set(INFC_EXP_6), r, vec_set(INFC_EXP_5));
  p = vec_fma(p, r, vec_set(INFC_EXP_4));
  p = vec_fma(p, r, vec_set(INFC_EXP_3));
  p = vec_fma(p, r, vec_set(INFC_EXP_2));
  p = vec_fma(p * r, r, r);
  infc_vec power = vec_scale(one, n);
  return vec_fma(power, p, power - one);
}

// tanh |x| = expm1(2 |x|) / (expm1(2 |x|) + 2)
static inline infc_vec F(tanh)(infc_vec x) {
  infc_vec a = vec_min(vec_set(10.0f), vec_abs(x));
  infc_vec t = F(expm1_bounded)(a + a);
  return vec_with_sign(t / (t + vec_set(2.0f)), x);
}

// Piecewise polynomials in a - n * width: rounding by addition leaves n in the low bits, which index the 16 pieces.
#define INFC_PIECEWISE(table, width, a)                                                                                \
  const infc_vec rounder = vec_set(INFC_ROUNDER);                                                                      \
  infc_vec shifted = vec_fma(a, vec_set(1.0f / (width)), rounder);                                                     \
  infc_vec t = vec_fnma(shifted - rounder, vec_set(width), a);                                                         \
  infc_vec p = vec_fma(vec_lookup(table[5], vec_bits(shifted)), t, vec_lookup(table[4], vec_bits(shifted)));           \
  p = vec_fma(p, t, vec_lookup(table[3], vec_bits(shifted)));                                                          \
  p = vec_fma(p, t, vec_lookup(table[2], vec_bits(shifted)));                                                          \
  p = vec_fma(p, t, vec_lookup(table[1], vec_bits(shifted)));                                                          \
  p = vec_fma(p, t, vec_lookup(table[0], vec_bits(shifted)))

static inline infc_vec F(erf)(infc_vec x) {
  infc_vec a = vec_min(vec_set(15 * INFC_ERF_WIDTH), vec_abs(x));
  INFC_PIECEWISE(infc_erf, INFC_ERF_WIDTH, a);
  return vec_with_sign(p, x);
}

// x * Phi(x) = max(x, 0) - |x| (1 - Phi(|x|)): nothing cancels, and beyond the last piece the tail is exactly zero.
static inline infc_vec F(gelu_erf)(infc_vec x) {
  infc_vec a = vec_min(vec_set(15 * INFC_NORMAL_TAIL_WIDTH), vec_abs(x));
  INFC_PIECEWISE(infc_normal_tail, INFC_NORMAL_TAIL_WIDTH, a);
  return vec_fnma(a, p, vec_max(vec_set(0.0f), x));
}

static inline infc_vec F(relu)(infc_vec x) {
  return vec_max(vec_set(0.0f), x);
}

// 1 / (1 + exp(-x)) through e = exp(-|x|), which cannot overflow.
static inline infc_vec F(sigmoid)(infc_vec x) {
  const infc_vec one = vec_set(1.0f);
  infc_vec e = F(exp_bounded)(-vec_min(vec_set(104.0f), vec_abs(x)));
  return vec_if_negative(x, e, one) / (one + e);
}

// x / (1 + exp(-y)) for y of x's sign, from a = min(|x|, a value where e vanishes) and e = exp(-|y|).
static inline infc_vec F(gate)(infc_vec x, infc_vec a, infc_vec e) {
  return vec_if_negative(x, -(a * e), x) / (vec_set(1.0f) + e);
}

static inline infc_vec F(silu)(infc_vec x) {
  infc_vec a = vec_min(vec_set(104.0f), vec_abs(x));
  return F(gate)(x, a, F(exp_bounded)(-a));
}

static inline infc_vec F(quick_gelu)(infc_vec x) {
  infc_vec a = vec_min(vec_set(61.1f), vec_abs(x));
  return F(gate)(x, a, F(exp_product)(vec_set(-1.702f), a));
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), 2 u = sqrt(8 / pi) (x + 0.044715 x^3)
static inline infc_vec F(gelu_tanh)(infc_vec x) {
  infc_vec a = vec_min(vec_set(10.68f), vec_abs(x));
  infc_vec factor = vec_fma(a * a, vec_set(-1.5957691216f * 0.044715f), vec_set(-1.5957691216f));
  return F(gate)(x, a, F(exp_product)(factor, a));
}

// max(x, 0) + log1p(e) with e = exp(-|x|) and log1p(e) = 2 atanh(e / (2 + e)).
static inline infc_vec F(softplus)(infc_vec x) {
  infc_vec e = F(exp_bounded)(-vec_min(vec_set(104.0f), vec_abs(x)));
  infc_vec z = e / (vec_set(2.0f) + e), u = z * z;
  infc_vec p = vec_fma(vec_set(INFC_ATANH_5), u, vec_set(INFC_ATANH_4));
  p = vec_fma(p, u, vec_set(INFC_ATANH_3));
  p = vec_fma(p, u, vec_set(INFC_ATANH_2));
  p = vec_fma(p, u, vec_set(INFC_ATANH_1));
  p = vec_fma(p, u, vec_set(INFC_ATANH_0));
  return vec_fma(z + z, p, vec_max(vec_set(0.0f), x));
}

static inline infc_vec F(hard_sigmoid)(infc_vec x, infc_vec alpha, infc_vec beta) {
  return vec_min(vec_set(1.0f), vec_max(vec_set(0.0f), vec_fma(alpha, x, beta)));
}

// alpha * expm1(x) below zero.
static inline infc_vec F(elu)(infc_vec x, infc_vec alpha) {
  return vec_if_negative(x, alpha * F(expm1_bounded)(vec_max(vec_set(-104.0f), vec_min(vec_set(0.0f), x))), x);
}

#define INFC_SIN_COS_LIMIT 65536.0f

// y with the lanes where |x| exceeds the limit computed by the C library.
static __attribute__((noinline, unused)) infc_vec F(sin_cos_large)(infc_vec x, infc_vec y, bool cosine) {
  float in[INFC_VEC_LANES], out[INFC_VEC_LANES];
  vec_store(in, x);
  vec_store(out, y);
  for (int i = 0; i < INFC_VEC_LANES; i++)
    if (fabsf(in[i]) > INFC_SIN_COS_LIMIT)
      out[i] = cosine ? cosf(in[i]) : sinf(in[i]);
  return vec_load(out);
}

// sin(x), or cos(x) as sin(x + pi / 2): x = n * pi / 2 + r, the last bits of n choose polynomial and sign. Beyond the
// limit, where r is no longer accurate and no position or angle of a model lies, the C library serves.
static inline infc_vec F(sin_cos)(infc_vec x, bool cosine) {
  const infc_vec rounder = vec_set(INFC_ROUNDER);
  infc_vec shifted = vec_fma(x, vec_set(0.636619772f), rounder), n = shifted - rounder;
  infc_vec r = vec_fnma(n, vec_set(INFC_HALF_PI_HIGH), x);
  r = vec_fnma(n, vec_set(INFC_HALF_PI_MIDDLE), r);
  r = vec_fnma(n, vec_set(INFC_HALF_PI_LOW), r);
  infc_vec u = r * r;
  infc_vec s = vec_fma(vec_set(INFC_SIN_3), u, vec_set(INFC_SIN_2));
  s = vec_fma(s, u, vec_set(INFC_SIN_1));
  s = vec_fma(s * u, r, r);
  infc_vec c = vec_fma(vec_set(INFC_COS_4), u, vec_set(INFC_COS_3));
  c = vec_fma(c, u, vec_set(INFC_COS_2));
  c = vec_fma(c, u, vec_set(INFC_COS_1));
  c = vec_fma(c, u, vec_set(INFC_COS_0));
  if (cosine)
    shifted += vec_set(1.0f);
  infc_vec y = vec_if_negative(vec_shift(shifted, 31), c, s);
  y = vec_if_negative(vec_shift(shifted, 30), -y, y);
  if (__builtin_expect(vec_any_above(vec_abs(x), vec_set(INFC_SIN_COS_LIMIT)), 0))
    return F(sin_cos_large)(x, y, cosine);
  return y;
}

static inline infc_vec F(activate)(infc_vec x, uint32_t code) {
  switch (code) {
  case INFC_UNARY_RELU:
    return F(relu)(x);
  case INFC_UNARY_GELU_ERF:
    return F(gelu_erf)(x);
  case INFC_UNARY_GELU_TANH:
    return F(gelu_tanh)(x);
  case INFC_UNARY_SILU:
    return F(silu)(x);
  case INFC_UNARY_TANH:
    return F(tanh)(x);
  case INFC_UNARY_SIGMOID:
    return F(sigmoid)(x);
  case INFC_UNARY_QUICK_GELU:
    return F(quick_gelu)(x);
  case INFC_UNARY_SOFTPLUS:
    return F(softplus)(x);
  case INFC_UNARY_HARD_SWISH:
    return x * F(hard_sigmoid)(x, vec_set(1.0f / 6.0f), vec_set(0.5f));
  case INFC_UNARY_RELU6:
    return vec_min(vec_set(6.0f), F(relu)(x));
  default:
    return x;
  }
}

#undef F
