// cast: every pair of types, with the values at the edges of their ranges.
#include "step.h"

#include <math.h>

static const uint8_t dtypes[] = {INFC_DTYPE_F32, INFC_DTYPE_F64, INFC_DTYPE_I32, INFC_DTYPE_I64,
                                 INFC_DTYPE_U8,  INFC_DTYPE_I8,  INFC_DTYPE_BOOL};
static const size_t sizes[] = {4, 8, 4, 8, 1, 1, 1};
enum { F32, F64, I32, I64, U8, I8, B8, TYPES, N = 60 };

// A value in the widest type of its kind.
typedef struct number {
  bool real;
  double d;
  int64_t i;
} number;

static number load(int type, const void *data, int64_t at) {
  switch (type) {
  case F32:
    return (number){true, ((const float *)data)[at], 0};
  case F64:
    return (number){true, ((const double *)data)[at], 0};
  case I32:
    return (number){false, 0, ((const int32_t *)data)[at]};
  case I64:
    return (number){false, 0, ((const int64_t *)data)[at]};
  case U8:
    return (number){false, 0, ((const uint8_t *)data)[at]};
  case I8:
    return (number){false, 0, ((const int8_t *)data)[at]};
  default:
    return (number){false, 0, ((const uint8_t *)data)[at] != 0};
  }
}

static int64_t saturated(double d, int64_t least, int64_t most) {
  if (isnan(d))
    return 0;
  d = trunc(d);
  return d <= (double)least ? least : d >= (double)most ? most : (int64_t)d;
}

static void store(int type, void *data, int64_t at, number x) {
  static const int64_t least[] = {0, 0, INT32_MIN, INT64_MIN, 0, INT8_MIN, 0};
  static const int64_t most[] = {0, 0, INT32_MAX, INT64_MAX, UINT8_MAX, INT8_MAX, 1};
  if (type == F32)
    ((float *)data)[at] = x.real ? (float)x.d : (float)x.i;
  else if (type == F64)
    ((double *)data)[at] = x.real ? x.d : (double)x.i;
  else if (type == B8)
    ((uint8_t *)data)[at] = x.real ? x.d != 0 : x.i != 0;
  else {
    int64_t i = x.real ? saturated(x.d, least[type], most[type]) : x.i; // the low bytes of i
    memcpy((char *)data + (size_t)at * sizes[type], &i, sizes[type]);
  }
}

static void fill(test_rng *rng, int type, void *data) {
  static const double reals[] = {0,         -0.0, 0.9,    -0.9,    127.5,  128,     -128.9,        -129,
                                 255.9,     256,  0x1p31, -0x1p31, 0x1p63, -0x1p63, 0x1.fffffep30, INFINITY,
                                 -INFINITY, NAN,  1e30,   -1e30};
  static const int64_t wholes[] = {0, -1, 127, 128, 255, 256, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 16777217};
  for (int64_t i = 0; i < N; i++) {
    if (type <= F64) {
      double d = i < 20 ? reals[i] : (double)test_random_float(rng, -300, 300);
      store(type, data, i, (number){true, d, 0});
    } else {
      int64_t whole = i < 11 ? wholes[i] : (int64_t)test_random(rng);
      memcpy((char *)data + (size_t)i * sizes[type], &whole, sizes[type]); // bools of any byte
    }
  }
}

static bool same(int type, const void *got, const void *want, int64_t at) {
  if (type == F32)
    return test_close(((const float *)got)[at], ((const float *)want)[at], 0);
  if (type == F64 && isnan(((const double *)want)[at]))
    return isnan(((const double *)got)[at]);
  return !memcmp((const char *)got + (size_t)at * sizes[type], (const char *)want + (size_t)at * sizes[type],
                 sizes[type]);
}

int main(void) {
  test_rng rng = {9};
  for (int from = 0; from < TYPES; from++)
    for (int to = 0; to < TYPES; to++) {
      void *x = test_alloc(N * sizes[from]), *y = test_alloc(N * sizes[to]), *want = test_alloc(N * sizes[to]);
      fill(&rng, from, x);
      for (int64_t i = 0; i < N; i++)
        store(to, want, i, load(from, x, i));
      test_step s;
      test_step_init(&s, 12, 1);
      test_operand(&s, false, x, dtypes[from], 12, 5, 5);
      test_operand(&s, true, y, dtypes[to], 12, 5, 5);
      CHECK(test_validate(&s, INFC_OP_CAST, 0), "valid");
      for (size_t k = 0; k < infc_kernel_count; k++)
        for (int parts = 1; parts <= 5; parts++) {
          if (infc_kernels[k].op != INFC_OP_CAST || !test_supported(&infc_kernels[k]))
            continue;
          memset(y, 0xEE, N * sizes[to]);
          test_run(&s, &infc_kernels[k], parts, 1, NULL);
          for (int64_t i = 0; i < N; i++)
            CHECK(same(to, y, want, i), "%s, type %d to %d, element %lld", infc_kernels[k].name, dtypes[from],
                  dtypes[to], (long long)i);
        }
      s.step.rows = 11;
      CHECK(!test_validate(&s, INFC_OP_CAST, 0), "rows do not divide the elements");
      s.step.rows = 12;
      s.operands[0].dtype = INFC_DTYPE_BF16;
      CHECK(!test_validate(&s, INFC_OP_CAST, 0), "a type that is not cast");
      s.operands[0].dtype = dtypes[from];
      s.operands[0].dims[0] = 11;
      CHECK(!test_validate(&s, INFC_OP_CAST, 0), "x is smaller than y");
      test_free(x);
      test_free(y);
      test_free(want);
    }
  return test_result();
}
