// A conv step's operands by name.
#ifndef INFC_CONV_H
#define INFC_CONV_H

#include "../gemm/gemm.h"
#include "window.h"

typedef struct infc_conv {
  infc_window window;
  int64_t up[INFC_AXES];
  const float *x, *b, *bias, *residual; // bias and residual may be NULL
  bool residual_first;                  // added before the activation
  float *y;
  int64_t ldx, ldr, ldy;
  int64_t groups, channels, columns; // of the input and the output, a group
  int64_t taps;
  uint32_t activation;
} infc_conv;

static inline infc_conv infc_conv_view(const infc_task *t) {
  const uint32_t *words = t->words;
  const bool has_bias = words[INFC_W_CONV_HAS_BIAS], has_residual = words[INFC_W_CONV_HAS_RESIDUAL];
  const int residual = 2 + has_bias, y = residual + has_residual;
  const int64_t groups = words[INFC_W_CONV_GROUPS], n = t->operands[y].dims[1];
  infc_conv c = {
      .window = infc_window_read(words + INFC_W_CONV_IN_D),
      .x = t->ptr[0],
      .b = t->ptr[1],
      .bias = has_bias ? t->ptr[2] : NULL,
      .residual = has_residual ? t->ptr[residual] : NULL,
      .residual_first = words[INFC_W_CONV_HAS_RESIDUAL] == INFC_RESIDUAL_FIRST,
      .y = t->ptr[y],
      .ldx = t->operands[0].row_stride,
      .ldr = has_residual ? infc_rows_stride(&t->operands[residual], t->step, n) : 0,
      .ldy = t->operands[y].row_stride,
      .groups = groups,
      .channels = t->operands[0].dims[1] / groups,
      .columns = n / groups,
      .activation = words[INFC_W_CONV_ACTIVATION],
  };
  for (int i = 0; i < INFC_AXES; i++)
    c.up[i] = words[INFC_W_CONV_UP_D + i];
  c.taps = infc_window_taps(&c.window);
  return c;
}

// How the vector kernels go about it: blocks of `rows` pixels, whose taps are found once for all panels. Where a tap
// has few channels, the pixels' taps are gathered side by side; else the rows of a product are read where they lie, by
// pointers, and a tap outside the input reads zeros.
typedef struct infc_conv_plan {
  bool gathers;
  int64_t rows;
  size_t zeros, pointers, gathered; // floats, pointers, floats
} infc_conv_plan;

enum {
  INFC_CONV_ROWS = 12,           // of a tile; blocks hold a few tiles
  INFC_CONV_FEW = 16,            // channels below which taps are gathered
  INFC_CONV_BLOCK = 256 * 1024,  // bytes of input a block reads
  INFC_CONV_POINTERS = 6 * 1024, // pointers of a block
};

static inline infc_conv_plan infc_conv_plan_of(const infc_conv *c) {
  infc_conv_plan p = {.gathers = c->taps > 1 && c->channels < INFC_CONV_FEW};
  const int64_t bytes = c->channels * (int64_t)sizeof(float);
  const int64_t step = c->window.stride[0] * c->window.stride[1] * c->window.stride[2];
  p.rows = INFC_CONV_BLOCK / (p.gathers ? bytes * c->taps : bytes * (step < c->taps ? step : c->taps));
  if (!p.gathers && p.rows > INFC_CONV_POINTERS / c->taps)
    p.rows = INFC_CONV_POINTERS / c->taps;
  p.rows = p.rows < INFC_CONV_ROWS ? INFC_CONV_ROWS : p.rows - p.rows % INFC_CONV_ROWS;
  p.zeros = p.gathers ? 0 : (size_t)(c->channels * c->groups); // a pointer is a pixel's, whatever the group
  p.pointers = (size_t)p.rows * (p.gathers ? 1 : (size_t)c->taps);
  p.gathered = p.gathers ? (size_t)(p.rows * c->taps * c->channels) : 0;
  return p;
}

#endif // INFC_CONV_H
