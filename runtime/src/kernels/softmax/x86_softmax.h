// Softmax on the vectors of the ISA header that the including file chose: maximum; exponentials and their sum;
// quotient. y may be x.
#include "softmax.h"

#define INLINE static inline __attribute__((always_inline))
#define F(name) INFC_VEC_NAME(name)

INLINE infc_vec row_highest(const float *x, int64_t n) {
  const infc_vec lowest = vec_set(-__builtin_inff());
  infc_vec part[4] = {lowest, lowest, lowest, lowest};
#define STEP(at, lanes, k) part[k] = vec_max(part[k], vec_load_lanes(x + (at), lanes, lowest))
  INFC_VEC_EACH(n, STEP);
#undef STEP
  return vec_highest(vec_max(vec_max(part[0], part[1]), vec_max(part[2], part[3])));
}

// Sum of exp(x - highest); with `store`, the terms go to y.
INLINE infc_vec row_exp(const float *x, float *y, int64_t n, infc_vec highest, bool store) {
  const infc_vec lowest = vec_set(-__builtin_inff());
  infc_vec part[4] = {vec_set(0.0f), vec_set(0.0f), vec_set(0.0f), vec_set(0.0f)};
#define STEP(at, lanes, k)                                                                                             \
  do {                                                                                                                 \
    infc_vec e = F(exp_negative)(vec_load_lanes(x + (at), lanes, lowest) - highest);                                   \
    part[k] += e;                                                                                                      \
    if (store)                                                                                                         \
      vec_store_lanes(y + (at), lanes, e);                                                                             \
  } while (0)
  INFC_VEC_EACH(n, STEP);
#undef STEP
  return vec_sum((part[0] + part[1]) + (part[2] + part[3]));
}

INLINE void softmax_row(const float *x, float *y, int64_t n) {
  infc_vec factor = vec_set(1.0f) / row_exp(x, y, n, row_highest(x, n), true);
#define STEP(at, lanes, k) vec_store_lanes(y + (at), lanes, vec_mul(vec_load_lanes(y + (at), lanes, factor), factor))
  INFC_VEC_EACH(n, STEP);
#undef STEP
}

INLINE void log_softmax_row(const float *x, float *y, int64_t n) {
  infc_vec highest = row_highest(x, n), log_sum = F(log)(row_exp(x, NULL, n, highest, false));
#define STEP(at, lanes, k)                                                                                             \
  vec_store_lanes(y + (at), lanes, (vec_load_lanes(x + (at), lanes, highest) - highest) - log_sum)
  INFC_VEC_EACH(n, STEP);
#undef STEP
}

infc_fault INFC_VEC_KERNEL(softmax_f32)(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (task->operands[0].dtype != INFC_DTYPE_F32)
    return infc_softmax_f32__scalar(task, range, worker);
  const int64_t n = task->operands[0].dims[task->operands[0].rank - 1];
  const float *x = (const float *)task->ptr[0] + range->row0 * n, *end = (const float *)task->ptr[0] + range->row1 * n;
  float *y = (float *)task->ptr[1] + range->row0 * n;
  if (task->words[INFC_W_SOFTMAX_LOG])
    for (; x < end; x += n, y += n)
      log_softmax_row(x, y, n);
  else
    for (; x < end; x += n, y += n)
      softmax_row(x, y, n);
  return INFC_FAULT_NONE;
}
