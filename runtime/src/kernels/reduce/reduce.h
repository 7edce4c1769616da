#ifndef INFC_KERNELS_REDUCE_H
#define INFC_KERNELS_REDUCE_H

#include "../operand.h"

infc_fault infc_reduce__scalar(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_KERNELS_REDUCE_H
