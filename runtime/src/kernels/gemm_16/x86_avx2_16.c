#include "x86_gemm_16.h"

infc_fault infc_gemm_16__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  gemm_16_run(task, range, worker);
  return INFC_FAULT_NONE;
}
