#include "tuples.h"

infc_fault infc_gather_nd_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const uint32_t *words = task->words, *n = words + INFC_W_GATHER_ND_N0;
  const int64_t tuples = words[INFC_W_GATHER_ND_TUPLES], depth = words[INFC_W_GATHER_ND_DEPTH];
  const int64_t inner = words[INFC_W_GATHER_ND_INNER];
  const int64_t image = infc_tuple_elements(words[INFC_W_GATHER_ND_DEPTH], words[INFC_W_GATHER_ND_INNER], n);
  const int64_t size = (int64_t)infc_element_size(task->operands[0].dtype);
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const int64_t place = infc_tuple_place(task->ptr[1], task->operands[1].dtype, row, depth, n);
    char *y = (char *)task->ptr[2] + row * inner * size;
    if (place >= 0) {
      memmove(y, (const char *)task->ptr[0] + (row / tuples * image + place * inner) * size, (size_t)(inner * size));
    } else {
      memset(y, 0, (size_t)(inner * size));
      fault = INFC_FAULT_INDEX;
    }
  }
  return fault;
}

bool infc_gather_nd_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_GATHER_ND) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *x = &task->operands[0], *indices = &task->operands[1], *y = &task->operands[2];
  const uint32_t *words = task->words;
  const uint32_t tuples = words[INFC_W_GATHER_ND_TUPLES];
  int64_t elements =
      infc_tuple_elements(words[INFC_W_GATHER_ND_DEPTH], words[INFC_W_GATHER_ND_INNER], words + INFC_W_GATHER_ND_N0);
  return elements > 0 && tuples > 0 && step->rows % tuples == 0 && (step->rows_symbol < 0 || step->rows == tuples) &&
         !__builtin_mul_overflow(elements, (int64_t)(step->rows / tuples), &elements) &&
         infc_element_size(x->dtype) != 0 && infc_operand_dense(x) && x->rows_symbol < 0 &&
         infc_operand_inner(x, 0) == elements && y->dtype == x->dtype && infc_operand_is_index(indices) &&
         infc_operand_holds_rows(indices, step, words[INFC_W_GATHER_ND_DEPTH]) &&
         infc_operand_holds_rows(y, step, words[INFC_W_GATHER_ND_INNER]);
}

size_t infc_gather_nd_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
