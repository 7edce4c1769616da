#include "combine.h"
#include "elements.h"

infc_fault infc_scatter_elements_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  infc_nest nest;
  if (!infc_nest_init(&nest, task->words + INFC_W_SCATTER_ELEMENTS_D0, 3, false, range))
    return INFC_FAULT_NONE;
  const int64_t size = task->words[INFC_W_SCATTER_ELEMENTS_SIZE], stride = task->words[INFC_W_SCATTER_ELEMENTS_STRIDE];
  const uint8_t index_type = task->operands[1].dtype, dtype = task->operands[2].dtype;
  const infc_combine_fn combine = infc_combine_for(task->words[INFC_W_SCATTER_ELEMENTS_KIND], dtype);
  const int64_t bytes = (int64_t)infc_element_size(dtype);
  const char *x = task->ptr[0];
  char *y = task->ptr[2];
  int64_t index[INFC_NEST] = {0}, at[3] = {nest.start[0], nest.start[1], nest.start[2]};
  infc_fault fault = INFC_FAULT_NONE;
  do {
    const int64_t place = infc_index_place(infc_read_index(task->ptr[1], index_type, at[1]), size);
    if (place >= 0)
      combine(y + (at[2] + place * stride) * bytes, x + at[0] * bytes, 1);
    else
      fault = INFC_FAULT_INDEX;
  } while (infc_nest_next(&nest, 3, 0, index, at));
  return fault;
}

// A dimension that no operand steps through would repeat the same work as often as a file says.
static bool every_dimension_moves(const uint32_t *words) {
  for (int i = 0; i < INFC_NEST; i++)
    if (words[INFC_W_SCATTER_ELEMENTS_D0 + i] > 1 && !words[INFC_W_SCATTER_ELEMENTS_SX0 + i] &&
        !words[INFC_W_SCATTER_ELEMENTS_SI0 + i] && !words[INFC_W_SCATTER_ELEMENTS_SY0 + i])
      return false;
  return true;
}

bool infc_scatter_elements_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_SCATTER_ELEMENTS))
    return false;
  const infc_operand *x = &task->operands[0], *indices = &task->operands[1], *y = &task->operands[2];
  const uint32_t *words = task->words, *dims = words + INFC_W_SCATTER_ELEMENTS_D0;
  return infc_combine_for(words[INFC_W_SCATTER_ELEMENTS_KIND], y->dtype) && x->dtype == y->dtype &&
         infc_operand_is_index(indices) && infc_nest_fits(step, dims) && every_dimension_moves(words) &&
         infc_nest_operand_fits(x, step, dims, words + INFC_W_SCATTER_ELEMENTS_SX0, 0) &&
         infc_nest_operand_fits(indices, step, dims, words + INFC_W_SCATTER_ELEMENTS_SI0, 0) &&
         infc_nest_indexed_fits(y, step, dims, words + INFC_W_SCATTER_ELEMENTS_SY0, words[INFC_W_SCATTER_ELEMENTS_SIZE],
                                words[INFC_W_SCATTER_ELEMENTS_STRIDE]);
}

size_t infc_scatter_elements_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
