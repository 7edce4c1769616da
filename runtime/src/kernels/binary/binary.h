#ifndef INFC_KERNELS_BINARY_H
#define INFC_KERNELS_BINARY_H

#include "../operand.h"

// y[i] = f(a[i], b[i]) for n consecutive elements. y may be a or b.
typedef void (*infc_binary_loop)(const void *a, const void *b, void *y, int64_t n);

// What an ISA does its own way in f32; a function that is NULL is done the scalar way. sqrt and rsqrt are a^0.5 and
// a^-0.5 as pow defines them, and ignore b.
typedef struct infc_binary_f32 {
  infc_binary_loop function[INFC_BINARY_COUNT];
  infc_binary_loop sqrt, rsqrt;
} infc_binary_f32;

infc_fault infc_binary_run(const infc_task *task, const infc_range *range, const infc_binary_f32 *f32);

#endif // INFC_KERNELS_BINARY_H
