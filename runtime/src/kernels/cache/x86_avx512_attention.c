#include "x86_attention.h"

infc_fault infc_cache_attention__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  return cache_attention_run(task, range, worker);
}
