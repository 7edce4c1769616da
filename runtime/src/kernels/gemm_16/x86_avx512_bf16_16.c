#include "bf16.h"
#include "x86_gemm_16.h"

void infc_gemm_16_avx512_bf16(const infc_task *task, const infc_range *range, infc_worker *worker) {
  gemm_16_run(task, range, worker);
}
