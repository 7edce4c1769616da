// A conv_i8 step's operands by name.
#ifndef INFC_CONV_I8_H
#define INFC_CONV_I8_H

#include "../conv/window.h"
#include "../gemm_i8/gemm_i8.h"
#include "requantise.h"

enum { INFC_RESIDUAL_F32 = 1, INFC_RESIDUAL_U8 = 2 }; // values of has_residual

typedef struct infc_conv_i8 {
  infc_window window;
  const uint8_t *x;
  const int8_t *b;
  const float *scales, *bias;
  const int32_t *offsets;
  const float *residual;     // one of the two, or neither
  const uint8_t *residual_q; //
  float residual_scale;
  float *y;    // where the result is not quantised
  uint8_t *yq; // else
  int64_t ldx, ldr, ldy;
  int64_t groups, channels, columns; // of the input and the output, a group
  int64_t taps, k, lines;            // lines: groups of INFC_I8_DEPTH rows of b, the last filled up
  uint8_t zero;
  infc_requantise out;
} infc_conv_i8;

static inline infc_conv_i8 infc_conv_i8_view(const infc_task *t) {
  const uint32_t *words = t->words, residual = words[INFC_W_CONV_I8_HAS_RESIDUAL];
  const int y = 5 + (residual != 0);
  const int64_t groups = words[INFC_W_CONV_I8_GROUPS], n = t->operands[y].dims[1];
  infc_conv_i8 c = {
      .window = infc_window_read(words + INFC_W_CONV_I8_IN_D),
      .x = t->ptr[0],
      .b = t->ptr[1],
      .scales = t->ptr[2],
      .offsets = t->ptr[3],
      .bias = t->ptr[4],
      .residual = residual == INFC_RESIDUAL_F32 ? t->ptr[5] : NULL,
      .residual_q = residual == INFC_RESIDUAL_U8 ? t->ptr[5] : NULL,
      .residual_scale = infc_word_f32(words[INFC_W_CONV_I8_RESIDUAL_SCALE]),
      .y = t->ptr[y],
      .yq = t->ptr[y],
      .ldx = t->operands[0].row_stride,
      .ldr = residual ? infc_rows_stride_of(&t->operands[5], t->step, n, t->operands[5].dtype) : 0,
      .ldy = t->operands[y].row_stride,
      .groups = groups,
      .channels = t->operands[0].dims[1] / groups,
      .columns = n / groups,
      .zero = (uint8_t)words[INFC_W_CONV_I8_ZERO],
      .out = infc_requantise_read(words + INFC_W_CONV_I8_ACTIVATION),
  };
  c.taps = infc_window_taps(&c.window);
  c.k = c.taps * c.channels;
  c.lines = infc_i8_lines(c.k);
  return c;
}

// How the vector kernels go about it: as those of conv (../conv/conv.h), in bytes. Taps are gathered too where a line
// of b would hold parts of two.
typedef struct infc_conv_i8_plan {
  bool gathers;
  int64_t rows;
  size_t gathered, zeros, pointers; // bytes, bytes, pointers
} infc_conv_i8_plan;

enum {
  INFC_CONV_I8_ROWS = 12,           // of a tile
  INFC_CONV_I8_FEW = 16,            // channels below which taps are gathered
  INFC_CONV_I8_BLOCK = 192 * 1024,  // bytes of input a block reads
  INFC_CONV_I8_POINTERS = 4 * 1024, // of a block
};

static inline size_t infc_round_up(size_t n) {
  return (n + 63) / 64 * 64;
}

static inline infc_conv_i8_plan infc_conv_i8_plan_of(const infc_conv_i8 *c) {
  infc_conv_i8_plan p = {.gathers = c->taps > 1 && (c->channels < INFC_CONV_I8_FEW || c->channels % INFC_I8_DEPTH)};
  const int64_t step = c->window.stride[0] * c->window.stride[1] * c->window.stride[2];
  const int64_t each = p.gathers || step > c->taps ? c->taps : step, pointers = p.gathers ? 1 : c->taps;
  p.rows = INFC_CONV_I8_BLOCK / (c->channels * each);
  if (p.rows > INFC_CONV_I8_POINTERS / pointers)
    p.rows = INFC_CONV_I8_POINTERS / pointers;
  p.rows = p.rows < INFC_CONV_I8_ROWS ? INFC_CONV_I8_ROWS : p.rows - p.rows % INFC_CONV_I8_ROWS;
  p.gathered = p.gathers ? infc_round_up((size_t)(p.rows * c->lines * INFC_I8_DEPTH)) : 0;
  p.zeros = infc_round_up((size_t)(c->channels * c->groups)); // a pointer is a pixel's, whatever the group
  p.pointers = (size_t)(p.rows * pointers);
  return p;
}

#endif // INFC_CONV_I8_H
