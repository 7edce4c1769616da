#include "embed_sum.h"

static void add(const infc_table_row *rows, uint32_t count, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float sum = infc_table_number(rows[0], i);
    for (uint32_t k = 1; k < count; k++)
      sum += infc_table_number(rows[k], i);
    y[i] = sum;
  }
}

infc_fault infc_embed_sum_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_embed_sum_run(task, range, add);
}

bool infc_embed_sum_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->word_count != INFC_WORDS_EMBED_SUM)
    return false;
  uint32_t count = task->words[INFC_W_EMBED_SUM_COUNT];
  if (count < 1 || count > INFC_EMBED_SUM_MAX || !infc_step_has(step, 2 * count, 1, INFC_WORDS_EMBED_SUM) ||
      !infc_step_has_no_cols(step))
    return false;
  const infc_operand *y = &task->operands[2 * count];
  int64_t n = task->operands[1].row_stride;
  for (uint32_t i = 0; i < count; i++) {
    const infc_operand *ids = &task->operands[2 * i], *table = &task->operands[2 * i + 1];
    if (!infc_operand_is_index(ids) || !infc_operand_holds_rows(ids, step, 1) ||
        (table->dtype != INFC_DTYPE_F32 && table->dtype != INFC_DTYPE_BF16 && table->dtype != INFC_DTYPE_F16) ||
        table->rank != 2 || table->rows_symbol >= 0 || !infc_operand_dense(table) || table->dims[1] != n)
      return false;
  }
  return y->dtype == INFC_DTYPE_F32 && infc_operand_holds_rows(y, step, n);
}

size_t infc_embed_sum_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
