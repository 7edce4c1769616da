#include "bf16.h"
#include "x86_attention.h"

void infc_cache_attention_avx512_bf16(const infc_task *task, const infc_range *range, const infc_worker *worker,
                                      const infc_cache_layer *layer) {
  cache_attention_run(task, range, worker, layer);
}
