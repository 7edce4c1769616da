#include "grid_sample.h"

infc_fault infc_grid_sample_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_grid_sample(task, range);
}

bool infc_grid_sample_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_GRID_SAMPLE) || !infc_step_has_no_cols(step) || step->rows_symbol >= 0)
    return false;
  const infc_operand *x = &task->operands[0], *points = &task->operands[1], *y = &task->operands[2];
  const uint32_t *words = task->words, *sizes = words + INFC_W_GRID_SAMPLE_IN_D;
  const uint32_t dims = words[INFC_W_GRID_SAMPLE_DIMS], per_image = words[INFC_W_GRID_SAMPLE_POINTS];
  if (per_image == 0 || step->rows % per_image)
    return false;
  int64_t pixels = step->rows / per_image;
  for (uint32_t j = 0; j < 3; j++)
    if (sizes[j] == 0 || sizes[j] > INT32_MAX || (j < 3 - dims && sizes[j] != 1) ||
        __builtin_mul_overflow(pixels, (int64_t)sizes[j], &pixels))
      return false;
  return dims >= 1 && dims <= 3 && words[INFC_W_GRID_SAMPLE_MODE] < INFC_SAMPLE_COUNT &&
         words[INFC_W_GRID_SAMPLE_OUTSIDE] < INFC_BORDER_COUNT && x->dtype == INFC_DTYPE_F32 &&
         x->packing == INFC_PACK_ROW_MAJOR && x->rows_symbol < 0 && x->dims[0] == pixels &&
         points->dtype == INFC_DTYPE_F32 && infc_operand_holds_rows(points, step, dims) && y->dtype == INFC_DTYPE_F32 &&
         infc_operand_holds_rows(y, step, infc_operand_inner(x, 1));
}

size_t infc_grid_sample_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
