#include "../operand.h"

#include <string.h>

// Moves, for each index, one run of elements; `bytes` is a constant where the compiler should see it.
static inline __attribute__((always_inline)) infc_fault gather(const infc_task *task, const infc_range *range,
                                                               size_t bytes) {
  int64_t axis = task->words[INFC_W_GATHER_AXIS], n = infc_operand_inner(&task->operands[1], 0);
  uint8_t index_type = task->operands[1].dtype;
  char *y = (char *)task->ptr[2] + (size_t)(range->row0 * n) * bytes;
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = range->row0; row < range->row1; row++) {
    const char *data = (const char *)task->ptr[0] + (size_t)(row * axis) * bytes;
    for (int64_t i = 0; i < n; i++, y += bytes) {
      int64_t index = infc_read_index(task->ptr[1], index_type, i);
      if (index < 0)
        index += axis;
      if (index >= 0 && index < axis) {
        memmove(y, data + (size_t)index * bytes, bytes);
      } else {
        memset(y, 0, bytes);
        fault = INFC_FAULT_INDEX;
      }
    }
  }
  return fault;
}

infc_fault infc_gather_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  size_t bytes = task->words[INFC_W_GATHER_INNER] * infc_element_size(task->operands[0].dtype);
  switch (bytes) {
  case 1:
    return gather(task, range, 1);
  case 2:
    return gather(task, range, 2);
  case 4:
    return gather(task, range, 4);
  case 8:
    return gather(task, range, 8);
  default:
    return gather(task, range, bytes);
  }
}

bool infc_gather_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_GATHER) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *data = &task->operands[0], *indices = &task->operands[1], *y = &task->operands[2];
  int64_t axis = task->words[INFC_W_GATHER_AXIS], inner = task->words[INFC_W_GATHER_INNER];
  int64_t n = infc_operand_inner(indices, 0), data_row, y_row;
  return axis > 0 && inner > 0 && infc_element_size(data->dtype) != 0 && y->dtype == data->dtype &&
         infc_operand_is_index(indices) && infc_operand_dense(indices) && indices->rows_symbol < 0 && n > 0 &&
         !__builtin_mul_overflow(axis, inner, &data_row) && !__builtin_mul_overflow(n, inner, &y_row) &&
         infc_operand_holds_rows(data, step, data_row) && infc_operand_holds_rows(y, step, y_row);
}

size_t infc_gather_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
