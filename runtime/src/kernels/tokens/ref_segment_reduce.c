#include "tokens.h"

#include <string.h>

static void fold_sum(const float *x, int64_t rows, int64_t n, float *y) {
  memmove(y, x, (size_t)n * sizeof *y);
  for (int64_t r = 1; r < rows; r++)
    for (int64_t i = 0; i < n; i++)
      y[i] += x[r * n + i];
}

static void fold_max(const float *x, int64_t rows, int64_t n, float *y) {
  memmove(y, x, (size_t)n * sizeof *y);
  for (int64_t r = 1; r < rows; r++)
    for (int64_t i = 0; i < n; i++) {
      float v = x[r * n + i];
      y[i] = v <= y[i] || y[i] != y[i] ? y[i] : v; // NaN stays
    }
}

infc_fault infc_segment_reduce_run(const infc_task *task, const infc_range *range, const infc_worker *worker,
                                   const infc_segment_folds *folds) {
  const infc_operand *x_operand = &task->operands[0];
  uint32_t kind = task->words[INFC_W_SEGMENT_REDUCE_KIND];
  float epsilon = infc_word_f32(task->words[INFC_W_SEGMENT_REDUCE_EPSILON]);
  int64_t n = x_operand->row_stride, tokens = x_operand->dims[0];
  if (x_operand->rows_symbol >= 0)
    tokens = infc_symbol_within(worker, (uint32_t)x_operand->rows_symbol, tokens);
  const float *x = task->ptr[0];
  const void *offsets = task->ptr[1], *key_start = task->ptr[2];
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t b = range->row0; b < range->row1; b++) {
    float *y = (float *)task->ptr[3] + b * n;
    int64_t first = infc_read_index(kind == INFC_SEGMENT_FIRST ? offsets : key_start, INFC_DTYPE_I32, b);
    int64_t end = infc_read_index(offsets, INFC_DTYPE_I32, b + 1), count = end - first;
    if (first < 0 || end > tokens || count < 0)
      fault = INFC_FAULT_INDEX;
    if (first < 0 || end > tokens || count <= 0) {
      memset(y, 0, (size_t)n * sizeof *y);
      continue;
    }
    const float *rows = x + first * n;
    if (kind == INFC_SEGMENT_FIRST) {
      memmove(y, rows, (size_t)n * sizeof *y);
    } else if (kind == INFC_SEGMENT_MAX) {
      folds->max(rows, count, n, y);
    } else {
      folds->sum(rows, count, n, y);
      float divisor = (float)count > epsilon ? (float)count : epsilon;
      for (int64_t i = 0; kind == INFC_SEGMENT_MEAN && i < n; i++)
        y[i] /= divisor;
    }
  }
  return fault;
}

infc_fault infc_segment_reduce_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  static const infc_segment_folds folds = {fold_sum, fold_max};
  return infc_segment_reduce_run(task, range, worker, &folds);
}

bool infc_segment_reduce_validate(const infc_task *task, uint32_t symbol_count) {
  const infc_step *step = task->step;
  if (!infc_step_has(step, 3, 1, INFC_WORDS_SEGMENT_REDUCE) || !infc_step_has_no_cols(step) ||
      task->words[INFC_W_SEGMENT_REDUCE_KIND] >= INFC_SEGMENT_COUNT)
    return false;
  const infc_operand *x = &task->operands[0], *offsets = &task->operands[1], *key_start = &task->operands[2],
                     *y = &task->operands[3];
  if (x->dtype != INFC_DTYPE_F32 || x->rank != 2 || !infc_operand_dense(x) ||
      (x->rows_symbol >= 0 && (uint32_t)x->rows_symbol >= symbol_count))
    return false;
  return offsets->dtype == INFC_DTYPE_I32 && offsets->rank == 1 && infc_operand_dense(offsets) &&
         offsets->rows_symbol < 0 && offsets->dims[0] == (uint64_t)step->rows + 1 &&
         key_start->dtype == INFC_DTYPE_I32 && infc_operand_holds_rows(key_start, step, 1) &&
         y->dtype == INFC_DTYPE_F32 && infc_operand_holds_rows(y, step, x->dims[1]);
}

size_t infc_segment_reduce_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
