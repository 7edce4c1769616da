// The nests of gather_elements and scatter_elements: one operand is stepped through along the nest and once more by an
// index.
#ifndef INFC_KERNELS_INDEXING_ELEMENTS_H
#define INFC_KERNELS_INDEXING_ELEMENTS_H

#include "../nest.h"

// True if every element that the nest reaches with any index lies in the operand. Strides that are negative in one
// place only would hide each other: both ends are tried.
static inline bool infc_nest_indexed_fits(const infc_operand *operand, const infc_step *step, const uint32_t *dims,
                                          const uint32_t *strides, uint32_t size, uint32_t stride) {
  const uint64_t reach = (uint64_t)(size - 1) * stride;
  return size > 0 && size <= INT32_MAX && reach <= UINT32_MAX &&
         infc_nest_operand_fits(operand, step, dims, strides, 0) &&
         infc_nest_operand_fits(operand, step, dims, strides, (uint32_t)reach);
}

#endif // INFC_KERNELS_INDEXING_ELEMENTS_H
