#include "reduce.h"

#include <math.h>

// Element i of a float type.
static double real_at(const void *x, bool wide, int64_t i) {
  return wide ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

// Every inner-th of n * inner elements from `from` on. NaN wins over any maximum and minimum.
static double reduce_reals(const void *x, bool wide, int64_t from, int64_t n, int64_t inner, uint32_t kind) {
  double result = kind == INFC_REDUCE_PROD  ? 1
                  : kind == INFC_REDUCE_MAX ? -INFINITY
                  : kind == INFC_REDUCE_MIN ? INFINITY
                                            : 0;
  for (int64_t i = 0; i < n; i++) {
    double v = real_at(x, wide, from + i * inner);
    switch (kind) {
    case INFC_REDUCE_MAX:
      result = v > result || v != v ? v : result;
      break;
    case INFC_REDUCE_MIN:
      result = v < result || v != v ? v : result;
      break;
    case INFC_REDUCE_PROD:
      result *= v;
      break;
    case INFC_REDUCE_L1:
      result += fabs(v);
      break;
    case INFC_REDUCE_L2:
    case INFC_REDUCE_SUM_SQUARE:
      result += v * v;
      break;
    default:
      result += v;
    }
  }
  if (kind == INFC_REDUCE_MEAN)
    return result / (double)n;
  return kind == INFC_REDUCE_L2 ? sqrt(result) : result;
}

static double log_sum_exp(const void *x, bool wide, int64_t from, int64_t n, int64_t inner) {
  double highest = reduce_reals(x, wide, from, n, inner, INFC_REDUCE_MAX), sum = 0;
  double shift = isfinite(highest) ? highest : 0;
  for (int64_t i = 0; i < n; i++)
    sum += exp(real_at(x, wide, from + i * inner) - shift);
  return log(sum) + shift;
}

// Sums and products wrap.
#define INTEGER(name, type, unsigned_type)                                                                             \
  static type reduce_##name(const type *x, int64_t n, int64_t inner, uint32_t kind) {                                  \
    type result = 0;                                                                                                   \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      type v = x[i * inner];                                                                                           \
      if (kind == INFC_REDUCE_SUM_SQUARE)                                                                              \
        v = (type)((unsigned_type)v * (unsigned_type)v);                                                               \
      else if (kind == INFC_REDUCE_L1 && !(v > 0))                                                                     \
        v = (type)(0 - (unsigned_type)v);                                                                              \
      if (i == 0)                                                                                                      \
        result = v;                                                                                                    \
      else if (kind == INFC_REDUCE_SUM || kind == INFC_REDUCE_SUM_SQUARE || kind == INFC_REDUCE_L1)                    \
        result = (type)((unsigned_type)result + (unsigned_type)v);                                                     \
      else if (kind == INFC_REDUCE_PROD)                                                                               \
        result = (type)((unsigned_type)result * (unsigned_type)v);                                                     \
      else if (kind == INFC_REDUCE_MAX ? v > result : v < result)                                                      \
        result = v;                                                                                                    \
    }                                                                                                                  \
    return result;                                                                                                     \
  }
INTEGER(i32, int32_t, uint32_t)
INTEGER(i64, int64_t, uint64_t)
INTEGER(u64, uint64_t, uint64_t)

static double reduce_any_reals(const void *x, bool wide, int64_t from, int64_t n, int64_t inner, uint32_t kind) {
  return kind == INFC_REDUCE_LOG_SUM_EXP ? log_sum_exp(x, wide, from, n, inner)
                                         : reduce_reals(x, wide, from, n, inner, kind);
}

infc_fault infc_reduce__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const uint32_t kind = task->words[INFC_W_REDUCE_KIND];
  const int64_t n = task->words[INFC_W_REDUCE_REDUCED], inner = task->words[INFC_W_REDUCE_INNER];
  const void *x = task->ptr[0];
  void *y = task->ptr[1];
  for (int64_t at = range->row0 * inner; at < range->row1 * inner; at++) {
    int64_t from = at / inner * n * inner + at % inner;
    switch (task->operands[0].dtype) {
    case INFC_DTYPE_F32:
      ((float *)y)[at] = (float)reduce_any_reals(x, false, from, n, inner, kind);
      break;
    case INFC_DTYPE_F64:
      ((double *)y)[at] = reduce_any_reals(x, true, from, n, inner, kind);
      break;
    case INFC_DTYPE_I32:
      ((int32_t *)y)[at] = reduce_i32((const int32_t *)x + from, n, inner, kind);
      break;
    case INFC_DTYPE_I64:
      ((int64_t *)y)[at] = reduce_i64((const int64_t *)x + from, n, inner, kind);
      break;
    case INFC_DTYPE_U64:
      ((uint64_t *)y)[at] = reduce_u64((const uint64_t *)x + from, n, inner, kind);
      break;
    }
  }
  return INFC_FAULT_NONE;
}

static bool types_fit(uint32_t kind, uint8_t x, uint8_t y) {
  if (x == INFC_DTYPE_I32 || x == INFC_DTYPE_I64 || x == INFC_DTYPE_U64)
    return y == x && kind != INFC_REDUCE_MEAN && kind != INFC_REDUCE_L2 && kind != INFC_REDUCE_LOG_SUM_EXP;
  return (x == INFC_DTYPE_F32 || x == INFC_DTYPE_F64) && y == x;
}

bool infc_reduce_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  if (!infc_step_has(task->step, 1, 1, INFC_WORDS_REDUCE))
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  const uint32_t kind = task->words[INFC_W_REDUCE_KIND];
  const int64_t n = task->words[INFC_W_REDUCE_REDUCED], inner = task->words[INFC_W_REDUCE_INNER];
  int64_t row;
  return kind < INFC_REDUCE_COUNT && n > 0 && inner > 0 && !__builtin_mul_overflow(n, inner, &row) &&
         types_fit(kind, x->dtype, y->dtype) && infc_operand_holds_rows(x, task->step, row) &&
         infc_operand_holds_rows(y, task->step, inner);
}

size_t infc_reduce_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
