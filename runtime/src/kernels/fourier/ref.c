#include "../operand.h"

typedef struct infc_complex {
  double re, im;
} infc_complex;

// A transform of `length` elements. `table` holds cos and sin of 2 pi i / length.
typedef struct infc_transform {
  const double *table;
  int64_t length;
  double sign; // of the imaginary part: -1 forward
  infc_complex *one;
} infc_transform;

static infc_complex turned(const infc_transform *t, infc_complex x, int64_t turns) {
  const double *w = t->table + 2 * (turns % t->length), re = w[0], im = t->sign * w[1];
  return (infc_complex){x.re * re - x.im * im, x.re * im + x.im * re};
}

static int64_t smallest_factor(int64_t n) {
  for (int64_t f = 2; f * f <= n; f++)
    if (n % f == 0)
      return f;
  return n;
}

// y = transform of every stride-th of n elements of x (Cooley and Tukey, 1965); n * stride is the length.
static void transform(const infc_transform *t, const infc_complex *x, int64_t stride, infc_complex *y, int64_t n) {
  if (n == 1) {
    y[0] = x[0];
    return;
  }
  const int64_t f = smallest_factor(n), m = n / f;
  for (int64_t j = 0; j < f; j++)
    transform(t, x + j * stride, stride * f, y + j * m, m);
  for (int64_t k = 0; k < m; k++) {
    for (int64_t j = 0; j < f; j++)
      t->one[j] = turned(t, y[j * m + k], j * k * stride);
    for (int64_t q = 0; q < f; q++) {
      infc_complex sum = t->one[0];
      for (int64_t j = 1; j < f; j++) {
        const infc_complex v = turned(t, t->one[j], j * q % f * m * stride);
        sum.re += v.re;
        sum.im += v.im;
      }
      y[q * m + k] = sum;
    }
  }
}

// The row as `length` complex numbers: the rest is zero or, for a real result, the mirror image.
static void read_row(const float *x, int64_t n, int64_t parts, int64_t length, bool mirrored, infc_complex *to) {
  const int64_t given = mirrored ? length / 2 + 1 : length;
  for (int64_t i = 0; i < length; i++) {
    const int64_t from = i < given ? i : length - i;
    const double re = from < n ? x[from * parts] : 0, im = from < n && parts == 2 ? x[from * parts + 1] : 0;
    to[i] = (infc_complex){re, i < given ? im : -im};
  }
}

infc_fault infc_dft_f32__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  const uint32_t *words = task->words;
  const int64_t n = words[INFC_W_DFT_N], parts = words[INFC_W_DFT_PARTS], length = words[INFC_W_DFT_LENGTH];
  const int64_t out = words[INFC_W_DFT_OUT];
  const bool inverse = words[INFC_W_DFT_INVERSE], real = words[INFC_W_DFT_REAL];
  infc_complex *x = worker->scratch, *y = x + length;
  const infc_transform t = {task->ptr[1], length, inverse ? 1 : -1, y + length};
  const double scale = inverse ? 1 / (double)length : 1;
  for (int64_t row = range->row0; row < range->row1; row++) {
    float *to = (float *)task->ptr[2] + row * out * (real ? 1 : 2);
    read_row((const float *)task->ptr[0] + row * n * parts, n, parts, length, real, x);
    transform(&t, x, 1, y, length);
    for (int64_t i = 0; i < out; i++) {
      *to++ = (float)(y[i].re * scale);
      if (!real)
        *to++ = (float)(y[i].im * scale);
    }
  }
  return INFC_FAULT_NONE;
}

bool infc_dft_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_DFT) || !infc_step_has_no_cols(step))
    return false;
  const infc_operand *x = &task->operands[0], *table = &task->operands[1], *y = &task->operands[2];
  const int64_t n = task->words[INFC_W_DFT_N], parts = task->words[INFC_W_DFT_PARTS];
  const int64_t length = task->words[INFC_W_DFT_LENGTH], out = task->words[INFC_W_DFT_OUT];
  return n > 0 && n <= INT32_MAX && (parts == 1 || parts == 2) && length > 0 && length <= INT32_MAX && out > 0 &&
         out <= length && x->dtype == INFC_DTYPE_F32 && infc_operand_holds_rows(x, step, n * parts) &&
         table->dtype == INFC_DTYPE_F64 && infc_operand_dense(table) && table->rows_symbol < 0 &&
         infc_operand_inner(table, 0) == 2 * length && y->dtype == INFC_DTYPE_F32 &&
         infc_operand_holds_rows(y, step, task->words[INFC_W_DFT_REAL] ? out : 2 * out);
}

// The row, its transform and, while that is put together, one element of each part.
size_t infc_dft_scratch(const infc_task *task) {
  return 3 * (size_t)task->words[INFC_W_DFT_LENGTH] * sizeof(infc_complex);
}
