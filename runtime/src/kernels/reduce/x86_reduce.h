// Reductions of f32 on the vectors of the ISA header that the including file chose: along rows where inner is 1, else
// of vectors of columns. Other types go to the reference.
#include "reduce.h"

#define INLINE static inline __attribute__((always_inline))
#define F(name) INFC_VEC_NAME(name)

// The larger and the smaller; NaN if either is.
INLINE infc_vec nan_max(infc_vec a, infc_vec b) {
  return vec_if_nan(a, a, vec_max(a, b));
}
INLINE infc_vec nan_min(infc_vec a, infc_vec b) {
  return vec_if_nan(a, a, vec_min(a, b));
}

// `kind` is a constant wherever these are inlined.
INLINE infc_vec identity(uint32_t kind) {
  switch (kind) {
  case INFC_REDUCE_MAX:
    return vec_set(-__builtin_inff());
  case INFC_REDUCE_MIN:
    return vec_set(__builtin_inff());
  case INFC_REDUCE_PROD:
    return vec_set(1.0f);
  default:
    return vec_set(0.0f);
  }
}

INLINE infc_vec merge(infc_vec a, infc_vec b, uint32_t kind) {
  switch (kind) {
  case INFC_REDUCE_MAX:
    return nan_max(a, b);
  case INFC_REDUCE_MIN:
    return nan_min(a, b);
  case INFC_REDUCE_PROD:
    return a * b;
  default:
    return a + b;
  }
}

INLINE infc_vec accumulate(infc_vec a, infc_vec v, uint32_t kind) {
  switch (kind) {
  case INFC_REDUCE_L1:
    return a + vec_abs(v);
  case INFC_REDUCE_L2:
  case INFC_REDUCE_SUM_SQUARE:
    return vec_fma(v, v, a);
  default:
    return merge(a, v, kind);
  }
}

INLINE infc_vec finish(infc_vec a, int64_t n, uint32_t kind) {
  if (kind == INFC_REDUCE_MEAN)
    return a / vec_set((float)n);
  return kind == INFC_REDUCE_L2 ? vec_sqrt(a) : a;
}

// What log_sum_exp subtracts: the maximum, or nothing where that is not finite.
INLINE infc_vec finite_or_zero(infc_vec v) {
  return vec_if_positive(vec_set(__builtin_inff()) - vec_abs(v), v, vec_set(0.0f));
}

// n elements of a row; the result in every lane.
INLINE infc_vec along(const float *x, int64_t n, uint32_t kind) {
  const infc_vec start = identity(kind);
  infc_vec part[4] = {start, start, start, start};
#define STEP(at, lanes, k) part[k] = accumulate(part[k], vec_load_lanes(x + (at), lanes, start), kind)
  INFC_VEC_EACH(n, STEP);
#undef STEP
  infc_vec sum = merge(merge(part[0], part[1], kind), merge(part[2], part[3], kind), kind);
#define MERGE(a, b) merge(a, b, kind)
  INFC_VEC_FOLD(sum, MERGE);
#undef MERGE
  return finish(sum, n, kind);
}

INLINE infc_vec along_exp(const float *x, int64_t n) {
  const infc_vec lowest = vec_set(-__builtin_inff());
  infc_vec shift = finite_or_zero(along(x, n, INFC_REDUCE_MAX));
  infc_vec part[4] = {vec_set(0.0f), vec_set(0.0f), vec_set(0.0f), vec_set(0.0f)};
#define STEP(at, lanes, k) part[k] += F(exp)(vec_load_lanes(x + (at), lanes, lowest) - shift)
  INFC_VEC_EACH(n, STEP);
#undef STEP
  return F(log)(vec_sum((part[0] + part[1]) + (part[2] + part[3]))) + shift;
}

// `count` neighbouring vectors of columns over n rows that lie `stride` apart. The last vector holds `lanes` columns.
INLINE void columns(const float *x, float *y, int64_t n, int64_t stride, int count, int64_t lanes, uint32_t kind) {
  const infc_vec start = identity(kind);
  infc_vec a[4] = {start, start, start, start};
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < count; k++)
      a[k] = accumulate(a[k], vec_load_lanes(x + i * stride + k * INFC_VEC_LANES, lanes, start), kind);
  for (int k = 0; k < count; k++)
    vec_store_lanes(y + k * INFC_VEC_LANES, lanes, finish(a[k], n, kind));
}

INLINE void columns_exp(const float *x, float *y, int64_t n, int64_t stride, int count, int64_t lanes) {
  const infc_vec zero = vec_set(0.0f), lowest = identity(INFC_REDUCE_MAX);
  infc_vec shift[4] = {lowest, lowest, lowest, lowest}, sum[4] = {zero, zero, zero, zero};
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < count; k++)
      shift[k] = nan_max(shift[k], vec_load_lanes(x + i * stride + k * INFC_VEC_LANES, lanes, zero));
  for (int k = 0; k < count; k++)
    shift[k] = finite_or_zero(shift[k]);
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < count; k++)
      sum[k] += F(exp)(vec_load_lanes(x + i * stride + k * INFC_VEC_LANES, lanes, zero) - shift[k]);
  for (int k = 0; k < count; k++)
    vec_store_lanes(y + k * INFC_VEC_LANES, lanes, F(log)(sum[k]) + shift[k]);
}

INLINE void any_columns(const float *x, float *y, int64_t n, int64_t stride, int count, int64_t lanes, uint32_t kind) {
  if (kind == INFC_REDUCE_LOG_SUM_EXP)
    columns_exp(x, y, n, stride, count, lanes);
  else
    columns(x, y, n, stride, count, lanes, kind);
}

INLINE void run(const float *x, float *y, int64_t rows, int64_t n, int64_t inner, uint32_t kind) {
  const int64_t lanes = INFC_VEC_LANES;
  for (; rows > 0; rows--, x += n * inner, y += inner) {
    if (inner == 1) {
      *y = vec_lane0(kind == INFC_REDUCE_LOG_SUM_EXP ? along_exp(x, n) : along(x, n, kind));
      continue;
    }
    int64_t at = 0;
    for (; at + 4 * lanes <= inner; at += 4 * lanes)
      any_columns(x + at, y + at, n, inner, 4, lanes, kind);
    for (; at + lanes <= inner; at += lanes)
      any_columns(x + at, y + at, n, inner, 1, lanes, kind);
    if (at < inner)
      any_columns(x + at, y + at, n, inner, 1, inner - at, kind);
  }
}

#define CASE(name)                                                                                                     \
  case INFC_REDUCE_##name:                                                                                             \
    run(x, y, rows, n, inner, INFC_REDUCE_##name);                                                                     \
    break

infc_fault INFC_VEC_KERNEL(reduce)(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (task->operands[0].dtype != INFC_DTYPE_F32)
    return infc_reduce__scalar(task, range, worker);
  const int64_t n = task->words[INFC_W_REDUCE_REDUCED], inner = task->words[INFC_W_REDUCE_INNER];
  const int64_t rows = range->row1 - range->row0;
  const float *x = (const float *)task->ptr[0] + range->row0 * n * inner;
  float *y = (float *)task->ptr[1] + range->row0 * inner;
  switch (task->words[INFC_W_REDUCE_KIND]) {
    CASE(SUM);
    CASE(MEAN);
    CASE(MAX);
    CASE(MIN);
    CASE(PROD);
    CASE(L1);
    CASE(L2);
    CASE(SUM_SQUARE);
    CASE(LOG_SUM_EXP);
  }
  return INFC_FAULT_NONE;
}
