#include "x86_gemm.h"

infc_fault infc_gemm_f32_12x32__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return gemm_run(task, range);
}
