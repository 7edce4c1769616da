// quantize_rows: the scalar reference and what all its kernels rely on.
#include "quantize_rows.h"

bool infc_quantize_rows_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 2, INFC_WORDS_QUANTIZE_ROWS) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *x = &task->operands[0], *q = x + 1, *params = x + 2;
  const uint32_t kind = task->words[INFC_W_QUANTIZE_ROWS_KIND], group = task->words[INFC_W_QUANTIZE_ROWS_GROUP];
  const int64_t size = infc_operand_inner(x, 0), k = size > 0 && step->rows ? size / step->rows : 0;
  return kind < INFC_QUANTIZE_ROWS_COUNT && k > 0 && (group == 0 || k % group == 0) &&
         infc_rows_stride(x, step, k) > 0 && infc_operand_holds_rows(q, step, k) &&
         q->dtype == (kind == INFC_QUANTIZE_ROWS_SYMMETRIC ? INFC_DTYPE_I8 : INFC_DTYPE_U8) &&
         params->dtype == INFC_DTYPE_F32 && infc_operand_holds_rows(params, step, 2 * (group ? k / group : 1));
}

size_t infc_quantize_rows_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

static int quantized(float x, const infc_grid *grid, uint32_t kind) {
  const float r = rintf(x * grid->inverse);
  if (!(r >= -1024.0f)) // NaN too
    return infc_grid_low(kind);
  const int q = (r > 1024.0f ? 1024 : (int)r) + grid->zero, low = infc_grid_low(kind), high = infc_grid_high(kind);
  return q < low ? low : q > high ? high : q;
}

static void group_run(const infc_quantize_rows *s, const float *x, uint8_t *q, float *params) {
  float low = 0.0f, high = 0.0f, spoilt = 0.0f;
  for (int64_t i = 0; i < s->group; i++) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    spoilt += x[i] * 0.0f;
  }
  const infc_grid grid = infc_grid_of(low, high, spoilt, s->kind);
  int64_t sum = 0;
  for (int64_t i = 0; i < s->group; i++) {
    const int value = quantized(x[i], &grid, s->kind);
    q[i] = (uint8_t)value;
    sum += value;
  }
  params[0] = grid.scale;
  params[1] = (float)(s->kind == INFC_QUANTIZE_ROWS_SYMMETRIC ? sum : grid.zero);
}

infc_fault infc_quantize_rows_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_quantize_rows s = infc_quantize_rows_view(task);
  for (int64_t row = range->row0; row < range->row1; row++)
    for (int64_t g = 0; g < s.groups; g++)
      group_run(&s, s.x + row * s.ldx + g * s.group, s.q + row * s.k + g * s.group,
                s.params + 2 * (row * s.groups + g));
  return INFC_FAULT_NONE;
}
