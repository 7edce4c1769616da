#ifndef INFC_KERNELS_COPY_H
#define INFC_KERNELS_COPY_H

#include "../operand.h"

// y[c * stride_y + r] = x[r * stride_x + c] for r < rows, c < cols: elements of four bytes, strides in elements.
typedef void (*infc_copy_transpose)(const char *x, int64_t stride_x, char *y, int64_t stride_y, int64_t rows,
                                    int64_t cols);

infc_fault infc_copy_run(const infc_task *task, const infc_range *range, infc_copy_transpose transpose4);

#endif // INFC_KERNELS_COPY_H
