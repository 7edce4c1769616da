#include "../../cpu_features.h"
#include "bf16.h"
#include "x86_gemm_16.h"

infc_fault infc_gemm_16__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const uint32_t wanted = INFC_CPU_AVX512_BF16 | INFC_CPU_AVX512_VBMI;
  if ((infc_cpu_features() & wanted) == wanted && task->words[INFC_W_GEMM_16_FORMAT] != INFC_GEMM_16_F16)
    infc_gemm_16_avx512_bf16(task, range, worker);
  else
    gemm_16_run(task, range, worker);
  return INFC_FAULT_NONE;
}
