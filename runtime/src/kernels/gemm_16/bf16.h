// What the AVX-512 kernel calls for weights in bf16 and f8e4m3 where the machine has BF16 and VBMI.
#ifndef INFC_GEMM_16_BF16_H
#define INFC_GEMM_16_BF16_H

#include "../kernel.h"

void infc_gemm_16_avx512_bf16(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_GEMM_16_BF16_H
