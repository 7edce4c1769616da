#ifndef INFC_KERNELS_UNARY_H
#define INFC_KERNELS_UNARY_H

#include "../operand.h"

// Elements of one row of x, an operand of the step's rows; -1 if the rows do not divide it. Any shape is read as [rows,
// inner].
static inline int64_t infc_unary_inner(const infc_task *task) {
  const infc_operand *x = &task->operands[0];
  if (x->rows_symbol >= 0)
    return infc_operand_inner(x, 1);
  int64_t elements = infc_operand_inner(x, 0), rows = task->step->rows;
  return elements < 0 || rows == 0 || elements % rows ? -1 : elements / rows;
}

bool infc_unary_has_f64(uint32_t function);
void infc_unary_f64(const double *x, double *y, int64_t n, uint32_t function, float alpha, float beta);

infc_fault infc_unary__scalar(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_KERNELS_UNARY_H
