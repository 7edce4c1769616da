#include "../operand.h"

#include <string.h>

infc_fault infc_fill_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)range, (void)worker;
  size_t size = infc_element_size(task->operands[0].dtype);
  size_t bytes = (size_t)infc_operand_inner(&task->operands[0], 0) * size;
  uint64_t value = task->words[INFC_W_FILL_VALUE] | (uint64_t)task->words[INFC_W_FILL_VALUE_HIGH] << 32;
  char *y = task->ptr[0];
  uint64_t pattern = 0; // eight bytes of elements
  for (size_t i = 0; i < sizeof pattern; i += size)
    memcpy((char *)&pattern + i, &value, size);
  size_t i = 0;
  for (; i + sizeof pattern <= bytes; i += sizeof pattern)
    memcpy(y + i, &pattern, sizeof pattern);
  memcpy(y + i, &pattern, bytes - i);
  return INFC_FAULT_NONE;
}

bool infc_fill_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_operand *y = &task->operands[0];
  return infc_step_has(task->step, 0, 1, INFC_WORDS_FILL) && infc_step_is_serial(task->step) &&
         infc_element_size(y->dtype) != 0 && infc_operand_dense(y) && y->rows_symbol < 0 &&
         infc_operand_inner(y, 0) >= 0;
}

size_t infc_fill_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
