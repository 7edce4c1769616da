// What the kernels of a level call where the machine has VNNI.
#ifndef INFC_GEMM_GROUPED_VNNI_H
#define INFC_GEMM_GROUPED_VNNI_H

#include "../kernel.h"

void infc_gemm_grouped_avx2_vnni(const infc_task *task, const infc_range *range, infc_worker *worker);
void infc_gemm_grouped_avx512_vnni(const infc_task *task, const infc_range *range, infc_worker *worker);
infc_fault infc_gemm_grouped__avx2(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_GEMM_GROUPED_VNNI_H
