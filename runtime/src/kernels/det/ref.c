#include "../operand.h"

#include <math.h>

// Elimination with the largest pivot of each column, in double.
static double determinant(double *a, int64_t n) {
  double result = 1;
  for (int64_t k = 0; k < n; k++) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; i++)
      if (fabs(a[i * n + k]) > fabs(a[pivot * n + k]))
        pivot = i;
    for (int64_t j = 0; j < n && pivot != k; j++) {
      const double moved = a[k * n + j];
      a[k * n + j] = a[pivot * n + j];
      a[pivot * n + j] = moved;
    }
    const double d = a[k * n + k];
    result *= pivot == k ? d : -d;
    if (d == 0)
      return 0;
    for (int64_t i = k + 1; i < n; i++) {
      const double factor = a[i * n + k] / d;
      for (int64_t j = k + 1; j < n; j++)
        a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return result;
}

infc_fault infc_det_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const int64_t n = task->words[INFC_W_DET_N];
  double *a = worker->scratch;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const float *x = (const float *)task->ptr[0] + row * n * n;
    for (int64_t i = 0; i < n * n; i++)
      a[i] = x[i];
    ((float *)task->ptr[1])[row] = (float)determinant(a, n);
  }
  return INFC_FAULT_NONE;
}

bool infc_det_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 1, INFC_WORDS_DET) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  const int64_t n = task->words[INFC_W_DET_N];
  return n > 0 && n <= INT32_MAX && x->dtype == INFC_DTYPE_F32 && y->dtype == INFC_DTYPE_F32 &&
         infc_operand_holds_rows(x, step, n * n) && infc_operand_holds_rows(y, step, 1);
}

size_t infc_det_scratch(const infc_task *task) {
  size_t n = task->words[INFC_W_DET_N], elements, bytes;
  return __builtin_mul_overflow(n, n, &elements) || __builtin_mul_overflow(elements, sizeof(double), &bytes) ? SIZE_MAX
                                                                                                             : bytes;
}
