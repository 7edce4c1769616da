// Every `reduce` kernel against the scalar reference: kinds, shapes, row splits, special values, integers; and the
// validator.
#include "step.h"

#include <math.h>

static const infc_kernel *scalar;

static void make(test_step *s, void *x, void *y, uint8_t dtype, uint32_t kind, int64_t rows, int64_t n, int64_t inner) {
  test_step_init(s, rows, 0);
  test_operand(s, false, x, dtype, rows, n * inner, n * inner);
  test_operand(s, true, y, dtype, rows, inner, inner);
  test_word(s, kind);
  test_word(s, (uint32_t)n);
  test_word(s, (uint32_t)inner);
}

// Errors are measured against the sum of magnitudes, which bounds what rounding can do.
static float tolerance(const float *x, int64_t n, int64_t inner, uint32_t kind, float want) {
  float sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += isfinite(x[i * inner]) ? fabsf(x[i * inner]) : 0;
  if (kind == INFC_REDUCE_MAX || kind == INFC_REDUCE_MIN)
    return 0;
  if (kind == INFC_REDUCE_SUM)
    return 2e-6f * sum;
  if (kind == INFC_REDUCE_MEAN)
    return 2e-6f * sum / (float)n;
  return isfinite(want) ? 3e-5f * fabsf(want) + 2e-6f : 0;
}

static void test_f32(const infc_kernel *kernel, test_rng *rng, uint32_t kind, int64_t n, int64_t inner, bool special) {
  const int64_t rows = 4;
  float *x = test_alloc((size_t)(rows * n * inner) * 4), *want = test_alloc((size_t)(rows * inner) * 4);
  float *y = test_alloc((size_t)(rows * inner) * 4);
  test_fill_random(rng, x, (size_t)(rows * n * inner), -2, 2);
  const float specials[] = {NAN, INFINITY, -INFINITY, 0.0f};
  for (int64_t row = 0; special && row < rows; row++)
    x[row * n * inner + (int64_t)(test_random(rng) % (uint64_t)(n * inner))] = specials[row];
  test_step s;
  make(&s, x, want, INFC_DTYPE_F32, kind, rows, n, inner);
  CHECK(test_validate(&s, INFC_OP_REDUCE, 0), "kind %u", kind);
  test_run(&s, scalar, 1, 1, NULL);
  make(&s, x, y, INFC_DTYPE_F32, kind, rows, n, inner);
  test_run(&s, kernel, 3, 1, NULL);
  for (int64_t at = 0; at < rows * inner; at++)
    CHECK(test_close(y[at], want[at], tolerance(x + at / inner * n * inner + at % inner, n, inner, kind, want[at])),
          "%s kind %u n %d inner %d: %g is not %g", kernel->name, kind, (int)n, (int)inner, y[at], want[at]);
  test_free(x), test_free(want), test_free(y);
}

// log_sum_exp of nothing but infinities.
static void test_infinite(const infc_kernel *kernel) {
  float x[40], y[2];
  for (int i = 0; i < 40; i++)
    x[i] = i < 20 ? -INFINITY : 1e30f;
  test_step s;
  make(&s, x, y, INFC_DTYPE_F32, INFC_REDUCE_LOG_SUM_EXP, 2, 20, 1);
  test_run(&s, kernel, 1, 1, NULL);
  CHECK(y[0] == -INFINITY && y[1] == 1e30f, "%s: %g, %g", kernel->name, y[0], y[1]);
}

#define TEST_INTEGER(type, dtype, big, bigger)                                                                         \
  static void test_##type(const infc_kernel *kernel) {                                                                 \
    type x[12] = {1, -2, 3, -4, 5, 6, big, 1, 1, 1, big, 1}, y[4];                                                     \
    const struct {                                                                                                     \
      uint32_t kind;                                                                                                   \
      type want[4];                                                                                                    \
    } cases[] = {{INFC_REDUCE_SUM, {9, 0, bigger, 3}},                                                                 \
                 {INFC_REDUCE_PROD, {15, 48, (type)((uint64_t)(big) * (uint64_t)(big)), 1}},                           \
                 {INFC_REDUCE_MAX, {5, 6, big, 1}},                                                                    \
                 {INFC_REDUCE_MIN, {1, -4, 1, 1}}};                                                                    \
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {                                                        \
      test_step s;                                                                                                     \
      make(&s, x, y, dtype, cases[i].kind, 2, 3, 2);                                                                   \
      CHECK(test_validate(&s, INFC_OP_REDUCE, 0), #type);                                                              \
      test_run(&s, kernel, 2, 1, NULL);                                                                                \
      CHECK(memcmp(y, cases[i].want, sizeof y) == 0, "%s " #type " kind %u", kernel->name, cases[i].kind);             \
    }                                                                                                                  \
  }
TEST_INTEGER(int32_t, INFC_DTYPE_I32, INT32_MAX, -1)
TEST_INTEGER(int64_t, INFC_DTYPE_I64, INT64_MAX, -1)

static void test_validator(void) {
  float data[24];
  test_step good, s;
  make(&good, data, data, INFC_DTYPE_F32, INFC_REDUCE_MEAN, 4, 3, 2);
  CHECK(test_validate(&good, INFC_OP_REDUCE, 1), "the good step");
#define REFUSES(change)                                                                                                \
  do {                                                                                                                 \
    s = good;                                                                                                          \
    s.task.operands = s.operands, s.task.words = s.words, s.task.step = &s.step;                                       \
    change;                                                                                                            \
    CHECK(!test_validate(&s, INFC_OP_REDUCE, 1), #change);                                                             \
  } while (0)
  REFUSES(s.words[INFC_W_REDUCE_KIND] = INFC_REDUCE_COUNT);
  REFUSES(s.words[INFC_W_REDUCE_REDUCED] = 0);
  REFUSES(s.words[INFC_W_REDUCE_INNER] = 0);
  REFUSES(s.words[INFC_W_REDUCE_REDUCED] = 4);
  REFUSES(s.words[INFC_W_REDUCE_INNER] = 1);
  REFUSES(s.words[INFC_W_REDUCE_REDUCED] = s.words[INFC_W_REDUCE_INNER] = 0xFFFFFFFF);
  REFUSES(s.step.word_count--);
  REFUSES(s.step.input_count++);
  REFUSES(s.step.rows = 2);
  REFUSES(s.step.rows_symbol = 0);
  REFUSES(s.operands[0].dtype = s.operands[1].dtype = INFC_DTYPE_I64); // mean of integers
  REFUSES(s.operands[0].dtype = s.operands[1].dtype = INFC_DTYPE_BOOL);
  REFUSES(s.operands[1].dtype = INFC_DTYPE_I32);
  REFUSES(s.operands[0].row_stride = 8);
  REFUSES(s.operands[1].row_stride = 3);
  REFUSES(s.operands[1].rows_symbol = 0);
}

int main(void) {
  test_rng rng = {5};
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_REDUCE && infc_kernels[k].isa == INFC_ISA_SCALAR)
      scalar = &infc_kernels[k];
  const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100};
  enum { SIZES = sizeof sizes / sizeof *sizes };
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_REDUCE || !test_supported(kernel))
      continue;
    for (uint32_t kind = 0; kind < INFC_REDUCE_COUNT; kind++) {
      for (int i = 0; i < SIZES; i++) {
        for (int j = 0; j < SIZES; j++)
          test_f32(kernel, &rng, kind, sizes[i], sizes[j], (i + j) % 3 == 0);
        // A long product underflows to zero on the way, and zero times infinity is NaN or not by order.
        test_f32(kernel, &rng, kind, 1 + 30 * sizes[i], 1, i % 2 == 0 && kind != INFC_REDUCE_PROD);
      }
    }
    test_infinite(kernel);
    test_int32_t(kernel);
    test_int64_t(kernel);
  }
  test_validator();
  return test_result();
}
