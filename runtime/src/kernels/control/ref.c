// Control flow: branch and repeat say whether what follows is to run, the interpreter does the rest. And place, the
// counterpart of gather, which collects what iterations make.
#include "../operand.h"

#include <string.h>

// One element that is read at a single address.
static bool is_scalar(const infc_operand *operand, uint8_t dtype) {
  return operand->dtype == dtype && operand->packing == INFC_PACK_ROW_MAJOR && operand->rows_symbol < 0 &&
         infc_operand_inner(operand, 0) == 1;
}

static bool is_control(const infc_step *step, uint32_t inputs, uint32_t outputs, uint32_t words) {
  return infc_step_has(step, inputs, outputs, words) && infc_step_has_no_cols(step) && step->rows_symbol < 0;
}

infc_fault infc_branch__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)range;
  worker->taken = *(const uint8_t *)task->ptr[0] != 0;
  return INFC_FAULT_NONE;
}

bool infc_branch_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  return is_control(task->step, 1, 0, INFC_WORDS_BRANCH) && is_scalar(&task->operands[0], INFC_DTYPE_BOOL);
}

size_t infc_branch_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

infc_fault infc_repeat__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)range;
  const bool counts = task->words[INFC_W_REPEAT_HAS_TRIP_COUNT], asks = task->words[INFC_W_REPEAT_HAS_CONDITION];
  worker->taken = (!counts || worker->iteration < infc_read_index(task->ptr[0], INFC_DTYPE_I64, 0)) &&
                  (!asks || *(const uint8_t *)task->ptr[counts] != 0);
  if (worker->taken && task->words[INFC_W_REPEAT_HAS_ITERATION])
    *(int64_t *)task->ptr[counts + asks] = worker->iteration;
  return INFC_FAULT_NONE;
}

bool infc_repeat_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->word_count != INFC_WORDS_REPEAT)
    return false;
  const uint32_t counts = task->words[INFC_W_REPEAT_HAS_TRIP_COUNT], asks = task->words[INFC_W_REPEAT_HAS_CONDITION],
                 tells = task->words[INFC_W_REPEAT_HAS_ITERATION];
  return counts <= 1 && asks <= 1 && tells <= 1 && is_control(step, counts + asks, tells, INFC_WORDS_REPEAT) &&
         (!counts || is_scalar(&task->operands[0], INFC_DTYPE_I64)) &&
         (!asks || is_scalar(&task->operands[counts], INFC_DTYPE_BOOL)) &&
         (!tells || is_scalar(&task->operands[counts + asks], INFC_DTYPE_I64));
}

size_t infc_repeat_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

infc_fault infc_place_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const int64_t axis = task->words[INFC_W_PLACE_AXIS];
  const size_t bytes = task->words[INFC_W_PLACE_INNER] * infc_element_size(task->operands[0].dtype);
  int64_t index = infc_read_index(task->ptr[1], task->operands[1].dtype, 0);
  index += index < 0 ? axis : 0;
  if (index < 0 || index >= axis)
    return INFC_FAULT_INDEX;
  const char *x = task->ptr[0];
  char *y = task->ptr[2];
  for (int64_t row = range->row0; row < range->row1; row++)
    memmove(y + (size_t)(row * axis + index) * bytes, x + (size_t)row * bytes, bytes);
  return INFC_FAULT_NONE;
}

bool infc_place_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_PLACE) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *x = &task->operands[0], *index = &task->operands[1], *y = &task->operands[2];
  const int64_t axis = task->words[INFC_W_PLACE_AXIS], inner = task->words[INFC_W_PLACE_INNER];
  int64_t row;
  return axis > 0 && inner > 0 && infc_element_size(x->dtype) != 0 && y->dtype == x->dtype &&
         infc_operand_is_index(index) && is_scalar(index, index->dtype) && !__builtin_mul_overflow(axis, inner, &row) &&
         infc_operand_holds_rows(x, step, inner) && infc_operand_holds_rows(y, step, row);
}

size_t infc_place_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
