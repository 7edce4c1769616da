// The f32 functions on the vectors of the ISA header that the including file chose; other types go to the reference.
#include "unary.h"

#define F(name) INFC_VEC_NAME(name)

static inline __attribute__((always_inline)) infc_vec apply(infc_vec x, uint32_t function, infc_vec alpha,
                                                            infc_vec beta) {
  switch (function) {
  case INFC_UNARY_EXP:
    return F(exp)(x);
  case INFC_UNARY_LOG:
    return F(log)(x);
  case INFC_UNARY_SQRT:
    return vec_sqrt(x);
  case INFC_UNARY_RSQRT:
    return vec_set(1.0f) / vec_sqrt(x);
  case INFC_UNARY_RECIPROCAL:
    return vec_set(1.0f) / x;
  case INFC_UNARY_ERF:
    return F(erf)(x);
  case INFC_UNARY_ABS:
    return vec_abs(x);
  case INFC_UNARY_NEG:
    return -x;
  case INFC_UNARY_FLOOR:
    return vec_floor(x);
  case INFC_UNARY_CEIL:
    return vec_ceil(x);
  case INFC_UNARY_ROUND:
    return vec_rint(x);
  case INFC_UNARY_SIN:
    return F(sin_cos)(x, false);
  case INFC_UNARY_COS:
    return F(sin_cos)(x, true);
  case INFC_UNARY_SIGN:
    return vec_if_positive(vec_abs(x), vec_with_sign(vec_set(1.0f), x), x);
  case INFC_UNARY_LEAKY_RELU:
    return vec_if_negative(x, alpha * x, x);
  case INFC_UNARY_CLIP:
    return vec_min(beta, vec_max(alpha, x));
  case INFC_UNARY_ELU:
    return F(elu)(x, alpha);
  case INFC_UNARY_HARD_SIGMOID:
    return F(hard_sigmoid)(x, alpha, beta);
  case INFC_UNARY_SQUARE:
    return x * x;
  default:
    return F(activate)(x, function);
  }
}

// `function` is a constant wherever this is inlined.
static inline __attribute__((always_inline)) void run(const float *x, float *y, int64_t n, uint32_t function, float a,
                                                      float b) {
  infc_vec alpha = vec_set(a), beta = vec_set(b);
  int64_t i = 0;
  for (; i + INFC_VEC_LANES <= n; i += INFC_VEC_LANES)
    vec_store(y + i, apply(vec_load(x + i), function, alpha, beta));
  if (i < n)
    vec_store_first(y + i, n - i, apply(vec_load_first(x + i, n - i, vec_set(0.0f)), function, alpha, beta));
}

#define CASE(name)                                                                                                     \
  case INFC_UNARY_##name:                                                                                              \
    run(x, y, n, INFC_UNARY_##name, alpha, beta);                                                                      \
    break

infc_fault INFC_VEC_KERNEL(unary)(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (task->operands[0].dtype != INFC_DTYPE_F32 || task->operands[1].dtype != INFC_DTYPE_F32)
    return infc_unary__scalar(task, range, worker);
  int64_t inner = infc_unary_inner(task), n = (range->row1 - range->row0) * inner;
  const float *x = (const float *)task->ptr[0] + range->row0 * inner;
  float *y = (float *)task->ptr[1] + range->row0 * inner;
  float alpha = infc_word_f32(task->words[INFC_W_UNARY_ALPHA]), beta = infc_word_f32(task->words[INFC_W_UNARY_BETA]);
  switch (task->words[INFC_W_UNARY_FUNCTION]) {
    CASE(IDENTITY);
    CASE(RELU);
    CASE(GELU_ERF);
    CASE(GELU_TANH);
    CASE(SILU);
    CASE(TANH);
    CASE(SIGMOID);
    CASE(EXP);
    CASE(LOG);
    CASE(SQRT);
    CASE(RSQRT);
    CASE(RECIPROCAL);
    CASE(ERF);
    CASE(ABS);
    CASE(NEG);
    CASE(FLOOR);
    CASE(CEIL);
    CASE(ROUND);
    CASE(SIN);
    CASE(COS);
    CASE(SOFTPLUS);
    CASE(SIGN);
    CASE(LEAKY_RELU);
    CASE(CLIP);
    CASE(ELU);
    CASE(HARD_SIGMOID);
    CASE(HARD_SWISH);
    CASE(SQUARE);
    CASE(QUICK_GELU);
    CASE(RELU6);
  default: // functions that no model takes often
    return infc_unary__scalar(task, range, worker);
  }
  return INFC_FAULT_NONE;
}
