#include "unary.h"

#include "../math/ref.h"

static float apply(float x, uint32_t function, float alpha, float beta) {
  switch (function) {
  case INFC_UNARY_EXP:
    return infc_exp_ref(x);
  case INFC_UNARY_LOG:
    return infc_log_ref(x);
  case INFC_UNARY_SQRT:
    return sqrtf(x);
  case INFC_UNARY_RSQRT:
    return (float)(1.0 / sqrt(x));
  case INFC_UNARY_RECIPROCAL:
    return 1.0f / x;
  case INFC_UNARY_ERF:
    return infc_erf_ref(x);
  case INFC_UNARY_ABS:
    return fabsf(x);
  case INFC_UNARY_NEG:
    return -x;
  case INFC_UNARY_FLOOR:
    return floorf(x);
  case INFC_UNARY_CEIL:
    return ceilf(x);
  case INFC_UNARY_ROUND:
    return rintf(x);
  case INFC_UNARY_SIN:
    return (float)sin(x);
  case INFC_UNARY_COS:
    return (float)cos(x);
  case INFC_UNARY_TAN:
    return (float)tan(x);
  case INFC_UNARY_ASIN:
    return (float)asin(x);
  case INFC_UNARY_ACOS:
    return (float)acos(x);
  case INFC_UNARY_ATAN:
    return (float)atan(x);
  case INFC_UNARY_SINH:
    return (float)sinh(x);
  case INFC_UNARY_COSH:
    return (float)cosh(x);
  case INFC_UNARY_ASINH:
    return (float)asinh(x);
  case INFC_UNARY_ACOSH:
    return (float)acosh(x);
  case INFC_UNARY_ATANH:
    return (float)atanh(x);
  case INFC_UNARY_SIGN:
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
  case INFC_UNARY_LEAKY_RELU:
    return x < 0.0f ? alpha * x : x;
  case INFC_UNARY_CLIP:
    x = x < alpha ? alpha : x;
    return x > beta ? beta : x;
  case INFC_UNARY_ELU:
    return x < 0.0f ? (float)(alpha * expm1(x)) : x;
  case INFC_UNARY_HARD_SIGMOID:
    return infc_hard_sigmoid_ref(x, alpha, beta);
  case INFC_UNARY_SQUARE:
    return x * x;
  default:
    return infc_activate_ref(x, function);
  }
}

static void run_f32(const float *x, float *y, int64_t n, uint32_t function, float alpha, float beta) {
  for (int64_t i = 0; i < n; i++)
    y[i] = apply(x[i], function, alpha, beta);
}

static void run_to_bool(const float *x, uint8_t *y, int64_t n, uint32_t function) {
  for (int64_t i = 0; i < n; i++)
    y[i] = function == INFC_UNARY_ISNAN ? x[i] != x[i] : fabsf(x[i]) == INFINITY;
}

static void run_f64_to_bool(const double *x, uint8_t *y, int64_t n, uint32_t function) {
  for (int64_t i = 0; i < n; i++)
    y[i] = function == INFC_UNARY_ISNAN ? x[i] != x[i] : fabs(x[i]) == INFINITY;
}

static void run_not(const uint8_t *x, uint8_t *y, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    y[i] = !x[i];
}

// The integer nearest to a bound of clip within the type; NaN bounds nothing.
static int64_t integer_bound(float bound, int64_t if_nan, int64_t lowest, int64_t highest) {
  if (bound != bound)
    return if_nan;
  if (bound <= (float)lowest)
    return lowest;
  return bound >= (float)highest ? highest : (int64_t)bound;
}

// One integer type; arithmetic wraps.
#define INTEGER(name, type, lowest, highest)                                                                           \
  static void run_##name(const type *x, type *y, int64_t n, uint32_t function, float alpha, float beta) {              \
    int64_t low = integer_bound(ceilf(alpha), lowest, lowest, highest);                                                \
    int64_t high = integer_bound(floorf(beta), highest, lowest, highest);                                              \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      type v = x[i], negative = (type)(0 - (uint64_t)v);                                                               \
      switch (function) {                                                                                              \
      case INFC_UNARY_ABS:                                                                                             \
        v = v < 0 ? negative : v;                                                                                      \
        break;                                                                                                         \
      case INFC_UNARY_NEG:                                                                                             \
        v = negative;                                                                                                  \
        break;                                                                                                         \
      case INFC_UNARY_SIGN:                                                                                            \
        v = (type)((v > 0) - (v < 0));                                                                                 \
        break;                                                                                                         \
      case INFC_UNARY_CLIP:                                                                                            \
        v = v < low ? (type)low : v;                                                                                   \
        v = v > high ? (type)high : v;                                                                                 \
      }                                                                                                                \
      y[i] = v;                                                                                                        \
    }                                                                                                                  \
  }
INTEGER(i8, int8_t, INT8_MIN, INT8_MAX)
INTEGER(i16, int16_t, INT16_MIN, INT16_MAX)
INTEGER(i32, int32_t, INT32_MIN, INT32_MAX)
INTEGER(i64, int64_t, INT64_MIN, INT64_MAX)

infc_fault infc_unary__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  uint8_t dtype = task->operands[0].dtype;
  int64_t inner = infc_unary_inner(task), n = (range->row1 - range->row0) * inner, first = range->row0 * inner;
  const char *x = (const char *)task->ptr[0] + first * (int64_t)infc_element_size(dtype);
  char *y = (char *)task->ptr[1] + first * (int64_t)infc_element_size(task->operands[1].dtype);
  uint32_t function = task->words[INFC_W_UNARY_FUNCTION];
  float alpha = infc_word_f32(task->words[INFC_W_UNARY_ALPHA]), beta = infc_word_f32(task->words[INFC_W_UNARY_BETA]);
  switch (dtype) {
  case INFC_DTYPE_F32:
    if (task->operands[1].dtype == INFC_DTYPE_BOOL)
      run_to_bool((const float *)x, (uint8_t *)y, n, function);
    else
      run_f32((const float *)x, (float *)y, n, function, alpha, beta);
    break;
  case INFC_DTYPE_F64:
    if (task->operands[1].dtype == INFC_DTYPE_BOOL)
      run_f64_to_bool((const double *)x, (uint8_t *)y, n, function);
    else
      infc_unary_f64((const double *)x, (double *)y, n, function, alpha, beta);
    break;
  case INFC_DTYPE_BOOL:
    run_not((const uint8_t *)x, (uint8_t *)y, n);
    break;
  case INFC_DTYPE_I8:
    run_i8((const int8_t *)x, (int8_t *)y, n, function, alpha, beta);
    break;
  case INFC_DTYPE_I16:
    run_i16((const int16_t *)x, (int16_t *)y, n, function, alpha, beta);
    break;
  case INFC_DTYPE_I32:
    run_i32((const int32_t *)x, (int32_t *)y, n, function, alpha, beta);
    break;
  case INFC_DTYPE_I64:
    run_i64((const int64_t *)x, (int64_t *)y, n, function, alpha, beta);
    break;
  }
  return INFC_FAULT_NONE;
}

static bool types_fit(uint32_t function, uint8_t x, uint8_t y) {
  switch (function) {
  case INFC_UNARY_NOT:
    return x == INFC_DTYPE_BOOL && y == INFC_DTYPE_BOOL;
  case INFC_UNARY_ISNAN:
  case INFC_UNARY_ISINF:
    return (x == INFC_DTYPE_F32 || x == INFC_DTYPE_F64) && y == INFC_DTYPE_BOOL;
  case INFC_UNARY_IDENTITY:
  case INFC_UNARY_ABS:
  case INFC_UNARY_NEG:
  case INFC_UNARY_SIGN:
  case INFC_UNARY_CLIP:
    if (x == INFC_DTYPE_I8 || x == INFC_DTYPE_I16 || x == INFC_DTYPE_I32 || x == INFC_DTYPE_I64)
      return y == x;
  }
  if (x == INFC_DTYPE_F64)
    return y == x && infc_unary_has_f64(function);
  return x == INFC_DTYPE_F32 && y == INFC_DTYPE_F32;
}

bool infc_unary_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  if (!infc_step_has(task->step, 1, 1, INFC_WORDS_UNARY))
    return false;
  int64_t inner = infc_unary_inner(task);
  uint32_t function = task->words[INFC_W_UNARY_FUNCTION];
  return function < INFC_UNARY_COUNT && types_fit(function, x->dtype, y->dtype) &&
         infc_operand_holds_rows(x, task->step, inner) && infc_operand_holds_rows(y, task->step, inner);
}

size_t infc_unary_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
