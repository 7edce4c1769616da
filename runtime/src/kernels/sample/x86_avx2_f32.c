#include "grid_sample.h"

infc_fault infc_grid_sample_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_grid_sample(task, range);
}
