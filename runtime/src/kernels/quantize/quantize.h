#ifndef INFC_KERNELS_QUANTIZE_H
#define INFC_KERNELS_QUANTIZE_H

#include "../operand.h"

enum { INFC_QUANTIZE_BLOCK = 256 }; // elements that a loop sees at most

// Integers of 8 bits: n elements of which each has a scale and zero of its own, or all have the first.
typedef struct infc_quantize_loops {
  void (*to_u8)(const float *x, const float *scale, const int32_t *zero, bool each, uint8_t *y, int64_t n);
  void (*to_i8)(const float *x, const float *scale, const int32_t *zero, bool each, int8_t *y, int64_t n);
  void (*from_u8)(const uint8_t *x, const float *scale, const int32_t *zero, bool each, float *y, int64_t n);
  void (*from_i8)(const int8_t *x, const float *scale, const int32_t *zero, bool each, float *y, int64_t n);
} infc_quantize_loops;

infc_fault infc_quantize_run(const infc_task *task, const infc_range *range, const infc_quantize_loops *loops);
infc_fault infc_dequantize_run(const infc_task *task, const infc_range *range, const infc_quantize_loops *loops);

#endif // INFC_KERNELS_QUANTIZE_H
