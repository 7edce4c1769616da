#include "x86_winograd.h"

infc_fault infc_winograd_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return winograd_run(task, range, worker);
}
