#include "x86_matmul.h"

infc_fault infc_matmul_f32_6x16__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return matmul_run(task, range, worker);
}
