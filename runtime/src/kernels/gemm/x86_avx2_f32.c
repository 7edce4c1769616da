#include "x86_gemm.h"

infc_fault infc_gemm_f32_6x16__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return gemm_run(task, range);
}
