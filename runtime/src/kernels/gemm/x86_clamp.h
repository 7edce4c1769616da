// Activations that are done in registers.
#ifndef INFC_X86_CLAMP_H
#define INFC_X86_CLAMP_H

#include "x86_vector.h"

// The functions that cost two instructions, min(high, max(0, x)), or none: they need not go by way of memory.
typedef struct clamp {
  bool none, cheap;
  infc_vec high;
} clamp;

INLINE clamp clamp_of(uint32_t activation) {
  return (clamp){activation == INFC_UNARY_IDENTITY,
                 activation == INFC_UNARY_IDENTITY || activation == INFC_UNARY_RELU || activation == INFC_UNARY_RELU6,
                 vec_set(activation == INFC_UNARY_RELU6 ? 6.0f : __builtin_inff())};
}

INLINE infc_vec clamp_run(clamp c, infc_vec x) {
  return c.none ? x : vec_min(c.high, vec_max(vec_zero(), x));
}

#endif // INFC_X86_CLAMP_H
