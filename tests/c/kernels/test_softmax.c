// Every `softmax` kernel against the scalar reference: odd sizes, row splits, in place, large and special values; the
// validator.
#include "step.h"

#include <math.h>

static const infc_kernel *scalar;

static void make(test_step *s, float *x, float *y, int64_t rows, int64_t n, uint32_t take_log) {
  test_step_init(s, rows, 0);
  test_operand(s, false, x, INFC_DTYPE_F32, rows, n, n);
  test_operand(s, true, y, INFC_DTYPE_F32, rows, n, n);
  test_word(s, take_log);
}

static void test_values(const infc_kernel *kernel, const float *values, int64_t rows, int64_t n, uint32_t take_log) {
  size_t size = (size_t)(rows * n) * sizeof(float);
  float *x = test_alloc(size), *want = test_alloc(size), *y = test_alloc(size);
  memcpy(x, values, size);
  test_step s;
  make(&s, x, want, rows, n, take_log);
  CHECK(test_validate(&s, INFC_OP_SOFTMAX, 0), "n %d", (int)n);
  test_run(&s, scalar, 1, 1, NULL);
  make(&s, x, y, rows, n, take_log);
  test_run(&s, kernel, 3, 1, NULL);
  // x - maximum is rounded to float, at worst by 4e-6, before the exponential.
  for (int64_t i = 0; i < rows * n; i++)
    CHECK(test_close(y[i], want[i], 8e-6f * fabsf(want[i]) + 1e-37f + 4e-7f * (float)take_log),
          "%s log %u n %d: %g is %g, not %g", kernel->name, take_log, (int)n, values[i], y[i], want[i]);
  make(&s, x, x, rows, n, take_log);
  test_run(&s, kernel, 1, 1, NULL);
  for (int64_t i = 0; i < rows * n; i++)
    CHECK(test_close(x[i], y[i], 0), "%s n %d: in place differs", kernel->name, (int)n);
  test_free(x), test_free(want), test_free(y);
}

static void test_kernel(const infc_kernel *kernel, test_rng *rng) {
  enum { ROWS = 5, MAX_N = 300 };
  static float x[ROWS * MAX_N];
  for (uint32_t take_log = 0; take_log < 2; take_log++) {
    for (int64_t n = 1; n <= MAX_N; n += n < 70 ? 1 : 23) {
      float range = n % 3 == 0 ? 1 : n % 3 == 1 ? 30 : 1e4f;
      test_fill_random(rng, x, (size_t)(ROWS * n), -range, range);
      test_values(kernel, x, ROWS, n, take_log);
    }
    test_fill_random(rng, x, ROWS * 35, -1, 1);
    x[3] = NAN;
    x[35 + 34] = INFINITY;
    x[70] = x[104] = -INFINITY;
    for (int i = 105; i < 140; i++)
      x[i] = -INFINITY;
    x[140] = 3e38f, x[141] = -3e38f;
    test_values(kernel, x, ROWS, 35, take_log);
  }
}

static void test_validator(void) {
  float data[24];
  test_step good, s;
  make(&good, data, data, 4, 6, 0);
  CHECK(test_validate(&good, INFC_OP_SOFTMAX, 1), "the good step");
#define REFUSES(change)                                                                                                \
  do {                                                                                                                 \
    s = good;                                                                                                          \
    s.task.operands = s.operands, s.task.words = s.words, s.task.step = &s.step;                                       \
    change;                                                                                                            \
    CHECK(!test_validate(&s, INFC_OP_SOFTMAX, 1), #change);                                                            \
  } while (0)
  REFUSES(s.words[INFC_W_SOFTMAX_LOG] = 2);
  REFUSES(s.step.word_count = 0);
  REFUSES(s.step.input_count = 0);
  REFUSES(s.step.rows = 5);
  REFUSES(s.step.rows_symbol = 0);
  REFUSES(s.operands[0].rank = 0);
  REFUSES(s.operands[0].rank = 9);
  for (int i = 0; i < 2; i++) {
    REFUSES(s.operands[i].dtype = INFC_DTYPE_I32);
    REFUSES(s.operands[i].row_stride = 7);
    REFUSES(s.operands[i].dims[1] = 5);
    REFUSES(s.operands[i].rows_symbol = 0);
  }
}

int main(void) {
  test_rng rng = {11};
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_SOFTMAX && infc_kernels[k].isa == INFC_ISA_SCALAR)
      scalar = &infc_kernels[k];
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_SOFTMAX && test_supported(&infc_kernels[k]))
      test_kernel(&infc_kernels[k], &rng);
  test_validator();
  return test_result();
}
