// The cache of keys and values as kernels see it: blocks of 32 tokens, owned by sequences through tables.
//
// A block of a layer holds, for each head of keys and values one after the other, `head_bytes`:
//   keys    [k_dim][32] elements: element d of token t is at d * 32 + t, so that a block is a panel of a product q kT
//   values  [ceil(v_dim / 32)][32 tokens][32] elements: element d of token t is at ((d / 32) * 32 + t) * 32 + d % 32,
//           which are panels of a product p v; zero beyond v_dim
//   scales  of 8-bit elements only: 32 floats for the tokens' keys, then 32 for their values. i8: x = scale * q with
//           scale = max|x| / 127 of the token's head (1 where that is 0); f8e4m3fn: scale = max|x| / 448.
// Each part starts at a multiple of 64 bytes.
#ifndef INFC_CACHE_H
#define INFC_CACHE_H

#include "../../dtype.h"
#include "../kernel.h"

#define INFC_CACHE_TOKENS 32 // of a block
#define INFC_CACHE_GROUPS 8  // most kinds of windows that layers of one model have

typedef struct infc_cache_layer {
  uint8_t *blocks;    // block b of this layer starts at blocks + b * block_bytes
  size_t block_bytes; // heads * head_bytes
  size_t head_bytes;
  size_t v_at, scales_at; // bytes from the start of a head to its values and scales
  uint32_t heads, k_dim, v_dim;
  uint32_t window; // 0: all
  uint32_t group;  // which of a sequence's tables
  uint32_t dtype;
} infc_cache_layer;

// The rows of one run that continue one sequence.
typedef struct infc_cache_sequence {
  int64_t row0, rows; // ascending, disjoint; rows may reach beyond those in use
  int64_t past;       // tokens that were there before: row i goes to place past + i
  // By group: the block that holds places 32 * i to 32 * i + 31. Those that a window of the group has left behind may
  // hold anything; all others are there.
  const int32_t *tables[INFC_CACHE_GROUPS];
} infc_cache_sequence;

typedef struct infc_cache {
  const infc_cache_layer *layers;
  const infc_cache_sequence *sequences;
  uint32_t layer_count, sequence_count;
} infc_cache;

static inline size_t infc_cache_align(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Fills in sizes from heads, k_dim, v_dim and dtype. No overflow for dimensions up to 2^16.
static inline void infc_cache_lay_out(infc_cache_layer *layer) {
  const size_t size = infc_dtype_size(layer->dtype), panels = (layer->v_dim + 31) / 32;
  layer->v_at = infc_cache_align((size_t)layer->k_dim * INFC_CACHE_TOKENS * size);
  layer->scales_at = layer->v_at + infc_cache_align(panels * 32 * INFC_CACHE_TOKENS * size);
  layer->head_bytes = layer->scales_at + (size == 1 ? 2 * INFC_CACHE_TOKENS * sizeof(float) : 0);
  layer->block_bytes = layer->heads * layer->head_bytes;
}

#endif // INFC_CACHE_H
