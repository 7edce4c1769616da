// What the kernels of a level call where the machine has VNNI.
#ifndef INFC_CONV_I8_VNNI_H
#define INFC_CONV_I8_VNNI_H

#include "../kernel.h"

void infc_conv_i8_avx2_vnni(const infc_task *task, const infc_range *range, infc_worker *worker);
void infc_conv_i8_avx512_vnni(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_CONV_I8_VNNI_H
