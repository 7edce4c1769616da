#include "vnni.h"
#include "x86_sparse_i8.h"

void infc_gemm_i8_avx512_vnni(const infc_task *task, const infc_range *range) {
  gemm_i8_any(task, range);
}
