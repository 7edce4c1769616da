#include "norm.h"

#include <math.h>

// What a row is shifted and then multiplied by.
typedef struct affine {
  double shift, factor;
} affine;

static affine statistics(const float *s, int64_t n, uint32_t kind, float epsilon) {
  double sum = 0, squares = 0;
  if (kind == INFC_NORM_LAYER)
    for (int64_t i = 0; i < n; i++)
      sum += s[i];
  double mean = sum / (double)n;
  for (int64_t i = 0; i < n; i++)
    squares += (s[i] - mean) * (s[i] - mean);
  double length = sqrt(squares);
  if (kind == INFC_NORM_L2)
    return (affine){0, 1 / (length < epsilon ? epsilon : length)};
  return (affine){-mean, 1 / sqrt(squares / (double)n + epsilon)};
}

infc_fault infc_norm_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  infc_norm norm = infc_norm_open(task, range);
  for (int64_t row = 0; row < norm.rows; row++) {
    int64_t at = row * norm.n;
    float *s = norm.sum ? norm.sum + at : norm.y + at;
    for (int64_t i = 0; i < norm.n; i++)
      s[i] = norm.residual ? norm.x[at + i] + norm.residual[at + i] : norm.x[at + i];
    affine a = statistics(s, norm.n, norm.kind, norm.epsilon);
    for (int64_t i = 0; i < norm.n; i++)
      norm.y[at + i] =
          (float)((s[i] + a.shift) * a.factor * (norm.gamma ? norm.gamma[i] : 1) + (norm.beta ? norm.beta[i] : 0));
  }
  return INFC_FAULT_NONE;
}

static bool is_vector(const infc_operand *operand, int64_t n) {
  return operand->dtype == INFC_DTYPE_F32 && operand->rows_symbol < 0 && infc_operand_dense(operand) &&
         infc_operand_inner(operand, 0) == n;
}

static bool is_matrix(const infc_operand *operand, const infc_step *step, int64_t n) {
  return operand->dtype == INFC_DTYPE_F32 && infc_operand_holds_rows(operand, step, n);
}

bool infc_norm_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  const uint32_t *words = task->words;
  if (step->word_count != INFC_WORDS_NORM)
    return false;
  uint32_t gamma = words[INFC_W_NORM_HAS_GAMMA], beta = words[INFC_W_NORM_HAS_BETA];
  uint32_t residual = words[INFC_W_NORM_HAS_RESIDUAL], sum = words[INFC_W_NORM_HAS_SUM];
  if (words[INFC_W_NORM_KIND] >= INFC_NORM_COUNT || gamma > 1 || beta > 1 || residual > 1 || sum > 1 ||
      !infc_step_has(step, 1 + gamma + beta + residual, 1 + sum, INFC_WORDS_NORM))
    return false;
  const infc_operand *x = &task->operands[0], *next = x + 1;
  if (x->rank < 1 || x->rank > INFC_MAX_RANK)
    return false;
  int64_t n = x->dims[x->rank - 1], row;
  if (__builtin_mul_overflow(n, infc_norm_groups(x, step), &row) || !is_matrix(x, step, row))
    return false;
  for (uint32_t i = 0; i < gamma + beta; i++)
    if (!is_vector(next++, n))
      return false;
  for (uint32_t i = 0; i < residual + 1 + sum; i++)
    if (!is_matrix(next++, step, row))
      return false;
  return true;
}

size_t infc_norm_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
