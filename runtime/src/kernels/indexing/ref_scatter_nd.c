#include "tuples.h"

infc_fault infc_scatter_nd_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)range;
  (void)worker;
  const uint32_t *words = task->words;
  const int64_t depth = words[INFC_W_SCATTER_ND_DEPTH], inner = words[INFC_W_SCATTER_ND_INNER];
  const infc_combine_fn combine = infc_combine_for(words[INFC_W_SCATTER_ND_KIND], task->operands[2].dtype);
  const int64_t run = inner * (int64_t)infc_element_size(task->operands[2].dtype);
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = 0; row < words[INFC_W_SCATTER_ND_TUPLES]; row++) {
    const int64_t place =
        infc_tuple_place(task->ptr[1], task->operands[1].dtype, row, depth, words + INFC_W_SCATTER_ND_N0);
    if (place >= 0)
      combine((char *)task->ptr[2] + place * run, (const char *)task->ptr[0] + row * run, inner);
    else
      fault = INFC_FAULT_INDEX;
  }
  return fault;
}

static bool holds(const infc_operand *operand, int64_t elements) {
  return operand->rows_symbol < 0 && infc_operand_dense(operand) && infc_operand_inner(operand, 0) == elements;
}

bool infc_scatter_nd_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_SCATTER_ND) || !infc_step_is_serial(step) || step->rows_symbol >= 0)
    return false;
  const infc_operand *x = &task->operands[0], *indices = &task->operands[1], *y = &task->operands[2];
  const uint32_t *words = task->words;
  const int64_t tuples = words[INFC_W_SCATTER_ND_TUPLES], depth = words[INFC_W_SCATTER_ND_DEPTH];
  const int64_t inner = words[INFC_W_SCATTER_ND_INNER];
  const int64_t elements =
      infc_tuple_elements(words[INFC_W_SCATTER_ND_DEPTH], words[INFC_W_SCATTER_ND_INNER], words + INFC_W_SCATTER_ND_N0);
  return elements > 0 && tuples > 0 && infc_combine_for(words[INFC_W_SCATTER_ND_KIND], y->dtype) &&
         x->dtype == y->dtype && infc_operand_is_index(indices) && holds(y, elements) && tuples <= INT32_MAX &&
         inner <= INT32_MAX && holds(x, tuples * inner) && holds(indices, tuples * depth);
}

size_t infc_scatter_nd_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
