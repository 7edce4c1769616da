// Blocks of the cache, by group of layers.
#include "lm.h"

int32_t infc_block_take(infc_lm *lm, uint32_t group) {
  infc_blocks *blocks = &lm->blocks[group];
  if (blocks->free_count == 0 && blocks->idle == 0)
    return -1;
  if (blocks->free_count == 0)
    infc_prefix_evict(lm, group);
  const int32_t block = blocks->free[--blocks->free_count];
  blocks->references[block] = 1;
  return block;
}

void infc_block_retain(infc_lm *lm, uint32_t group, int32_t block) {
  infc_blocks *blocks = &lm->blocks[group];
  blocks->idle -= blocks->nodes[block] >= 0 && blocks->references[block] == 1;
  blocks->references[block]++;
}

void infc_block_release(infc_lm *lm, uint32_t group, int32_t block) {
  infc_blocks *blocks = &lm->blocks[group];
  if (--blocks->references[block] == 0)
    blocks->free[blocks->free_count++] = block;
  else
    blocks->idle += blocks->nodes[block] >= 0 && blocks->references[block] == 1;
}

void infc_block_copy(infc_lm *lm, uint32_t group, int32_t to, int32_t from) {
  for (uint32_t l = 0; l < lm->cache.layer_count; l++) {
    const infc_cache_layer *layer = &lm->layers[l];
    if (layer->group == group)
      memcpy(layer->blocks + (size_t)to * layer->block_bytes, layer->blocks + (size_t)from * layer->block_bytes,
             layer->block_bytes);
  }
}
