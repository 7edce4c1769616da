// Operands that are a step's rows of `inner` elements, some stride apart.
#ifndef INFC_GEMM_ROWS_H
#define INFC_GEMM_ROWS_H

#include "../operand.h"

// Elements from one row to the next, or -1 if the operand does not hold the step's rows: a matrix with any stride, or
// dense in any shape.
static inline int64_t infc_rows_stride_of(const infc_operand *operand, const infc_step *step, int64_t inner,
                                          uint8_t dtype) {
  if (operand->dtype != dtype || inner <= 0)
    return -1;
  const bool matrix = operand->rank == 2 && operand->packing == INFC_PACK_ROW_MAJOR && operand->dims[0] == step->rows &&
                      operand->rows_symbol == step->rows_symbol && operand->dims[1] == inner &&
                      operand->row_stride >= inner;
  if (matrix)
    return operand->row_stride;
  return infc_operand_holds_rows(operand, step, inner) ? inner : -1;
}

static inline int64_t infc_rows_stride(const infc_operand *operand, const infc_step *step, int64_t inner) {
  return infc_rows_stride_of(operand, step, inner, INFC_DTYPE_F32);
}

// A dense vector of n floats that no run-time extent shortens.
static inline bool infc_is_vector(const infc_operand *operand, int64_t n) {
  return operand->dtype == INFC_DTYPE_F32 && operand->rows_symbol < 0 && infc_operand_dense(operand) &&
         infc_operand_inner(operand, 0) == n;
}

#endif // INFC_GEMM_ROWS_H
