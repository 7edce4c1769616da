#include "../../cpu_features.h"
#include "bf16.h"
#include "x86_attention.h"

infc_fault infc_cache_attention__avx512(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const uint32_t wanted = INFC_CPU_AVX512_BF16 | INFC_CPU_AVX512_VBMI;
  const infc_cache_layer *layer = infc_cache_attention_layer(task, worker);
  if (!layer)
    return INFC_FAULT_INDEX;
  if (layer->dtype != INFC_DTYPE_F32 && (infc_cpu_features() & wanted) == wanted)
    infc_cache_attention_avx512_bf16(task, range, worker, layer);
  else
    cache_attention_run(task, range, worker, layer);
  return INFC_FAULT_NONE;
}
