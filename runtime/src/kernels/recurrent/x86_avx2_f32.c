#include "x86_recurrent.h"

infc_fault infc_recurrent_f32__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return recurrent_run(task, range, worker);
}
