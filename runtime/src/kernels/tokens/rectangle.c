// grow and crop: the caller's rectangle in the corner of one of the profile's size.
#include "tokens.h"

#include <string.h>

// Words of both operators; NONE where a dimension does not vary.
enum { NONE = -1 };
_Static_assert((int)INFC_W_GROW_BATCH_SYMBOL == (int)INFC_W_CROP_BATCH_SYMBOL &&
                   (int)INFC_W_GROW_SEQ_SYMBOL == (int)INFC_W_CROP_SEQ_SYMBOL,
               "one reading of both operators' words");

// A row of a rectangle are its positions, bytes each.
typedef struct corner {
  int64_t rows;       // of the caller
  size_t part, whole; // bytes of a row: of the caller's, of the profile's
} corner;

static int64_t extent(const infc_worker *worker, uint32_t symbol, int64_t bound) {
  return (int32_t)symbol == NONE ? bound : infc_symbol_within(worker, symbol, bound);
}

static corner corner_of(const infc_task *task, const infc_worker *worker, const infc_operand *rectangle) {
  size_t position = (size_t)infc_operand_inner(rectangle, 2) * infc_element_size(rectangle->dtype);
  return (corner){
      .rows = extent(worker, task->words[INFC_W_GROW_BATCH_SYMBOL], rectangle->dims[0]),
      .part = (size_t)extent(worker, task->words[INFC_W_GROW_SEQ_SYMBOL], rectangle->dims[1]) * position,
      .whole = rectangle->dims[1] * position,
  };
}

infc_fault infc_grow_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const corner c = corner_of(task, worker, &task->operands[0]);
  for (int64_t row = range->row0; row < range->row1; row++) {
    char *y = (char *)task->ptr[1] + (size_t)row * c.whole;
    size_t part = row < c.rows ? c.part : 0;
    if (part)
      memmove(y, (const char *)task->ptr[0] + (size_t)row * c.part, part);
    memset(y + part, 0, c.whole - part);
  }
  return INFC_FAULT_NONE;
}

infc_fault infc_crop_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const corner c = corner_of(task, worker, &task->operands[1]);
  int64_t end = range->row1 < c.rows ? range->row1 : c.rows;
  for (int64_t row = range->row0; row < end; row++)
    memmove((char *)task->ptr[1] + (size_t)row * c.part, (const char *)task->ptr[0] + (size_t)row * c.whole, c.part);
  return INFC_FAULT_NONE;
}

static bool symbol_ok(uint32_t symbol, uint32_t symbol_count) {
  return (int32_t)symbol == NONE || symbol < symbol_count;
}

// `rectangle` may vary by its symbols, `whole` has the same dimensions and does not.
static bool corner_validate(const infc_task *task, uint32_t symbol_count, const infc_operand *rectangle,
                            const infc_operand *whole) {
  uint32_t batch = task->words[INFC_W_GROW_BATCH_SYMBOL];
  for (int d = 0; d < INFC_MAX_RANK; d++)
    if (rectangle->dims[d] != whole->dims[d])
      return false;
  return infc_step_has_no_cols(task->step) && task->step->rows_symbol < 0 && task->step->rows == whole->dims[0] &&
         symbol_ok(batch, symbol_count) && symbol_ok(task->words[INFC_W_GROW_SEQ_SYMBOL], symbol_count) &&
         rectangle->dtype == whole->dtype && rectangle->rank == whole->rank && infc_operand_dense(rectangle) &&
         infc_operand_dense(whole) && whole->rows_symbol < 0 &&
         (rectangle->rows_symbol < 0 || rectangle->rows_symbol == (int32_t)batch);
}

bool infc_grow_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_operand *o = task->operands;
  return infc_step_has(task->step, 1, 1, INFC_WORDS_GROW) && corner_validate(task, symbol_count, &o[0], &o[1]);
}

bool infc_crop_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_operand *o = task->operands;
  return infc_step_has(task->step, 1, 1, INFC_WORDS_CROP) && corner_validate(task, symbol_count, &o[1], &o[0]);
}

size_t infc_grow_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

size_t infc_crop_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
