// The loops of resample, which every file of the family compiles for its own instruction set: all have the same sums.
#ifndef INFC_KERNELS_RESAMPLE_H
#define INFC_KERNELS_RESAMPLE_H

#include "../operand.h"

#include <string.h>

#define INFC_RESAMPLE_BLOCK 64 // floats that stay in registers over all taps

static inline __attribute__((always_inline)) void infc_resample_block(const float *x, const float *weights, float *y,
                                                                      int64_t taps, int64_t inner, int64_t width) {
  float sum[INFC_RESAMPLE_BLOCK];
  for (int64_t i = 0; i < width; i++)
    sum[i] = weights[0] * x[i];
  for (int64_t t = 1; t < taps; t++)
    for (int64_t i = 0; i < width; i++)
      sum[i] += weights[t] * x[t * inner + i];
  for (int64_t i = 0; i < width; i++)
    y[i] = sum[i];
}

// Rows of one element: images step by step, without a division each. `taps` is a constant where the compiler should see
// it.
static inline __attribute__((always_inline)) infc_fault infc_resample_line(const infc_task *task,
                                                                           const infc_range *range, int64_t taps) {
  const int64_t n = task->words[INFC_W_RESAMPLE_N], out = task->words[INFC_W_RESAMPLE_OUT];
  const float *x = (const float *)task->ptr[0] + range->row0 / out * n, *weights = task->ptr[2];
  float *y = task->ptr[3];
  infc_fault fault = INFC_FAULT_NONE;
  for (int64_t row = range->row0, o = row % out; row < range->row1; row++) {
    const int64_t first = infc_read_index(task->ptr[1], INFC_DTYPE_I32, o);
    const bool inside = first >= 0 && first <= n - taps;
    float sum = 0;
    for (int64_t t = 0; t < taps && inside; t++)
      sum += weights[o * taps + t] * x[first + t];
    y[row] = sum;
    fault = inside ? fault : INFC_FAULT_INDEX;
    if (++o == out) {
      o = 0;
      x += n;
    }
  }
  return fault;
}

static inline __attribute__((always_inline)) infc_fault infc_resample(const infc_task *task, const infc_range *range) {
  const int64_t n = task->words[INFC_W_RESAMPLE_N], out = task->words[INFC_W_RESAMPLE_OUT];
  const int64_t taps = task->words[INFC_W_RESAMPLE_TAPS], inner = task->words[INFC_W_RESAMPLE_INNER];
  infc_fault fault = INFC_FAULT_NONE;
  if (inner == 1)
    return taps == 2   ? infc_resample_line(task, range, 2)
           : taps == 4 ? infc_resample_line(task, range, 4)
                       : infc_resample_line(task, range, taps);
  for (int64_t row = range->row0; row < range->row1; row++) {
    const int64_t first = infc_read_index(task->ptr[1], INFC_DTYPE_I32, row % out);
    const float *weights = (const float *)task->ptr[2] + row % out * taps;
    float *y = (float *)task->ptr[3] + row * inner;
    if (first < 0 || first > n - taps) {
      memset(y, 0, (size_t)inner * sizeof *y);
      fault = INFC_FAULT_INDEX;
      continue;
    }
    const float *x = (const float *)task->ptr[0] + (row / out * n + first) * inner;
    int64_t i = 0;
    for (; i + INFC_RESAMPLE_BLOCK <= inner; i += INFC_RESAMPLE_BLOCK)
      infc_resample_block(x + i, weights, y + i, taps, inner, INFC_RESAMPLE_BLOCK);
    if (i < inner)
      infc_resample_block(x + i, weights, y + i, taps, inner, inner - i);
  }
  return fault;
}

#endif // INFC_KERNELS_RESAMPLE_H
