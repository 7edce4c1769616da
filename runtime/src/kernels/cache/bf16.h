// What the AVX-512 kernel calls for caches of 16 and 8 bits where the machine has BF16 and VBMI.
#ifndef INFC_CACHE_BF16_H
#define INFC_CACHE_BF16_H

#include "cache.h"

void infc_cache_attention_avx512_bf16(const infc_task *task, const infc_range *range, const infc_worker *worker,
                                      const infc_cache_layer *layer);

#endif // INFC_CACHE_BF16_H
