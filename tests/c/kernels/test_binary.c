// binary: every function, type and layout against one element at a time, written apart from the kernels.
#include "nest_step.h"

#include <math.h>

static const uint8_t dtypes[] = {INFC_DTYPE_F32, INFC_DTYPE_F64,  INFC_DTYPE_I32,
                                 INFC_DTYPE_I64, INFC_DTYPE_BOOL, INFC_DTYPE_U64};

static size_t size_of(uint8_t dtype) {
  return dtype == INFC_DTYPE_BOOL ? 1 : dtype == INFC_DTYPE_F32 || dtype == INFC_DTYPE_I32 ? 4 : 8;
}

static bool is_float(uint8_t dtype) {
  return dtype == INFC_DTYPE_F32 || dtype == INFC_DTYPE_F64;
}
static bool is_comparison(uint32_t f) {
  return f >= INFC_BINARY_EQUAL && f <= INFC_BINARY_GREATER_EQUAL;
}
static bool has_meaning(uint32_t f, uint8_t dtype) {
  if (f >= INFC_BINARY_AND && f <= INFC_BINARY_XOR)
    return dtype == INFC_DTYPE_BOOL;
  if (dtype == INFC_DTYPE_BOOL)
    return f == INFC_BINARY_EQUAL;
  return f <= INFC_BINARY_REM || !is_float(dtype);
}

// ---- The expected result ----

static double expect_float(uint32_t f, double a, double b, bool single) {
  switch (f) {
  case INFC_BINARY_ADD:
    return single ? (float)a + (float)b : a + b;
  case INFC_BINARY_SUB:
    return single ? (float)a - (float)b : a - b;
  case INFC_BINARY_MUL:
    return single ? (float)a * (float)b : a * b;
  case INFC_BINARY_DIV:
    return single ? (float)a / (float)b : a / b;
  case INFC_BINARY_POW:
    return single ? powf((float)a, (float)b) : pow(a, b);
  case INFC_BINARY_MOD:
    if (isfinite(a) && isinf(b))
      return a == 0 ? copysign(0, b) : (a < 0) == (b < 0) ? a : b;
    if (fmod(a, b) == 0)
      return copysign(0, b);
    return (fmod(a, b) < 0) == (b < 0) ? fmod(a, b) : single ? (float)fmod(a, b) + (float)b : fmod(a, b) + b;
  case INFC_BINARY_REM:
    return fmod(a, b);
  case INFC_BINARY_MIN:
    return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
  case INFC_BINARY_MAX:
    return isnan(a) || isnan(b) ? NAN : a < b ? b : a;
  case INFC_BINARY_PRELU:
    return a >= 0 || isnan(a) ? a : single ? (float)a * (float)b : a * b;
  }
  return f == INFC_BINARY_EQUAL        ? a == b
         : f == INFC_BINARY_LESS       ? a < b
         : f == INFC_BINARY_LESS_EQUAL ? a <= b
         : f == INFC_BINARY_GREATER    ? a > b
                                       : a >= b;
}

// In 128 bits, of which the type keeps the low ones.
static int64_t expect_integer(uint32_t f, int64_t a, int64_t b, int64_t least) {
  __extension__ typedef __int128 wide;
  switch (f) {
  case INFC_BINARY_ADD:
    return (int64_t)((wide)a + b);
  case INFC_BINARY_SUB:
    return (int64_t)((wide)a - b);
  case INFC_BINARY_MUL:
    return (int64_t)((wide)a * b);
  case INFC_BINARY_PRELU:
    return a < 0 ? (int64_t)((wide)a * b) : a;
  case INFC_BINARY_DIV:
    return b == 0 || (a == least && b == -1) ? 0 : (int64_t)((wide)a / b);
  case INFC_BINARY_MOD: {
    if (b == 0)
      return 0;
    wide quotient = (wide)a / b;
    if (quotient * b != a && (a < 0) != (b < 0))
      quotient--; // rounded down
    return (int64_t)(a - quotient * b);
  }
  case INFC_BINARY_REM:
    return b == 0 ? 0 : (int64_t)((wide)a - (wide)a / b * b);
  case INFC_BINARY_BIT_AND:
    return a & b;
  case INFC_BINARY_BIT_OR:
    return a | b;
  case INFC_BINARY_BIT_XOR:
    return a ^ b;
  case INFC_BINARY_SHIFT_LEFT:
    return b < 0 || b >= (least == INT32_MIN ? 32 : 64) ? 0 : (int64_t)((uint64_t)a << b);
  case INFC_BINARY_SHIFT_RIGHT: // as often as it matters
    for (int64_t i = 0; i < (b < 0 || b > 64 ? 64 : b); i++)
      a = a < 0 ? -((-(a + 1)) / 2 + 1) : a / 2;
    return a;
  case INFC_BINARY_POW: {
    if (b < 0)
      return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    uint64_t power = 1;
    for (int64_t i = 0; i < b; i++)
      power *= (uint64_t)a;
    return (int64_t)power;
  }
  case INFC_BINARY_MIN:
    return a < b ? a : b;
  case INFC_BINARY_MAX:
    return a < b ? b : a;
  }
  return f == INFC_BINARY_EQUAL        ? a == b
         : f == INFC_BINARY_LESS       ? a < b
         : f == INFC_BINARY_LESS_EQUAL ? a <= b
         : f == INFC_BINARY_GREATER    ? a > b
                                       : a >= b;
}

static uint64_t expect_unsigned(uint32_t f, uint64_t a, uint64_t b) {
  switch (f) {
  case INFC_BINARY_DIV:
    return b ? a / b : 0;
  case INFC_BINARY_MOD:
  case INFC_BINARY_REM:
    return b ? a - a / b * b : 0;
  case INFC_BINARY_MIN:
    return a < b ? a : b;
  case INFC_BINARY_MAX:
    return a < b ? b : a;
  case INFC_BINARY_PRELU:
    return a;
  case INFC_BINARY_SHIFT_LEFT:
    return b < 64 ? a << b : 0;
  case INFC_BINARY_SHIFT_RIGHT:
    return b < 64 ? a >> b : 0;
  case INFC_BINARY_POW: {
    uint64_t power = 1;
    for (int bit = 63; bit >= 0; bit--)
      power = power * power * (b >> bit & 1 ? a : 1);
    return power;
  }
  case INFC_BINARY_LESS:
    return a < b;
  case INFC_BINARY_LESS_EQUAL:
    return a <= b;
  case INFC_BINARY_GREATER:
    return a > b;
  case INFC_BINARY_GREATER_EQUAL:
    return a >= b;
  default: // the bits of signed integers
    return (uint64_t)expect_integer(f, (int64_t)a, (int64_t)b, INT64_MIN);
  }
}

static void expect(uint32_t f, uint8_t dtype, const void *a, int64_t at_a, const void *b, int64_t at_b, void *y,
                   int64_t at) {
  if (dtype == INFC_DTYPE_BOOL) {
    int p = ((const uint8_t *)a)[at_a] != 0, q = ((const uint8_t *)b)[at_b] != 0;
    ((uint8_t *)y)[at] = (uint8_t)(f == INFC_BINARY_EQUAL ? p == q
                                   : f == INFC_BINARY_AND ? p * q
                                   : f == INFC_BINARY_OR  ? p + q > 0
                                                          : p != q);
  } else if (is_float(dtype)) {
    bool single = dtype == INFC_DTYPE_F32;
    double r = expect_float(f, single ? ((const float *)a)[at_a] : ((const double *)a)[at_a],
                            single ? ((const float *)b)[at_b] : ((const double *)b)[at_b], single);
    if (is_comparison(f))
      ((uint8_t *)y)[at] = r != 0;
    else if (single)
      ((float *)y)[at] = (float)r;
    else
      ((double *)y)[at] = r;
  } else if (dtype == INFC_DTYPE_U64) {
    uint64_t r = expect_unsigned(f, ((const uint64_t *)a)[at_a], ((const uint64_t *)b)[at_b]);
    if (is_comparison(f))
      ((uint8_t *)y)[at] = r != 0;
    else
      ((uint64_t *)y)[at] = r;
  } else {
    bool narrow = dtype == INFC_DTYPE_I32;
    int64_t r = expect_integer(f, narrow ? ((const int32_t *)a)[at_a] : ((const int64_t *)a)[at_a],
                               narrow ? ((const int32_t *)b)[at_b] : ((const int64_t *)b)[at_b],
                               narrow ? INT32_MIN : INT64_MIN);
    if (is_comparison(f))
      ((uint8_t *)y)[at] = r != 0;
    else if (narrow)
      ((int32_t *)y)[at] = (int32_t)r;
    else
      ((int64_t *)y)[at] = r;
  }
}

// ---- Comparison ----

typedef struct expected {
  const void *got, *want;
  int64_t elements;
  uint32_t function;
  uint8_t dtype; // of the result
} expected;

static void check_numbers(const char *kernel, const void *context) {
  const expected *e = context;
  for (int64_t i = 0; i < e->elements; i++) {
    bool same;
    if (e->dtype == INFC_DTYPE_F32) {
      float got = ((const float *)e->got)[i], want = ((const float *)e->want)[i];
      float tolerance = e->function == INFC_BINARY_POW && isfinite(want) ? fabsf(want) * 3e-7f : 0;
      same = test_close(got, want, tolerance);
    } else if (e->dtype == INFC_DTYPE_F64) {
      double got = ((const double *)e->got)[i], want = ((const double *)e->want)[i];
      same = isnan(want) ? isnan(got) : got == want;
    } else {
      size_t size = size_of(e->dtype);
      same = !memcmp((const char *)e->got + (size_t)i * size, (const char *)e->want + (size_t)i * size, size);
    }
    if (!CHECK(same, "%s, function %u, type %u, element %lld", kernel, e->function, e->dtype, (long long)i))
      return;
  }
}

// ---- Inputs: small numbers, with every special value among them ----

static void fill(test_rng *rng, void *data, uint8_t dtype, int64_t count, bool exponent) {
  static const float floats[] = {0, -0.0f, 1, -1, INFINITY, -INFINITY, NAN, 1e-40f, 3e38f, -3e38f, 2, 0.5f, -0.5f};
  static const int64_t integers[] = {0, 1, -1, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, 2, -2};
  for (int64_t i = 0; i < count; i++) {
    bool special = test_random(rng) % 4 == 0;
    float real = special ? floats[test_random(rng) % 13] : test_random_float(rng, -4, 4);
    int64_t whole = special && !exponent ? integers[test_random(rng) % 9] : test_random_int(rng, -5, 9);
    if (dtype == INFC_DTYPE_F32)
      ((float *)data)[i] = real;
    else if (dtype == INFC_DTYPE_F64)
      ((double *)data)[i] = (double)real;
    else if (dtype == INFC_DTYPE_I32)
      ((int32_t *)data)[i] = (int32_t)whole;
    else if (dtype == INFC_DTYPE_I64 || dtype == INFC_DTYPE_U64)
      ((int64_t *)data)[i] = whole;
    else
      ((uint8_t *)data)[i] = test_random(rng) % 2 ? (uint8_t)test_random(rng) : 0;
  }
}

// In place: y is a or b. `exponent`: b is this everywhere.
static void run_once(test_rng *rng, uint32_t f, uint8_t dtype, const test_nest *nest, const test_layout *a,
                     const test_layout *b, int in_place, const float *exponent) {
  uint8_t result = f >= INFC_BINARY_EQUAL && f <= INFC_BINARY_XOR ? INFC_DTYPE_BOOL : dtype;
  size_t size = size_of(dtype), bytes = (size_t)nest->elements * size_of(result);
  void *pa = test_alloc((size_t)a->extent * size), *pb = test_alloc((size_t)b->extent * size), *y = test_alloc(bytes),
       *want = test_alloc(bytes);
  fill(rng, pa, dtype, a->extent, false);
  fill(rng, pb, dtype, b->extent, f == INFC_BINARY_POW);
  for (int64_t i = 0; exponent && i < b->extent; i++)
    ((float *)pb)[i] = *exponent;
  for (int64_t i = 0; i < nest->elements; i++)
    expect(f, dtype, pa, test_layout_at(nest, a, i), pb, test_layout_at(nest, b, i), want, i);
  test_step s;
  test_step_init(&s, nest->dims[0], 1);
  test_operand(&s, false, pa, dtype, a->extent, 0, 1);
  test_operand(&s, false, pb, dtype, b->extent, 0, 1);
  test_operand(&s, true, y, result, nest->elements, 0, 1);
  test_word(&s, f);
  test_nest_words(&s, nest->dims);
  test_layout_words(&s, a);
  test_layout_words(&s, b);
  expected e = {y, want, nest->elements, f, result};
  if (!in_place) {
    test_each_kernel(&s, INFC_OP_BINARY, NULL, INFC_FAULT_NONE, y, bytes, check_numbers, &e);
  } else {
    const void *source = s.task.ptr[in_place - 1];
    s.task.ptr[in_place - 1] = y;
    for (size_t k = 0; k < infc_kernel_count; k++)
      if (infc_kernels[k].op == INFC_OP_BINARY && test_supported(&infc_kernels[k])) {
        memcpy(y, source, bytes);
        test_run(&s, &infc_kernels[k], 3, 1, NULL);
        check_numbers(infc_kernels[k].name, &e);
      }
  }
  test_free(pa);
  test_free(pb);
  test_free(y);
  test_free(want);
}

static void test_functions(void) {
  test_rng rng = {5};
  for (int t = 0; t < 6; t++)
    for (uint32_t f = 0; f < INFC_BINARY_COUNT; f++) {
      if (!has_meaning(f, dtypes[t]))
        continue;
      static const int64_t lengths[] = {1, 3, 8, 15, 16, 31, 64, 257, 700};
      for (int i = 0; i < 9; i++) {
        test_nest nest = {{(uint32_t)(i % 4 + 1), 1, 1, 1, 1, (uint32_t)lengths[i]}, lengths[i] * (i % 4 + 1)};
        test_layout dense = test_layout_random(&rng, &nest, false, false, false);
        test_layout scalar = {.extent = 1};
        test_layout row = {.strides = {0, 0, 0, 0, 0, 1}, .extent = lengths[i]};
        test_layout apart = {.strides = {1, 0, 0, 0, 0, 5}, .extent = 5 * lengths[i]};
        test_layout column = {.strides = {1, 0, 0, 0, 0, 0}, .extent = i % 4 + 1};
        run_once(&rng, f, dtypes[t], &nest, &dense, &dense, 0, NULL);
        run_once(&rng, f, dtypes[t], &nest, &dense, &scalar, 0, NULL);
        run_once(&rng, f, dtypes[t], &nest, &scalar, &dense, 0, NULL);
        run_once(&rng, f, dtypes[t], &nest, &dense, &row, 0, NULL);
        run_once(&rng, f, dtypes[t], &nest, &column, &row, 0, NULL);
        run_once(&rng, f, dtypes[t], &nest, &apart, &apart, 0, NULL);
        if (f < INFC_BINARY_EQUAL) {
          run_once(&rng, f, dtypes[t], &nest, &dense, &row, 1, NULL);
          run_once(&rng, f, dtypes[t], &nest, &column, &dense, 2, NULL);
        }
      }
      for (int i = 0; i < 20; i++) {
        test_nest nest = test_nest_random(&rng, 4);
        test_layout a = test_layout_random(&rng, &nest, true, i % 2, false);
        test_layout b = test_layout_random(&rng, &nest, i % 3, true, false);
        run_once(&rng, f, dtypes[t], &nest, &a, &b, 0, NULL);
      }
    }
}

static void test_exponents(void) {
  test_rng rng = {6};
  static const float exponents[] = {2, 0.5f, -0.5f, 3, 0, 1, -1, NAN};
  for (int i = 0; i < 8; i++) {
    test_nest nest = {{3, 1, 1, 1, 5, 50}, 750};
    test_layout dense = test_layout_random(&rng, &nest, false, false, false);
    test_layout shuffled = test_layout_random(&rng, &nest, true, false, false);
    test_layout scalar = {.extent = 1};
    run_once(&rng, INFC_BINARY_POW, INFC_DTYPE_F32, &nest, &dense, &scalar, 0, &exponents[i]);
    run_once(&rng, INFC_BINARY_POW, INFC_DTYPE_F32, &nest, &dense, &scalar, 1, &exponents[i]);
    run_once(&rng, INFC_BINARY_POW, INFC_DTYPE_F32, &nest, &shuffled, &scalar, 0, &exponents[i]);
  }
}

static void test_validator(void) {
  float data[12];
  test_step s;
  test_layout layout = {.strides = {3, 0, 0, 0, 0, 1}};
  test_step_init(&s, 4, 1);
  test_operand(&s, false, data, INFC_DTYPE_F32, 4, 3, 3);
  test_operand(&s, false, data, INFC_DTYPE_F32, 4, 3, 3);
  infc_operand *y = test_operand(&s, true, data, INFC_DTYPE_F32, 4, 3, 3);
  test_word(&s, INFC_BINARY_ADD);
  test_nest_words(&s, (uint32_t[]){4, 1, 1, 1, 1, 3});
  test_layout_words(&s, &layout);
  test_layout_words(&s, &layout);
  CHECK(test_validate(&s, INFC_OP_BINARY, 4), "valid");
  s.words[INFC_W_BINARY_FUNCTION] = INFC_BINARY_AND;
  CHECK(!test_validate(&s, INFC_OP_BINARY, 4), "and of floats");
  s.words[INFC_W_BINARY_FUNCTION] = INFC_BINARY_SHIFT_LEFT;
  CHECK(!test_validate(&s, INFC_OP_BINARY, 4), "a shift of floats");
  s.words[INFC_W_BINARY_FUNCTION] = INFC_BINARY_COUNT;
  CHECK(!test_validate(&s, INFC_OP_BINARY, 4), "no such function");
  s.words[INFC_W_BINARY_FUNCTION] = INFC_BINARY_LESS;
  CHECK(!test_validate(&s, INFC_OP_BINARY, 4), "a comparison gives bool");
  y->dtype = INFC_DTYPE_BOOL;
  CHECK(test_validate(&s, INFC_OP_BINARY, 4), "a comparison gives bool");
  y->dims[1] = y->row_stride = 2;
  CHECK(!test_validate(&s, INFC_OP_BINARY, 4), "y is too small");
  y->dims[1] = y->row_stride = 3;
  s.step.rows = 3;
  CHECK(!test_validate(&s, INFC_OP_BINARY, 4), "rows are not the leading dimension");
  s.step.rows = 4;
  s.step.split[0] = INFC_SPLIT_COLS;
  CHECK(!test_validate(&s, INFC_OP_BINARY, 4), "there are no columns to split");
}

int main(void) {
  test_functions();
  test_exponents();
  test_validator();
  test_nest_fuzz(INFC_OP_BINARY, 2, (uint8_t[]){INFC_DTYPE_F32, INFC_DTYPE_F32, INFC_DTYPE_F32}, 3, 20000);
  return test_result();
}
