#include "resample.h"

infc_fault infc_resample_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_resample(task, range);
}
