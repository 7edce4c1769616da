// A depthwise step's operands by name.
#ifndef INFC_DEPTHWISE_H
#define INFC_DEPTHWISE_H

#include "../conv/window.h"
#include "../gemm/rows.h"

typedef struct infc_depthwise {
  infc_window window;
  const float *x, *w, *bias; // bias may be NULL
  float *y;
  int64_t ldx, ldy, channels;
  uint32_t activation;
} infc_depthwise;

static inline infc_depthwise infc_depthwise_view(const infc_task *t) {
  const bool has_bias = t->words[INFC_W_DEPTHWISE_HAS_BIAS];
  return (infc_depthwise){
      .window = infc_window_read(t->words + INFC_W_DEPTHWISE_IN_D),
      .x = t->ptr[0],
      .w = t->ptr[1],
      .bias = has_bias ? t->ptr[2] : NULL,
      .y = t->ptr[2 + has_bias],
      .ldx = t->operands[0].row_stride,
      .ldy = t->operands[2 + has_bias].row_stride,
      .channels = t->operands[0].dims[1],
      .activation = t->words[INFC_W_DEPTHWISE_ACTIVATION],
  };
}

#endif // INFC_DEPTHWISE_H
