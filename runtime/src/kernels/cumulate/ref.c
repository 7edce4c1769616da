#include "../operand.h"

// Runs over every inner-th element, `step` of them apart. Sums and products of floats are kept in double, so that long
// sums stay exact enough; those of integers wrap.
#define CUMULATE(name, T, W)                                                                                           \
  static void cumulate_##name(const T *x, T *y, int64_t n, int64_t step, bool product, bool exclusive) {               \
    W total = product ? 1 : 0;                                                                                         \
    for (int64_t i = 0; i < n; i++, x += step, y += step) {                                                            \
      const W before = total, v = (W) * x;                                                                             \
      total = product ? total * v : total + v;                                                                         \
      *y = (T)(exclusive ? before : total);                                                                            \
    }                                                                                                                  \
  }
CUMULATE(f32, float, double)
CUMULATE(f64, double, double)
CUMULATE(i32, int32_t, uint32_t)
CUMULATE(i64, int64_t, uint64_t)

infc_fault infc_cumulate__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const int64_t n = task->words[INFC_W_CUMULATE_N], inner = task->words[INFC_W_CUMULATE_INNER];
  const bool product = task->words[INFC_W_CUMULATE_KIND] == INFC_CUMULATE_PROD;
  const bool exclusive = task->words[INFC_W_CUMULATE_EXCLUSIVE], reverse = task->words[INFC_W_CUMULATE_REVERSE];
  const int64_t step = reverse ? -inner : inner;
  for (int64_t row = range->row0; row < range->row1; row++)
    for (int64_t i = 0; i < inner; i++) {
      const int64_t at = row * n * inner + i + (reverse ? (n - 1) * inner : 0);
      switch (task->operands[0].dtype) {
#define CASE(name, T, DTYPE)                                                                                           \
  case INFC_DTYPE_##DTYPE:                                                                                             \
    cumulate_##name((const T *)task->ptr[0] + at, (T *)task->ptr[1] + at, n, step, product, exclusive);                \
    break
        CASE(f32, float, F32);
        CASE(f64, double, F64);
        CASE(i32, int32_t, I32);
        CASE(i64, int64_t, I64);
      }
    }
  return INFC_FAULT_NONE;
}

bool infc_cumulate_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 1, INFC_WORDS_CUMULATE) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  const int64_t n = task->words[INFC_W_CUMULATE_N], inner = task->words[INFC_W_CUMULATE_INNER];
  int64_t row;
  return task->words[INFC_W_CUMULATE_KIND] < INFC_CUMULATE_COUNT && n > 0 && inner > 0 &&
         !__builtin_mul_overflow(n, inner, &row) &&
         (x->dtype == INFC_DTYPE_F32 || x->dtype == INFC_DTYPE_F64 || infc_operand_is_index(x)) &&
         y->dtype == x->dtype && infc_operand_holds_rows(x, step, row) && infc_operand_holds_rows(y, step, row);
}

size_t infc_cumulate_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
