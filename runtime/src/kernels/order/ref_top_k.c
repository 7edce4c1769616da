#include "order.h"

// A heap of the k best places so far, the worst on top. Another thread of a hostile program may write to x meanwhile:
// places stay below n whatever the comparisons say.
#define TOP_K(name, T, DTYPE)                                                                                          \
  static bool before_##name(const T *x, int32_t i, int32_t j, bool smallest) {                                         \
    const T a = x[i], b = x[j];                                                                                        \
    if (a == b || (a != a && b != b))                                                                                  \
      return i < j;                                                                                                    \
    const bool greater = a != a || a > b;                                                                              \
    return b != b ? smallest : greater != smallest;                                                                    \
  }                                                                                                                    \
  static void sink_##name(const T *x, int32_t *heap, int64_t size, int64_t at, bool smallest) {                        \
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {                                                     \
      if (child + 1 < size && before_##name(x, heap[child], heap[child + 1], smallest))                                \
        child++;                                                                                                       \
      if (!before_##name(x, heap[at], heap[child], smallest))                                                          \
        return;                                                                                                        \
      const int32_t moved = heap[at];                                                                                  \
      heap[at] = heap[child];                                                                                          \
      heap[child] = moved;                                                                                             \
    }                                                                                                                  \
  }                                                                                                                    \
  static void top_k_##name(const T *x, T *values, int64_t *indices, int32_t *heap, int64_t n, int64_t k,               \
                           bool smallest) {                                                                            \
    for (int64_t i = 0; i < k; i++)                                                                                    \
      heap[i] = (int32_t)i;                                                                                            \
    for (int64_t i = k / 2; i-- > 0;)                                                                                  \
      sink_##name(x, heap, k, i, smallest);                                                                            \
    for (int64_t i = k; i < n; i++)                                                                                    \
      if (before_##name(x, (int32_t)i, heap[0], smallest)) {                                                           \
        heap[0] = (int32_t)i;                                                                                          \
        sink_##name(x, heap, k, 0, smallest);                                                                          \
      }                                                                                                                \
    for (int64_t size = k; size-- > 1;) {                                                                              \
      const int32_t worst = heap[0];                                                                                   \
      heap[0] = heap[size];                                                                                            \
      heap[size] = worst;                                                                                              \
      sink_##name(x, heap, size, 0, smallest);                                                                         \
    }                                                                                                                  \
    for (int64_t i = 0; i < k; i++) {                                                                                  \
      values[i] = x[heap[i]];                                                                                          \
      indices[i] = heap[i];                                                                                            \
    }                                                                                                                  \
  }
INFC_ORDERED_TYPES(TOP_K)
#undef TOP_K

infc_fault infc_top_k__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const int64_t n = task->words[INFC_W_TOP_K_N], k = task->words[INFC_W_TOP_K_K];
  const bool smallest = task->words[INFC_W_TOP_K_SMALLEST];
  for (int64_t row = range->row0; row < range->row1; row++) {
    int64_t *indices = (int64_t *)task->ptr[2] + row * k;
    switch (task->operands[0].dtype) {
#define CASE(name, T, DTYPE)                                                                                           \
  case INFC_DTYPE_##DTYPE:                                                                                             \
    top_k_##name((const T *)task->ptr[0] + row * n, (T *)task->ptr[1] + row * k, indices, worker->scratch, n, k,       \
                 smallest);                                                                                            \
    break;
      INFC_ORDERED_TYPES(CASE)
#undef CASE
    }
  }
  return INFC_FAULT_NONE;
}

bool infc_top_k_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 2, INFC_WORDS_TOP_K) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *x = &task->operands[0], *values = &task->operands[1], *indices = &task->operands[2];
  const uint32_t n = task->words[INFC_W_TOP_K_N], k = task->words[INFC_W_TOP_K_K];
  return k > 0 && k <= n && n <= INT32_MAX && infc_type_is_ordered(x->dtype) && values->dtype == x->dtype &&
         indices->dtype == INFC_DTYPE_I64 && infc_operand_holds_rows(x, step, n) &&
         infc_operand_holds_rows(values, step, k) && infc_operand_holds_rows(indices, step, k);
}

size_t infc_top_k_scratch(const infc_task *task) {
  return task->words[INFC_W_TOP_K_K] * sizeof(int32_t);
}
