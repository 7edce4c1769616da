#include "x86_pooling.h"

infc_fault infc_pool__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return pool_run(task, range, worker);
}
