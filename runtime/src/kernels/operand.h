// What validators ask of operands. A task's operands have each been checked alone (see infc_validate_fn): these hold
// them against the step and against each other, on any values, without overflow.
#ifndef INFC_KERNELS_OPERAND_H
#define INFC_KERNELS_OPERAND_H

#include "kernel.h"

// Bytes of an element; 0 for an unknown type.
static inline size_t infc_element_size(uint8_t dtype) {
  static const uint8_t sizes[] = INFC_DTYPE_SIZES;
  return dtype < sizeof sizes ? sizes[dtype] : 0;
}

// Elements of one index of the first `skip` dimensions, or -1 if that overflows.
static inline int64_t infc_operand_inner(const infc_operand *operand, int skip) {
  int64_t count = 1;
  for (int i = skip; i < operand->rank; i++)
    if (__builtin_mul_overflow(count, (int64_t)operand->dims[i], &count))
      return -1;
  return count;
}

// Elements from the operand's first to its last, both included, or -1 if that overflows.
static inline int64_t infc_operand_extent(const infc_operand *operand) {
  int64_t row = infc_operand_inner(operand, 1), rest;
  if (row < 0 || operand->dims[0] == 0 ||
      __builtin_mul_overflow((int64_t)operand->dims[0] - 1, (int64_t)operand->row_stride, &rest) ||
      __builtin_add_overflow(rest, row, &rest))
    return -1;
  return rest;
}

static inline bool infc_operand_dense(const infc_operand *operand) {
  return operand->packing == INFC_PACK_ROW_MAJOR && operand->row_stride == infc_operand_inner(operand, 1);
}

static inline bool infc_operand_is_index(const infc_operand *operand) {
  return operand->dtype == INFC_DTYPE_I32 || operand->dtype == INFC_DTYPE_I64;
}

// A dense operand that holds the step's rows of `inner` elements each: led by the step's run-time extent, or all
// constant.
static inline bool infc_operand_holds_rows(const infc_operand *operand, const infc_step *step, int64_t inner) {
  int64_t elements;
  if (inner < 0 || !infc_operand_dense(operand) || operand->rows_symbol != step->rows_symbol)
    return false;
  if (step->rows_symbol >= 0)
    return operand->dims[0] == step->rows && infc_operand_inner(operand, 1) == inner;
  return !__builtin_mul_overflow((int64_t)step->rows, inner, &elements) && infc_operand_inner(operand, 0) == elements;
}

static inline bool infc_step_has(const infc_step *step, unsigned inputs, unsigned outputs, unsigned words) {
  return step->input_count == inputs && step->output_count == outputs && step->word_count == words;
}

// For operators without columns.
static inline bool infc_step_has_no_cols(const infc_step *step) {
  return step->split[0] != INFC_SPLIT_COLS && step->split[1] != INFC_SPLIT_COLS;
}

static inline bool infc_step_is_serial(const infc_step *step) {
  return step->split[0] == INFC_SPLIT_SERIAL && step->split[1] == INFC_SPLIT_SERIAL;
}

// An element of an i32 or i64 operand, read once.
static inline int64_t infc_read_index(const void *data, uint8_t dtype, int64_t at) {
  return dtype == INFC_DTYPE_I64 ? ((const volatile int64_t *)data)[at] : ((const volatile int32_t *)data)[at];
}

#endif // INFC_KERNELS_OPERAND_H
