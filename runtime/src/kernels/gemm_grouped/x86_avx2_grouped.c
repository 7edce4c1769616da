#include "../../cpu_features.h"
#include "vnni.h"
#include "x86_gemm_grouped.h"

infc_fault infc_gemm_grouped__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (infc_cpu_features() & INFC_CPU_AVX_VNNI)
    infc_gemm_grouped_avx2_vnni(task, range, worker);
  else
    gemm_grouped_run(task, range, worker);
  return INFC_FAULT_NONE;
}
