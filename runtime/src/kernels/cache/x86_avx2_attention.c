#include "x86_attention.h"

infc_fault infc_cache_attention__avx2(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const infc_cache_layer *layer = infc_cache_attention_layer(task, worker);
  if (!layer)
    return INFC_FAULT_INDEX;
  cache_attention_run(task, range, worker, layer);
  return INFC_FAULT_NONE;
}
