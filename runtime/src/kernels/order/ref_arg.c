#include "order.h"

// The place of the extreme among every inner-th of n * inner elements. The first NaN is more extreme than any number.
#define ARG(name, T, DTYPE)                                                                                            \
  static int64_t arg_##name(const T *x, int64_t n, int64_t inner, bool smallest, bool last) {                          \
    int64_t place = 0;                                                                                                 \
    for (int64_t i = 1; i < n; i++) {                                                                                  \
      const T best = x[place * inner], v = x[i * inner];                                                               \
      const bool better = smallest ? v < best : v > best;                                                              \
      place = better || (v != v && best == best) || (last && v == best) ? i : place;                                   \
    }                                                                                                                  \
    return place;                                                                                                      \
  }
INFC_ORDERED_TYPES(ARG)
#undef ARG

infc_fault infc_arg__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const int64_t n = task->words[INFC_W_ARG_REDUCED], inner = task->words[INFC_W_ARG_INNER];
  const bool smallest = task->words[INFC_W_ARG_SMALLEST], last = task->words[INFC_W_ARG_LAST];
  const void *x = task->ptr[0];
  int64_t *y = task->ptr[1];
  for (int64_t at = range->row0 * inner; at < range->row1 * inner; at++) {
    const int64_t from = at / inner * n * inner + at % inner;
    switch (task->operands[0].dtype) {
#define CASE(name, T, DTYPE)                                                                                           \
  case INFC_DTYPE_##DTYPE:                                                                                             \
    y[at] = arg_##name((const T *)x + from, n, inner, smallest, last);                                                 \
    break;
      INFC_ORDERED_TYPES(CASE)
#undef CASE
    }
  }
  return INFC_FAULT_NONE;
}

bool infc_arg_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 1, INFC_WORDS_ARG) || !infc_step_has_no_cols(step))
    return false;
  const int64_t n = task->words[INFC_W_ARG_REDUCED], inner = task->words[INFC_W_ARG_INNER];
  int64_t row;
  return n > 0 && inner > 0 && !__builtin_mul_overflow(n, inner, &row) &&
         infc_type_is_ordered(task->operands[0].dtype) && task->operands[1].dtype == INFC_DTYPE_I64 &&
         infc_operand_holds_rows(&task->operands[0], step, row) &&
         infc_operand_holds_rows(&task->operands[1], step, inner);
}

size_t infc_arg_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
