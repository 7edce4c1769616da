// Norms on the vectors of the ISA header that the including file chose: two or three passes over a row, which stays in
// L1. Rows go in groups, so that their sums overlap and gamma and beta are loaded once; a row's own sum has the same
// order in any group.
#include "norm.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define EACH_ROW for (int r = 0; r < count; r++)
enum { GROUP = 4, PARTS = INFC_VEC_LANES == 16 ? 2 : 1 }; // as the registers allow

// Sums of one quantity: PARTS accumulators a row.
typedef struct sums {
  infc_vec part[GROUP][PARTS];
} sums;

INLINE infc_vec total(const sums *s, int row) {
  infc_vec sum = s->part[row][0];
  for (int k = 1; k < PARTS; k++)
    sum += s->part[row][k];
  return vec_sum(sum);
}

// Sums of the rows' elements, or of their squares. With a residual, s = x + residual is stored first.
INLINE sums first_pass(const float *x, const float *residual, float *s, int64_t n, int count, bool squares) {
  const infc_vec zero = vec_set(0.0f);
  sums sum = {{{zero}}};
#define STEP(at, lanes, k)                                                                                             \
  EACH_ROW {                                                                                                           \
    infc_vec v = vec_load_lanes(x + r * n + (at), lanes, zero), *a = &sum.part[r][(k) % PARTS];                        \
    if (residual) {                                                                                                    \
      v += vec_load_lanes(residual + r * n + (at), lanes, zero);                                                       \
      vec_store_lanes(s + r * n + (at), lanes, v);                                                                     \
    }                                                                                                                  \
    *a = squares ? vec_fma(v, v, *a) : vec_add(*a, v);                                                                 \
  }
  INFC_VEC_EACH(n, STEP);
#undef STEP
  return sum;
}

// Sums of deviations from the mean and of their squares.
INLINE void second_pass(const float *s, int64_t n, int count, const infc_vec *mean, sums *deviations, sums *squares) {
  const infc_vec zero = vec_set(0.0f);
  *deviations = *squares = (sums){{{zero}}};
#define STEP(at, lanes, k)                                                                                             \
  EACH_ROW {                                                                                                           \
    infc_vec d = vec_load_lanes(s + r * n + (at), lanes, mean[r]) - mean[r];                                           \
    deviations->part[r][(k) % PARTS] += d;                                                                             \
    squares->part[r][(k) % PARTS] = vec_fma(d, d, squares->part[r][(k) % PARTS]);                                      \
  }
  INFC_VEC_EACH(n, STEP);
#undef STEP
}

// y = ((s - mean) * factor + offset) * gamma + beta
INLINE void last_pass(const float *s, const float *gamma, const float *beta, float *y, int64_t n, int count,
                      const infc_vec *mean, const infc_vec *factor, const infc_vec *offset) {
  const infc_vec zero = vec_set(0.0f), one = vec_set(1.0f);
#define STEP(at, lanes, k)                                                                                             \
  do {                                                                                                                 \
    infc_vec g = gamma ? vec_load_lanes(gamma + (at), lanes, zero) : one;                                              \
    infc_vec b = beta ? vec_load_lanes(beta + (at), lanes, zero) : zero;                                               \
    EACH_ROW {                                                                                                         \
      infc_vec v = vec_load_lanes(s + r * n + (at), lanes, zero);                                                      \
      v = mean ? vec_fma(v - mean[r], factor[r], offset[r]) : vec_mul(v, factor[r]);                                   \
      vec_store_lanes(y + r * n + (at), lanes, vec_fma(v, g, b));                                                      \
    }                                                                                                                  \
  } while (0)
  INFC_VEC_EACH(n, STEP);
#undef STEP
}

INLINE void norm_rows(const infc_norm *norm, int64_t row, int count, bool layer, bool has_residual) {
  const int64_t n = norm->n, at = row * n;
  const infc_vec scale = vec_set(1.0f / (float)n), epsilon = vec_set(norm->epsilon), one = vec_set(1.0f);
  const float *x = norm->x + at, *s = x;
  float *y = norm->y + at, *stored = norm->sum ? norm->sum + at : y;
  if (has_residual)
    s = stored;
  else if (norm->sum)
    s = memmove(stored, x, (size_t)(count * n) * sizeof(float));
  sums sum = first_pass(x, has_residual ? norm->residual + at : NULL, stored, n, count, !layer);
  infc_vec mean[GROUP], factor[GROUP], offset[GROUP];
  if (!layer) {
    EACH_ROW {
      infc_vec squares = total(&sum, r);
      factor[r] = one / (norm->kind == INFC_NORM_RMS ? vec_sqrt(vec_fma(squares, scale, epsilon))
                                                     : vec_max(epsilon, vec_sqrt(squares)));
    }
    last_pass(s, norm->gamma, norm->beta, y, n, count, NULL, factor, offset);
    return;
  }
  sums deviations, squares;
  EACH_ROW mean[r] = total(&sum, r) * scale;
  second_pass(s, n, count, mean, &deviations, &squares);
  EACH_ROW {
    // What rounding left of the mean: rows with a large mean would be off by its last place.
    infc_vec rest = total(&deviations, r) * scale;
    infc_vec variance = vec_max(vec_set(0.0f), vec_fnma(rest, rest, total(&squares, r) * scale));
    factor[r] = one / vec_sqrt(variance + epsilon);
    offset[r] = -(rest * factor[r]);
  }
  last_pass(s, norm->gamma, norm->beta, y, n, count, mean, factor, offset);
}

INLINE void norm_all(const infc_norm *norm, bool layer, bool has_residual) {
  int64_t row = 0;
  for (; row + GROUP <= norm->rows; row += GROUP)
    norm_rows(norm, row, GROUP, layer, has_residual);
  for (; row < norm->rows; row++)
    norm_rows(norm, row, 1, layer, has_residual);
}

infc_fault INFC_VEC_KERNEL(norm_f32)(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_norm norm = infc_norm_open(task, range);
  if (norm.kind == INFC_NORM_LAYER && norm.residual)
    norm_all(&norm, true, true);
  else if (norm.kind == INFC_NORM_LAYER)
    norm_all(&norm, true, false);
  else if (norm.residual)
    norm_all(&norm, false, true);
  else
    norm_all(&norm, false, false);
  return INFC_FAULT_NONE;
}
