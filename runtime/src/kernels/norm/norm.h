#ifndef INFC_KERNELS_NORM_H
#define INFC_KERNELS_NORM_H

#include "../operand.h"

// How many norms a row holds: x is [rows, norms, n], or its rows are one each.
static inline int64_t infc_norm_groups(const infc_operand *x, const infc_step *step) {
  return x->rank == 3 && x->dims[0] == step->rows ? (int64_t)x->dims[1] : 1;
}

// A task's operands by name, at the first row of a range; NULL where the step has none.
typedef struct infc_norm {
  const float *x, *gamma, *beta, *residual;
  float *y, *sum;
  int64_t n, rows;
  uint32_t kind;
  float epsilon;
} infc_norm;

static inline infc_norm infc_norm_open(const infc_task *task, const infc_range *range) {
  const uint32_t *words = task->words;
  const infc_operand *x = &task->operands[0];
  int64_t groups = infc_norm_groups(x, task->step);
  infc_norm norm = {.n = x->dims[x->rank - 1],
                    .rows = (range->row1 - range->row0) * groups,
                    .kind = words[INFC_W_NORM_KIND],
                    .epsilon = infc_word_f32(words[INFC_W_NORM_EPSILON])};
  int64_t first = range->row0 * groups * norm.n;
  void *const *next = task->ptr;
  norm.x = (const float *)*next++ + first;
  if (words[INFC_W_NORM_HAS_GAMMA])
    norm.gamma = *next++;
  if (words[INFC_W_NORM_HAS_BETA])
    norm.beta = *next++;
  if (words[INFC_W_NORM_HAS_RESIDUAL])
    norm.residual = (const float *)*next++ + first;
  norm.y = (float *)*next++ + first;
  if (words[INFC_W_NORM_HAS_SUM])
    norm.sum = (float *)*next++ + first;
  return norm;
}

#endif // INFC_KERNELS_NORM_H
