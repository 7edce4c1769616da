// A pool step's operands by name.
#ifndef INFC_POOLING_H
#define INFC_POOLING_H

#include "../conv/window.h"

typedef struct infc_pooling {
  infc_window window;
  int64_t end[INFC_AXES]; // positions that count as padding are below
  const void *x;
  void *y;
  int64_t *argmax; // or NULL
  int64_t ldx, ldy, channels;
  uint32_t kind;
  bool count_pad, by_column;
  float p;
} infc_pooling;

// The taps of one output pixel that lie in the input, and what its average divides by.
typedef struct infc_pool_taps {
  infc_taps axis[INFC_AXES];
  double divisor;
} infc_pool_taps;

static inline infc_pooling infc_pooling_view(const infc_task *t) {
  const uint32_t *words = t->words;
  infc_pooling p = {
      .window = infc_window_read(words + INFC_W_POOL_IN_D),
      .x = t->ptr[0],
      .y = t->ptr[1],
      .argmax = words[INFC_W_POOL_HAS_ARGMAX] ? t->ptr[2] : NULL,
      .ldx = t->operands[0].row_stride,
      .ldy = t->operands[1].row_stride,
      .channels = t->operands[0].dims[1],
      .kind = words[INFC_W_POOL_KIND],
      .count_pad = words[INFC_W_POOL_COUNT_PAD],
      .by_column = words[INFC_W_POOL_BY_COLUMN],
      .p = infc_word_f32(words[INFC_W_POOL_P]),
  };
  for (int i = 0; i < INFC_AXES; i++)
    p.end[i] = words[INFC_W_POOL_END_D + i];
  return p;
}

static inline infc_pool_taps infc_pool_taps_of(const infc_pooling *p, const infc_pixel *pixel) {
  infc_pool_taps t = {.divisor = 1};
  for (int i = 0; i < INFC_AXES; i++) {
    const infc_window *w = &p->window;
    t.axis[i] = infc_taps_inside(w, i, pixel->at[i]);
    int64_t counted = t.axis[i].end - t.axis[i].first;
    if (p->count_pad) {
      const int64_t room = p->end[i] - 1 - (pixel->at[i] * w->stride[i] - w->pad[i]);
      counted = room < 0 ? 0 : room / w->dilation[i] + 1;
      counted = counted < w->kernel[i] ? counted : w->kernel[i];
    }
    t.divisor *= (double)counted;
  }
  return t;
}

infc_fault infc_pool__scalar(const infc_task *task, const infc_range *range, infc_worker *worker);

#endif // INFC_POOLING_H
