#ifndef INFC_KERNELS_CAST_H
#define INFC_KERNELS_CAST_H

#include "convert.h"

// y[i] = x[i] as another type, for n consecutive elements; NULL where an ISA has nothing better than the reference.
typedef void (*infc_cast_loop)(const void *x, void *y, int64_t n);

infc_fault infc_cast_run(const infc_task *task, const infc_range *range, infc_cast_loop loop);

#endif // INFC_KERNELS_CAST_H
