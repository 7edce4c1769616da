#include "vnni.h"
#include "x86_gemm_grouped.h"

void infc_gemm_grouped_avx2_vnni(const infc_task *task, const infc_range *range, infc_worker *worker) {
  gemm_grouped_run(task, range, worker);
}
