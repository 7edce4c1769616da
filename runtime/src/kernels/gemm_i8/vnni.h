// What the kernels of a level call where the machine has VNNI.
#ifndef INFC_GEMM_I8_VNNI_H
#define INFC_GEMM_I8_VNNI_H

#include "../kernel.h"

void infc_gemm_i8_avx2_vnni(const infc_task *task, const infc_range *range);
void infc_gemm_i8_avx512_vnni(const infc_task *task, const infc_range *range);
infc_fault infc_gemm_i8__avx2(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_GEMM_I8_VNNI_H
