// The loop nests of `binary`, `select` and `copy`: INFC_NEST dimensions and, for each operand, a signed stride in
// elements for each. In the words the dimensions come first, then one group of strides an operand.
#ifndef INFC_KERNELS_NEST_H
#define INFC_KERNELS_NEST_H

#include "operand.h"

#define INFC_NEST_OPERANDS 4

// Levels from the innermost outwards.
typedef struct infc_nest {
  int levels;
  int64_t dims[INFC_NEST];
  int64_t strides[INFC_NEST_OPERANDS][INFC_NEST];
  int64_t start[INFC_NEST_OPERANDS]; // element of the first iteration
} infc_nest;

// The part of a nest a range asks for, in as few levels as express it: a dimension of 1 is dropped and neighbours that
// all operands step through evenly are one. `strided` operands have strides in the words; if `dense`, one more follows
// that has none because it is dense in the nest's own dimensions. False: nothing to do.
static inline __attribute__((always_inline)) bool infc_nest_init(infc_nest *nest, const uint32_t *words, int strided,
                                                                 bool dense, const infc_range *range) {
  int64_t rows = range->row1 - range->row0, dense_stride = 1, dense_row = 1;
  if (rows <= 0)
    return false;
  int n = 0;
  for (int i = INFC_NEST - 1; i >= 0; i--) {
    int64_t dim = i ? (int64_t)words[i] : rows;
    if (i == 0)
      dense_row = dense_stride;
    if (dim == 1)
      continue;
    bool merge = n > 0;
    for (int k = 0; k < strided; k++) {
      int64_t stride = (int32_t)words[INFC_NEST * (k + 1) + i];
      nest->strides[k][n] = stride;
      if (n)
        merge &= stride == nest->strides[k][n - 1] * nest->dims[n - 1];
    }
    if (dense) {
      nest->strides[strided][n] = dense_stride;
      dense_stride *= dim;
    }
    if (merge)
      nest->dims[n - 1] *= dim;
    else
      nest->dims[n++] = dim;
  }
  if (n == 0) {
    nest->dims[n++] = 1;
    for (int k = 0; k < strided + dense; k++)
      nest->strides[k][0] = 1;
  }
  nest->levels = n;
  for (int k = 0; k < strided; k++)
    nest->start[k] = range->row0 * (int32_t)words[INFC_NEST * (k + 1)];
  if (dense)
    nest->start[strided] = range->row0 * dense_row;
  return true;
}

// Moves `at` (an element of each operand) to the next iteration of the levels from `level` on. False after the last.
static inline __attribute__((always_inline)) bool infc_nest_next(const infc_nest *nest, int operands, int level,
                                                                 int64_t *index, int64_t *at) {
  for (; level < nest->levels; level++) {
    bool more = ++index[level] < nest->dims[level];
    int64_t steps = more ? 1 : 1 - nest->dims[level];
    for (int k = 0; k < operands; k++)
      at[k] += nest->strides[k][level] * steps;
    if (more)
      return true;
    index[level] = 0;
  }
  return false;
}

// True if every element the nest touches lies in the operand. Where the operand's leading dimension follows the step's
// run-time extent, row i of the nest must stay in row i of the operand.
static inline bool infc_nest_operand_fits(const infc_operand *operand, const infc_step *step, const uint32_t *dims,
                                          const uint32_t *strides, uint32_t offset) {
  bool follows = operand->rows_symbol >= 0;
  if (operand->packing != INFC_PACK_ROW_MAJOR ||
      (follows && (operand->rows_symbol != step->rows_symbol || operand->dims[0] != dims[0] ||
                   (dims[0] > 1 && ((int32_t)strides[0] < 0 || strides[0] != operand->row_stride)))))
    return false;
  int64_t low = offset, high = offset;
  for (int i = follows; i < INFC_NEST; i++) {
    int64_t reach = ((int64_t)dims[i] - 1) * (int32_t)strides[i]; // below 2^63
    int64_t *end = reach < 0 ? &low : &high;
    if (__builtin_add_overflow(*end, reach, end))
      return false;
  }
  return low >= 0 && high < (follows ? infc_operand_inner(operand, 1) : infc_operand_extent(operand));
}

// True if the nest's dimensions are those of the step: none is 0, the leading one is what a ROWS split divides, and
// nothing else can be divided.
static inline bool infc_nest_fits(const infc_step *step, const uint32_t *dims) {
  for (int i = 0; i < INFC_NEST; i++)
    if (dims[i] == 0)
      return false;
  return dims[0] == step->rows && infc_step_has_no_cols(step);
}

// True if `operand` is dense in the nest's dimensions and led by the step's run-time extent where there is one.
static inline bool infc_nest_is_dense(const infc_operand *operand, const infc_step *step, const uint32_t *dims) {
  int64_t inner = 1;
  for (int i = 1; i < INFC_NEST; i++)
    if (__builtin_mul_overflow(inner, (int64_t)dims[i], &inner))
      return false;
  return infc_operand_holds_rows(operand, step, inner);
}

#endif // INFC_KERNELS_NEST_H
