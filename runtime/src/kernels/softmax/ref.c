#include "softmax.h"

#include <math.h>

// A row without a finite maximum, or with a NaN, gives NaN throughout: inf - inf.
#define SOFTMAX_ROW(name, T)                                                                                           \
  static void softmax_row_##name(const T *x, T *y, int64_t n, bool take_log) {                                         \
    double highest = x[0], sum = 0;                                                                                    \
    for (int64_t i = 1; i < n; i++)                                                                                    \
      highest = x[i] > highest ? x[i] : highest;                                                                       \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      sum += exp(x[i] - highest);                                                                                      \
    double log_sum = log(sum);                                                                                         \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      y[i] = (T)(take_log ? x[i] - highest - log_sum : exp(x[i] - highest) / sum);                                     \
  }
SOFTMAX_ROW(f32, float)
SOFTMAX_ROW(f64, double)

infc_fault infc_softmax_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  int64_t n = task->operands[0].dims[task->operands[0].rank - 1];
  bool take_log = task->words[INFC_W_SOFTMAX_LOG];
  for (int64_t row = range->row0; row < range->row1; row++)
    if (task->operands[0].dtype == INFC_DTYPE_F64)
      softmax_row_f64((const double *)task->ptr[0] + row * n, (double *)task->ptr[1] + row * n, n, take_log);
    else
      softmax_row_f32((const float *)task->ptr[0] + row * n, (float *)task->ptr[1] + row * n, n, take_log);
  return INFC_FAULT_NONE;
}

bool infc_softmax_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  if (!infc_step_has(task->step, 1, 1, INFC_WORDS_SOFTMAX) || task->words[INFC_W_SOFTMAX_LOG] > 1 || x->rank < 1 ||
      x->rank > INFC_MAX_RANK)
    return false;
  int64_t n = x->dims[x->rank - 1];
  return (x->dtype == INFC_DTYPE_F32 || x->dtype == INFC_DTYPE_F64) && y->dtype == x->dtype &&
         infc_operand_holds_rows(x, task->step, n) && infc_operand_holds_rows(y, task->step, n);
}

size_t infc_softmax_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
