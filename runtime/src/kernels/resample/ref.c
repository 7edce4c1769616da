#include "resample.h"

infc_fault infc_resample_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_resample(task, range);
}

static bool is_f32(const infc_operand *operand) {
  return operand->dtype == INFC_DTYPE_F32 && infc_operand_dense(operand) && operand->rows_symbol < 0;
}

bool infc_resample_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 3, 1, INFC_WORDS_RESAMPLE) || !infc_step_has_no_cols(step) || step->rows_symbol >= 0)
    return false;
  const infc_operand *x = &task->operands[0], *first = &task->operands[1], *weights = &task->operands[2];
  const infc_operand *y = &task->operands[3];
  const int64_t n = task->words[INFC_W_RESAMPLE_N], out = task->words[INFC_W_RESAMPLE_OUT];
  const int64_t taps = task->words[INFC_W_RESAMPLE_TAPS], inner = task->words[INFC_W_RESAMPLE_INNER];
  int64_t x_elements;
  return out > 0 && inner > 0 && taps > 0 && taps <= n && out <= INT32_MAX && taps <= INT32_MAX &&
         step->rows % out == 0 && !__builtin_mul_overflow(n, inner, &x_elements) &&
         !__builtin_mul_overflow(x_elements, step->rows / out, &x_elements) && is_f32(x) &&
         infc_operand_inner(x, 0) == x_elements && first->dtype == INFC_DTYPE_I32 && infc_operand_dense(first) &&
         first->rows_symbol < 0 && infc_operand_inner(first, 0) == out && is_f32(weights) &&
         infc_operand_inner(weights, 0) == out * taps && is_f32(y) && infc_operand_holds_rows(y, step, inner);
}

size_t infc_resample_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
