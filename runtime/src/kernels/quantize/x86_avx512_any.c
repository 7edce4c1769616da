#include "loops.h"

infc_fault infc_quantize__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_quantize_run(task, range, &loops);
}

infc_fault infc_dequantize__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_dequantize_run(task, range, &loops);
}
