#include "../../cpu_features.h"
#include "vnni.h"

// Without VNNI as AVX2 does it: the kernels of few machines, which would be the largest of the library.
infc_fault infc_gemm_grouped__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (!(infc_cpu_features() & INFC_CPU_AVX512_VNNI))
    return infc_gemm_grouped__avx2(task, range, worker);
  infc_gemm_grouped_avx512_vnni(task, range, worker);
  return INFC_FAULT_NONE;
}
