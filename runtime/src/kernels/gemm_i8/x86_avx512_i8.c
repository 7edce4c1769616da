#include "../../cpu_features.h"
#include "vnni.h"
#include "x86_sparse_i8.h"

infc_fault infc_gemm_i8__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  if (infc_cpu_features() & INFC_CPU_AVX512_VNNI)
    infc_gemm_i8_avx512_vnni(task, range);
  else
    gemm_i8_any(task, range);
  return INFC_FAULT_NONE;
}
