// Scratch of the attention kernels, in floats: what infc_attention_scratch asks and the x86 kernels use.
#ifndef INFC_ATTENTION_SCRATCH_H
#define INFC_ATTENTION_SCRATCH_H

#include <stdint.h>

enum {
  INFC_ATTENTION_QUERIES = 32, // at most, computed together
  INFC_ATTENTION_KEYS = 192,   // at most, whose scores are held at once
};

static inline int64_t infc_attention_padded(int64_t dim) {
  return (dim + 15) / 16 * 16;
}

#endif // INFC_ATTENTION_SCRATCH_H
