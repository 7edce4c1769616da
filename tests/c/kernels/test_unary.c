// Every `unary` kernel against the scalar reference: all functions and types, odd sizes, row splits, in place; and the
// validator.
#include "step.h"

#include <math.h>

static const infc_kernel *scalar;

static void make(test_step *s, uint32_t function, void *x, void *y, uint8_t x_type, uint8_t y_type, int64_t rows,
                 int64_t inner) {
  test_step_init(s, rows, 0);
  test_operand(s, false, x, x_type, rows, inner, inner);
  test_operand(s, true, y, y_type, rows, inner, inner);
  test_word(s, function);
  test_word(s, test_float_word(-0.5f));
  test_word(s, test_float_word(2.5f));
}

static bool to_bool(uint32_t function) {
  return function == INFC_UNARY_ISNAN || function == INFC_UNARY_ISINF;
}

static void fill_f32(test_rng *rng, float *x, int n) {
  const float special[] = {0.0f,  -0.0f,  INFINITY, -INFINITY, NAN,  1e-42f, -1e-42f,
                           3e38f, -3e38f, 0.5f,     -1.5f,     2.5f, 1e6f};
  test_fill_random(rng, x, (size_t)n, -6.0f, 6.0f);
  for (int i = 0; i < n; i += 7)
    x[i] = special[test_random(rng) % (sizeof special / sizeof *special)];
}

// Vector results may differ from the reference by rounding; test_math.c holds the exact bounds.
static bool near(float got, float want) {
  return test_close(got, want, fabsf(want) * 0x1p-19f + 0x1p-23f);
}

static void test_f32(const infc_kernel *kernel, uint32_t function, test_rng *rng, int64_t rows, int64_t inner) {
  int64_t n = rows * inner;
  float *x = test_alloc((size_t)n * 4), *want = test_alloc((size_t)n * 4), *y = test_alloc((size_t)n * 4);
  fill_f32(rng, x, (int)n);
  test_step s;
  uint8_t type = to_bool(function) ? INFC_DTYPE_BOOL : INFC_DTYPE_F32;
  make(&s, function, x, want, INFC_DTYPE_F32, type, rows, inner);
  CHECK(test_validate(&s, INFC_OP_UNARY, 0), "function %u", function);
  test_run(&s, scalar, 1, 1, NULL);
  s.task.ptr[1] = y;
  test_run(&s, kernel, 3, 1, NULL);
  if (to_bool(function)) {
    CHECK(memcmp(y, want, (size_t)n) == 0, "%s function %u", kernel->name, function);
  } else {
    for (int64_t i = 0; i < n; i++)
      CHECK(near(y[i], want[i]), "%s function %u: f(%a) is %a, not %a", kernel->name, function, x[i], y[i], want[i]);
    s.task.ptr[1] = x;
    test_run(&s, kernel, 2, 1, NULL);
    CHECK(memcmp(x, y, (size_t)n * 4) == 0, "%s function %u: in place differs", kernel->name, function);
  }
  test_free(x), test_free(want), test_free(y);
}

#define TEST_INTEGER(type, dtype, lowest)                                                                              \
  static void test_##type(const infc_kernel *kernel) {                                                                 \
    type x[6] = {lowest, -3, -1, 0, 1, 7}, y[6];                                                                       \
    const type absolute[6] = {lowest, 3, 1, 0, 1, 7}, negative[6] = {lowest, 3, 1, 0, -1, -7};                         \
    const type sign[6] = {-1, -1, -1, 0, 1, 1}, clip[6] = {0, 0, 0, 0, 1, 2};                                          \
    const struct {                                                                                                     \
      uint32_t function;                                                                                               \
      const type *want;                                                                                                \
    } cases[] = {{INFC_UNARY_IDENTITY, x},                                                                             \
                 {INFC_UNARY_ABS, absolute},                                                                           \
                 {INFC_UNARY_NEG, negative},                                                                           \
                 {INFC_UNARY_SIGN, sign},                                                                              \
                 {INFC_UNARY_CLIP, clip}};                                                                             \
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {                                                        \
      test_step s;                                                                                                     \
      make(&s, cases[i].function, x, y, dtype, dtype, 3, 2);                                                           \
      CHECK(test_validate(&s, INFC_OP_UNARY, 0), #type);                                                               \
      test_run(&s, kernel, 2, 1, NULL);                                                                                \
      CHECK(memcmp(y, cases[i].want, sizeof y) == 0, #type " function %u", cases[i].function);                         \
    }                                                                                                                  \
  }
TEST_INTEGER(int8_t, INFC_DTYPE_I8, INT8_MIN)
TEST_INTEGER(int16_t, INFC_DTYPE_I16, INT16_MIN)
TEST_INTEGER(int32_t, INFC_DTYPE_I32, INT32_MIN)
TEST_INTEGER(int64_t, INFC_DTYPE_I64, INT64_MIN)

static void test_not(const infc_kernel *kernel) {
  uint8_t x[5] = {0, 1, 1, 0, 1}, y[5];
  const uint8_t want[5] = {1, 0, 0, 1, 0};
  test_step s;
  make(&s, INFC_UNARY_NOT, x, y, INFC_DTYPE_BOOL, INFC_DTYPE_BOOL, 5, 1);
  CHECK(test_validate(&s, INFC_OP_UNARY, 0), "not");
  test_run(&s, kernel, 2, 1, NULL);
  CHECK(memcmp(y, want, sizeof y) == 0, "not");
}

static bool accepts(const test_step *s) {
  return test_validate(s, INFC_OP_UNARY, 1);
}

static void test_validator(void) {
  float data[24];
  test_step good, s;
  make(&good, INFC_UNARY_TANH, data, data, INFC_DTYPE_F32, INFC_DTYPE_F32, 4, 6);
  CHECK(accepts(&good), "the good step");
#define REFUSES(change)                                                                                                \
  do {                                                                                                                 \
    s = good;                                                                                                          \
    s.task.operands = s.operands, s.task.words = s.words, s.task.step = &s.step;                                       \
    change;                                                                                                            \
    CHECK(!accepts(&s), #change);                                                                                      \
  } while (0)
  REFUSES(s.words[INFC_W_UNARY_FUNCTION] = INFC_UNARY_COUNT);
  REFUSES(s.words[INFC_W_UNARY_FUNCTION] = INFC_UNARY_NOT);
  REFUSES(s.words[INFC_W_UNARY_FUNCTION] = INFC_UNARY_ISNAN);
  REFUSES(s.step.word_count--);
  REFUSES(s.step.input_count = 2);
  REFUSES(s.step.output_count = 0);
  REFUSES(s.step.rows = 0);
  REFUSES(s.step.rows = 5);
  REFUSES(s.step.rows_symbol = 0);
  REFUSES(s.operands[0].rows_symbol = 0);
  REFUSES(s.operands[1].rows_symbol = 0);
  REFUSES(s.operands[0].row_stride = 7);
  REFUSES(s.operands[1].row_stride = 7);
  REFUSES(s.operands[1].dims[1] = 5);
  REFUSES(s.operands[0].dtype = INFC_DTYPE_I32);
  REFUSES(s.operands[0].dtype = s.operands[1].dtype = INFC_DTYPE_I32);
  REFUSES(s.operands[0].dtype = s.operands[1].dtype = INFC_DTYPE_F16);
  REFUSES(s.operands[1].dtype = INFC_DTYPE_BOOL);
  REFUSES(s.operands[0].packing = INFC_PACK_F32_K1N32);
  REFUSES(s.operands[0].rank = s.operands[1].rank = 8;
          for (int i = 0; i < 8; i++) s.operands[0].dims[i] = s.operands[1].dims[i] = 0xFFFFFFFF);
}

int main(void) {
  test_rng rng = {42};
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_UNARY && infc_kernels[k].isa == INFC_ISA_SCALAR)
      scalar = &infc_kernels[k];
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_UNARY || !test_supported(kernel))
      continue;
    for (uint32_t function = 0; function < INFC_UNARY_COUNT; function++)
      for (int64_t inner = 1; inner <= 129 && function != INFC_UNARY_NOT; inner += inner < 20 ? 1 : 36)
        test_f32(kernel, function, &rng, 1 + inner % 5, inner);
    test_int8_t(kernel);
    test_int16_t(kernel);
    test_int32_t(kernel);
    test_int64_t(kernel);
    test_not(kernel);
  }
  test_validator();
  return test_result();
}
