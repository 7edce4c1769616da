#ifndef INFC_KERNELS_SOFTMAX_H
#define INFC_KERNELS_SOFTMAX_H

#include "../operand.h"

infc_fault infc_softmax_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_KERNELS_SOFTMAX_H
