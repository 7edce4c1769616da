#include "x86_depthwise.h"

infc_fault infc_depthwise_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return depthwise_run(task, range);
}
