#include "combine.h"
#include "elements.h"

// Elements are moved as bytes of a known count, whatever their type.
static inline __attribute__((always_inline)) infc_fault run(const infc_task *task, const infc_nest *nest,
                                                            size_t bytes) {
  const int64_t size = task->words[INFC_W_GATHER_ELEMENTS_SIZE], stride = task->words[INFC_W_GATHER_ELEMENTS_STRIDE];
  const uint8_t index_type = task->operands[1].dtype;
  int64_t index[INFC_NEST] = {0}, at[3] = {nest->start[0], nest->start[1], nest->start[2]};
  infc_fault fault = INFC_FAULT_NONE;
  do {
    const char *x = (const char *)task->ptr[0] + at[0] * (int64_t)bytes;
    char *y = (char *)task->ptr[2] + at[2] * (int64_t)bytes;
    for (int64_t i = 0; i < nest->dims[0]; i++, y += bytes) {
      const int64_t place =
          infc_index_place(infc_read_index(task->ptr[1], index_type, at[1] + i * nest->strides[1][0]), size);
      if (place >= 0) {
        memmove(y, x + (i * nest->strides[0][0] + place * stride) * (int64_t)bytes, bytes);
      } else {
        memset(y, 0, bytes);
        fault = INFC_FAULT_INDEX;
      }
    }
  } while (infc_nest_next(nest, 3, 1, index, at));
  return fault;
}

infc_fault infc_gather_elements_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  infc_nest nest;
  if (!infc_nest_init(&nest, task->words + INFC_W_GATHER_ELEMENTS_D0, 2, true, range))
    return INFC_FAULT_NONE;
  switch (infc_element_size(task->operands[0].dtype)) {
  case 1:
    return run(task, &nest, 1);
  case 2:
    return run(task, &nest, 2);
  case 4:
    return run(task, &nest, 4);
  default:
    return run(task, &nest, 8);
  }
}

bool infc_gather_elements_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_GATHER_ELEMENTS))
    return false;
  const infc_operand *x = &task->operands[0], *indices = &task->operands[1], *y = &task->operands[2];
  const uint32_t *dims = task->words + INFC_W_GATHER_ELEMENTS_D0;
  return infc_element_size(x->dtype) != 0 && y->dtype == x->dtype && infc_operand_is_index(indices) &&
         infc_nest_fits(step, dims) && infc_nest_is_dense(y, step, dims) &&
         infc_nest_operand_fits(indices, step, dims, task->words + INFC_W_GATHER_ELEMENTS_SI0, 0) &&
         infc_nest_indexed_fits(x, step, dims, task->words + INFC_W_GATHER_ELEMENTS_SX0,
                                task->words[INFC_W_GATHER_ELEMENTS_SIZE], task->words[INFC_W_GATHER_ELEMENTS_STRIDE]);
}

size_t infc_gather_elements_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
