#include "x86_write.h"

infc_fault infc_cache_write__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return cache_write_run(task, range, worker);
}
