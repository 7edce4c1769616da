// A recurrent step's operands by name.
#ifndef INFC_RECURRENT_H
#define INFC_RECURRENT_H

#include "../operand.h"

enum { INFC_RECURRENT_MAX_GATES = 4 };

typedef struct infc_recurrent_function {
  uint32_t code; // INFC_RECURRENT_ACTIVATION_*
  float alpha, beta;
} infc_recurrent_function;

typedef struct infc_recurrent {
  const float *gates, *r, *bias, *h, *c, *peephole; // all but the first two may be NULL
  const int32_t *lens;                              // NULL: seq for all
  float *y, *y_h, *y_c;                             // may be NULL
  int64_t seq, batch, directions, hidden, blocks, padded;
  uint32_t kind, gate_count, reverse;
  bool by_batch, input_forget;
  float clip; // 0: none
  infc_recurrent_function functions[2][3];
} infc_recurrent;

static inline uint32_t infc_recurrent_gates(uint32_t kind) {
  return kind == INFC_RECURRENT_LSTM ? 4 : kind == INFC_RECURRENT_GRU ? 3 : 1;
}

static inline int64_t infc_recurrent_blocks(int64_t hidden) {
  return (hidden + INFC_RECURRENT_UNITS - 1) / INFC_RECURRENT_UNITS;
}

static inline infc_recurrent infc_recurrent_view(const infc_task *t) {
  const uint32_t *w = t->words;
  infc_recurrent v = {
      .gates = t->ptr[0],
      .r = t->ptr[1],
      .seq = w[INFC_W_RECURRENT_SEQ],
      .batch = w[INFC_W_RECURRENT_BATCH],
      .directions = t->step->rows / w[INFC_W_RECURRENT_BATCH],
      .hidden = w[INFC_W_RECURRENT_HIDDEN],
      .blocks = infc_recurrent_blocks(w[INFC_W_RECURRENT_HIDDEN]),
      .padded = infc_recurrent_blocks(w[INFC_W_RECURRENT_HIDDEN]) * INFC_RECURRENT_UNITS,
      .kind = w[INFC_W_RECURRENT_KIND],
      .gate_count = infc_recurrent_gates(w[INFC_W_RECURRENT_KIND]),
      .reverse = w[INFC_W_RECURRENT_REVERSE],
      .by_batch = w[INFC_W_RECURRENT_BY_BATCH],
      .input_forget = w[INFC_W_RECURRENT_INPUT_FORGET],
      .clip = infc_word_f32(w[INFC_W_RECURRENT_CLIP]),
  };
  int at = 2;
  v.bias = w[INFC_W_RECURRENT_HAS_BIAS] ? t->ptr[at++] : NULL;
  v.lens = w[INFC_W_RECURRENT_HAS_LENS] ? t->ptr[at++] : NULL;
  v.h = w[INFC_W_RECURRENT_HAS_H] ? t->ptr[at++] : NULL;
  v.c = w[INFC_W_RECURRENT_HAS_C] ? t->ptr[at++] : NULL;
  v.peephole = w[INFC_W_RECURRENT_HAS_PEEPHOLE] ? t->ptr[at++] : NULL;
  v.y = w[INFC_W_RECURRENT_HAS_Y] ? t->ptr[at++] : NULL;
  v.y_h = w[INFC_W_RECURRENT_HAS_Y_H] ? t->ptr[at++] : NULL;
  v.y_c = w[INFC_W_RECURRENT_HAS_Y_C] ? t->ptr[at++] : NULL;
  for (int i = 0; i < 6; i++) {
    const uint32_t *function = w + INFC_W_RECURRENT_FUNCTION_F0 + 3 * i;
    v.functions[i / 3][i % 3] =
        (infc_recurrent_function){function[0], infc_word_f32(function[1]), infc_word_f32(function[2])};
  }
  return v;
}

// Steps of a sequence; one that is out of range is cut off, which is a fault.
static inline int64_t infc_recurrent_length(const infc_recurrent *v, int64_t row, infc_fault *fault) {
  if (!v->lens)
    return v->seq;
  int64_t length = infc_read_index(v->lens, INFC_DTYPE_I32, row % v->batch);
  if (length >= 0 && length <= v->seq)
    return length;
  *fault = INFC_FAULT_INDEX;
  return length < 0 ? 0 : v->seq;
}

// A row's projected inputs at time t: gate_count * hidden floats.
static inline const float *infc_recurrent_input(const infc_recurrent *v, int64_t row, int64_t t) {
  const int64_t d = row / v->batch, b = row % v->batch, at = v->by_batch ? b * v->seq + t : t * v->batch + b;
  return v->gates + (at * v->directions + d) * v->gate_count * v->hidden;
}

static inline float *infc_recurrent_output(const infc_recurrent *v, int64_t row, int64_t t) {
  return v->y + (t * v->directions * v->batch + row) * v->hidden;
}

// Weights from unit k to the gates of a block's units.
static inline const float *infc_recurrent_weights(const infc_recurrent *v, int64_t row, int64_t block, int64_t k) {
  return v->r +
         (((row / v->batch) * v->blocks + block) * v->hidden + k) * v->gate_count * (int64_t)INFC_RECURRENT_UNITS;
}

#endif // INFC_RECURRENT_H
