// A depthwise_i8 step's operands by name, and in which order the kernels keep channels.
#ifndef INFC_DEPTHWISE_I8_H
#define INFC_DEPTHWISE_I8_H

#include "../conv/window.h"
#include "../conv_i8/requantise.h"
#include "../gemm/rows.h"

enum {
  INFC_DW_CHUNK = 64,                           // channels that lie together
  INFC_DW_QUAD = 4,                             // taps that lie together
  INFC_DW_BYTES = INFC_DW_CHUNK * INFC_DW_QUAD, // of the weights of a quad
  INFC_DW_MAX_TAPS = 65536,                     // 255 * 128 times this is less than 2^31: sums are exact
};

// The place of a channel among those of its chunk: where the vector kernels find it when they have put four taps of a
// channel side by side, by unpacking bytes and then pairs of them within 16 channels.
static inline int64_t infc_dw_place(int64_t channel) {
  const int64_t c = channel % INFC_DW_CHUNK;
  return c % 16 / 4 * 16 + c / 16 * 4 + c % 4;
}

typedef struct infc_depthwise_i8 {
  infc_window window;
  const uint8_t *x;
  const int8_t *w;            // [chunks][quads][64 places][4 taps]
  const float *scales, *bias; // [chunks][64 places], as are the offsets
  const int32_t *offsets;
  float *y;    // where the result is not quantised
  uint8_t *yq; // else
  int64_t ldx, ldy, channels, taps, quads;
  uint8_t zero;
  infc_requantise out;
} infc_depthwise_i8;

static inline int64_t infc_dw_chunks(int64_t channels) {
  return (channels + INFC_DW_CHUNK - 1) / INFC_DW_CHUNK;
}
static inline int64_t infc_dw_quads(int64_t taps) {
  return (taps + INFC_DW_QUAD - 1) / INFC_DW_QUAD;
}

static inline infc_depthwise_i8 infc_depthwise_i8_view(const infc_task *t) {
  infc_depthwise_i8 d = {
      .window = infc_window_read(t->words + INFC_W_DEPTHWISE_I8_IN_D),
      .x = t->ptr[0],
      .w = t->ptr[1],
      .scales = t->ptr[2],
      .offsets = t->ptr[3],
      .bias = t->ptr[4],
      .y = t->ptr[5],
      .yq = t->ptr[5],
      .ldx = t->operands[0].row_stride,
      .ldy = t->operands[5].row_stride,
      .channels = t->operands[0].dims[1],
      .zero = (uint8_t)t->words[INFC_W_DEPTHWISE_I8_ZERO],
      .out = infc_requantise_read(t->words + INFC_W_DEPTHWISE_I8_ACTIVATION),
  };
  d.taps = infc_window_taps(&d.window);
  d.quads = infc_dw_quads(d.taps);
  return d;
}

#endif // INFC_DEPTHWISE_I8_H
