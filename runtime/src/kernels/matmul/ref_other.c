// matmul of types other than f32, a row of y at a time. Integers wrap.
#include "matmul.h"

#define PRODUCT(name, T, A)                                                                                            \
  static void product_##name(const infc_matmul *p, infc_columns cols, int64_t element) {                               \
    const T *a = (const T *)(const void *)p->a + element * p->stride_a;                                                \
    const T *b = (const T *)(const void *)p->b + element * p->stride_b;                                                \
    A *y = (A *)(void *)p->y + element * p->m * p->n;                                                                  \
    for (int64_t i = 0; i < p->m; i++, a += p->k, y += p->n) {                                                         \
      for (int64_t j = cols.first; j < cols.last; j++)                                                                 \
        y[j] = 0;                                                                                                      \
      for (int64_t l = 0; l < p->k; l++)                                                                               \
        for (int64_t j = cols.first; j < cols.last; j++)                                                               \
          y[j] += (A)a[l] * (A)(p->trans_b ? b[j * p->k + l] : b[l * p->n + j]);                                       \
      if (p->alpha != 1.0f)                                                                                            \
        for (int64_t j = cols.first; j < cols.last; j++)                                                               \
          y[j] = (A)(y[j] * (A)p->alpha);                                                                              \
    }                                                                                                                  \
  }
PRODUCT(f64, double, double)
PRODUCT(i32, int32_t, uint32_t)
PRODUCT(i64, int64_t, uint64_t)

infc_fault infc_matmul_other(const infc_task *task, const infc_range *range) {
  const infc_matmul p = infc_matmul_view(task);
  const infc_columns cols = infc_matmul_columns(&p, task, range);
  for (int64_t element = range->row0; element < range->row1; element++)
    switch (task->operands[0].dtype) {
    case INFC_DTYPE_F64:
      product_f64(&p, cols, element);
      break;
    case INFC_DTYPE_I32:
      product_i32(&p, cols, element);
      break;
    default:
      product_i64(&p, cols, element);
    }
  return INFC_FAULT_NONE;
}
