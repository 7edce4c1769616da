// What a scatter does with an element that is there already and one that comes.
#ifndef INFC_KERNELS_INDEXING_COMBINE_H
#define INFC_KERNELS_INDEXING_COMBINE_H

#include "../operand.h"

#include <string.h>

// `n` elements. The operands may overlap: each element is read before it is written.
typedef void (*infc_combine_fn)(void *y, const void *x, int64_t n);

// NULL if the kind does not exist for the type.
infc_combine_fn infc_combine_for(uint32_t kind, uint8_t dtype);

// The place of an index that counts from the end if negative, or -1 if there is none.
static inline int64_t infc_index_place(int64_t index, int64_t size) {
  if (index < 0)
    index += size;
  return index >= 0 && index < size ? index : -1;
}

#endif // INFC_KERNELS_INDEXING_COMBINE_H
