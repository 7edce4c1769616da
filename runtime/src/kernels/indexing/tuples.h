// Indices that are tuples: places in a tensor [n0, n1 ...] of runs of elements.
#ifndef INFC_KERNELS_INDEXING_TUPLES_H
#define INFC_KERNELS_INDEXING_TUPLES_H

#include "combine.h"

// The run that tuple number `at` names, or -1 if it is outside.
static inline int64_t infc_tuple_place(const void *indices, uint8_t dtype, int64_t at, int64_t depth,
                                       const uint32_t *n) {
  int64_t place = 0;
  for (int64_t j = 0; j < depth; j++) {
    const int64_t one = infc_index_place(infc_read_index(indices, dtype, at * depth + j), n[j]);
    if (one < 0)
      return -1;
    place = place * n[j] + one;
  }
  return place;
}

// Elements of [n0, n1 ..., inner], or -1 if they are too many or the words are not in order.
static inline int64_t infc_tuple_elements(uint32_t depth, uint32_t inner, const uint32_t *n) {
  int64_t count = inner;
  if (depth == 0 || depth > INFC_NEST || inner == 0)
    return -1;
  for (uint32_t j = 0; j < INFC_NEST; j++)
    if (n[j] == 0 || (j >= depth && n[j] != 1) || __builtin_mul_overflow(count, (int64_t)n[j], &count))
      return -1;
  return count;
}

#endif // INFC_KERNELS_INDEXING_TUPLES_H
