// Element types.
#ifndef INFC_DTYPE_H
#define INFC_DTYPE_H

#include "layout.h"

#include <stddef.h>
#include <string.h>

// 0 for a type that does not exist.
static inline size_t infc_dtype_size(uint32_t dtype) {
  static const uint8_t sizes[] = INFC_DTYPE_SIZES;
  return dtype < sizeof sizes ? sizes[dtype] : 0;
}

// `count` elements of one value; floats of 16 bits and fewer can only be zero.
static inline void infc_dtype_fill(uint32_t dtype, int64_t fill, void *memory, size_t count) {
  size_t size = infc_dtype_size(dtype);
  float single = (float)fill;
  double wide = (double)fill;
  const void *value = dtype == INFC_DTYPE_F32   ? (const void *)&single
                      : dtype == INFC_DTYPE_F64 ? (const void *)&wide
                                                : (const void *)&fill; // integers: the low bytes
  for (size_t i = 0; i < count; i++)
    memcpy((uint8_t *)memory + i * size, value, size);
}

#endif // INFC_DTYPE_H
