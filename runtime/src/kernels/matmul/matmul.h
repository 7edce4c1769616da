// A matmul step's operands by name.
#ifndef INFC_MATMUL_H
#define INFC_MATMUL_H

#include "../operand.h"

enum {
  INFC_MATMUL_PANEL = 32,
  INFC_MATMUL_DEPTH = 512, // at most, of K, packed at a time
};

typedef struct infc_matmul {
  const float *a, *b;
  float *y;
  int64_t m, n, k;
  int64_t stride_a, stride_b;
  bool trans_b;
  float alpha;
} infc_matmul;

static inline int64_t infc_matmul_panels(int64_t n) {
  return (n + INFC_MATMUL_PANEL - 1) / INFC_MATMUL_PANEL;
}

static inline infc_matmul infc_matmul_view(const infc_task *t) {
  const uint32_t *w = t->words;
  return (infc_matmul){
      .a = t->ptr[0],
      .b = t->ptr[1],
      .y = t->ptr[2],
      .m = w[INFC_W_MATMUL_M],
      .n = w[INFC_W_MATMUL_N],
      .k = w[INFC_W_MATMUL_K],
      .stride_a = w[INFC_W_MATMUL_STRIDE_A],
      .stride_b = w[INFC_W_MATMUL_STRIDE_B],
      .trans_b = w[INFC_W_MATMUL_TRANS_B],
      .alpha = infc_word_f32(w[INFC_W_MATMUL_ALPHA]),
  };
}

// The product of types other than f32.
infc_fault infc_matmul_other(const infc_task *task, const infc_range *range);

typedef struct infc_columns {
  int64_t first, last;
} infc_columns;

// Columns of a call. Steps without a COLS split need not say how many panels they have.
static inline infc_columns infc_matmul_columns(const infc_matmul *p, const infc_task *t, const infc_range *range) {
  if (t->step->cols != infc_matmul_panels(p->n))
    return (infc_columns){0, p->n};
  const int64_t last = range->col1 * INFC_MATMUL_PANEL;
  return (infc_columns){range->col0 * INFC_MATMUL_PANEL, last < p->n ? last : p->n};
}

#endif // INFC_MATMUL_H
