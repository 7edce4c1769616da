#include "../../cpu_features.h"
#include "vnni.h"
#include "x86_gemm_i8.h"

// Without VNNI, as few machines are, sparse weights are multiplied as AVX2 does it: each version is a lot of code.
infc_fault infc_gemm_i8__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  if (infc_cpu_features() & INFC_CPU_AVX512_VNNI)
    infc_gemm_i8_avx512_vnni(task, range);
  else if (task->words[INFC_W_GEMM_I8_SPARSE])
    return infc_gemm_i8__avx2(task, range, worker);
  else
    gemm_i8_run(task, range);
  return INFC_FAULT_NONE;
}
