// quantize and dequantize: every type and layout of scales against one element at a time.
#include "step.h"

#include <math.h>

typedef struct layout {
  uint32_t rows, axis, inner, block, row, step, each; // words from axis on
} layout;

static const layout layouts[] = {
    {1, 1, 700, 1, 0, 0, 0},   // one scale
    {6, 1, 33, 1, 0, 0, 1},    // a scale for each of the last dimension
    {3, 5, 300, 1, 0, 1, 0},   // one for each of a middle one
    {4, 7, 6, 3, 18, 6, 1},    // blocks of 3 along the axis
    {2, 600, 1, 16, 38, 1, 1}, // blocks along the last dimension
    {2, 5, 3, 2, 0, 1, 0},     // blocks with one scale
};
static const uint8_t integers[] = {INFC_DTYPE_U8, INFC_DTYPE_I8, INFC_DTYPE_U16, INFC_DTYPE_I16,
                                   INFC_DTYPE_U4, INFC_DTYPE_I4, INFC_DTYPE_U2,  INFC_DTYPE_I2};
static const int64_t least[] = {0, -128, 0, -32768, 0, -8, 0, -2}, most[] = {255, 127, 65535, 32767, 15, 7, 3, 1};

static int64_t param_at(const layout *l, int64_t at) {
  int64_t row = at / (l->axis * l->inner), a = at / l->inner % l->axis, i = at % l->inner;
  return row * l->row + a / l->block * l->step + i * l->each;
}

static int64_t read(const void *data, uint8_t dtype, int64_t at) {
  switch (dtype) {
  case INFC_DTYPE_U16:
    return ((const uint16_t *)data)[at];
  case INFC_DTYPE_I16:
    return ((const int16_t *)data)[at];
  case INFC_DTYPE_I8:
  case INFC_DTYPE_I4:
  case INFC_DTYPE_I2:
    return ((const int8_t *)data)[at];
  default:
    return ((const uint8_t *)data)[at];
  }
}

static void prepare(test_step *s, const layout *l, const void *x, uint8_t from, const float *scale, const void *zero,
                    void *y, uint8_t to, uint32_t params, bool quantize) {
  uint32_t row = l->axis * l->inner;
  test_step_init(s, l->rows, 1);
  test_operand(s, false, (void *)x, from, l->rows, row, row);
  test_operand(s, false, (void *)scale, INFC_DTYPE_F32, params, 0, 1);
  if (zero)
    test_operand(s, false, (void *)zero, quantize ? to : from, params, 0, 1);
  test_operand(s, true, y, to, l->rows, row, row);
  test_word(s, zero != NULL);
  const uint32_t words[] = {l->axis, l->inner, l->block, l->row, l->step, l->each};
  for (int i = 0; i < 6; i++)
    test_word(s, words[i]);
  if (quantize)
    test_word(s, 1);
}

static void test_integers(test_rng *rng, int t, const layout *l, bool with_zero) {
  int64_t n = (int64_t)l->rows * l->axis * l->inner, params = param_at(l, n - 1) + 1;
  size_t size = integers[t] == INFC_DTYPE_U16 || integers[t] == INFC_DTYPE_I16 ? 2 : 1;
  float *x = test_alloc((size_t)n * 4), *back = test_alloc((size_t)n * 4), *scale = test_alloc((size_t)params * 4);
  void *zero = test_alloc((size_t)params * size), *q = test_alloc((size_t)n * size);
  for (int64_t i = 0; i < params; i++) {
    scale[i] = i % 7 == 6 ? 1e-30f : test_random_float(rng, 0.01f, 0.5f);
    int64_t z = i % 5 == 0 ? least[t] : i % 5 == 1 ? most[t] : test_random_int(rng, least[t], most[t]);
    memcpy((char *)zero + (size_t)i * size, &z, size);
  }
  static const float specials[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1e30f, -1e30f};
  for (int64_t i = 0; i < n; i++) {
    x[i] = i % 9 == 8 ? specials[i % 7] : test_random_float(rng, -(float)most[t], (float)most[t]);
    if (i % 9 == 7) // halves
      x[i] = scale[param_at(l, i)] * ((float)test_random_int(rng, -20, 20) + 0.5f);
  }
  test_step s, r;
  prepare(&s, l, x, INFC_DTYPE_F32, scale, with_zero ? zero : NULL, q, integers[t], (uint32_t)params, true);
  prepare(&r, l, q, integers[t], scale, with_zero ? zero : NULL, back, INFC_DTYPE_F32, (uint32_t)params, false);
  CHECK(test_validate(&s, INFC_OP_QUANTIZE, 0) && test_validate(&r, INFC_OP_DEQUANTIZE, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++) {
    if (!test_supported(&infc_kernels[k]))
      continue;
    for (int parts = 1; infc_kernels[k].op == INFC_OP_QUANTIZE && parts <= 3; parts += 2) {
      memset(q, 0xEE, (size_t)n * size);
      test_run(&s, &infc_kernels[k], parts, 1, NULL);
      for (int64_t i = 0; i < n; i++) {
        int64_t at = param_at(l, i), z = with_zero ? read(zero, integers[t], at) : 0;
        double v = nearbyint((double)(x[i] / scale[at])) + (double)z;
        int64_t want = !(v >= (double)least[t]) ? least[t] : v > (double)most[t] ? most[t] : (int64_t)v;
        CHECK(read(q, integers[t], i) == want, "%s, type %d, element %lld: %lld, not %lld", infc_kernels[k].name,
              integers[t], (long long)i, (long long)read(q, integers[t], i), (long long)want);
      }
    }
    for (int parts = 1; infc_kernels[k].op == INFC_OP_DEQUANTIZE && parts <= 3; parts += 2) {
      memset(back, 0xEE, (size_t)n * 4);
      test_run(&r, &infc_kernels[k], parts, 1, NULL);
      for (int64_t i = 0; i < n; i++) {
        int64_t at = param_at(l, i), z = with_zero ? read(zero, integers[t], at) : 0;
        CHECK(back[i] == (float)(read(q, integers[t], i) - z) * scale[at], "%s, type %d, element %lld",
              infc_kernels[k].name, integers[t], (long long)i);
      }
    }
  }
  test_free(x);
  test_free(back);
  test_free(scale);
  test_free(zero);
  test_free(q);
}

static void test_floats(void) {
  float x[8] = {0, 1, -3, 1000, -1000, NAN, 0.01f, 5}, scale = 2, back[8];
  uint8_t q[8] = {0};
  // Codes of e4m3fn for 0, .5, -1.5, 448, -448, NaN, .005 (2.56 steps of 2^-9), 2.5
  static const uint8_t want[8] = {0x00, 0x30, 0xBC, 0x7E, 0xFE, 0x7F, 0x03, 0x42};
  layout l = {1, 1, 8, 1, 0, 0, 0};
  test_step s, r;
  prepare(&s, &l, x, INFC_DTYPE_F32, &scale, NULL, q, INFC_DTYPE_F8E4M3FN, 1, true);
  prepare(&r, &l, q, INFC_DTYPE_F8E4M3FN, &scale, NULL, back, INFC_DTYPE_F32, 1, false);
  CHECK(test_validate(&s, INFC_OP_QUANTIZE, 0) && test_validate(&r, INFC_OP_DEQUANTIZE, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_QUANTIZE && test_supported(&infc_kernels[k])) {
      test_run(&s, &infc_kernels[k], 1, 1, NULL);
      CHECK(!memcmp(q, want, 8), "%s: float8", infc_kernels[k].name);
    }
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_DEQUANTIZE && test_supported(&infc_kernels[k])) {
      test_run(&r, &infc_kernels[k], 1, 1, NULL);
      CHECK(back[1] == 1 && back[2] == -3 && back[3] == 896 && isnan(back[5]) && back[7] == 5, "%s: float8",
            infc_kernels[k].name);
    }
}

static void test_validators(void) {
  float x[24] = {0}, scale[24] = {0};
  uint8_t zero[24] = {0}, y[24];
  const layout *l = &(layout){2, 3, 4, 1, 0, 1, 0};
  test_step s;
  prepare(&s, l, x, INFC_DTYPE_F32, scale, zero, y, INFC_DTYPE_U8, 3, true);
  CHECK(test_validate(&s, INFC_OP_QUANTIZE, 0), "valid");
  static const struct {
    int word;
    uint32_t value;
  } bad[] = {{INFC_W_QUANTIZE_HAS_ZERO, 0},
             {INFC_W_QUANTIZE_HAS_ZERO, 2},
             {INFC_W_QUANTIZE_AXIS, 4},
             {INFC_W_QUANTIZE_AXIS, 0},
             {INFC_W_QUANTIZE_INNER, 5},
             {INFC_W_QUANTIZE_BLOCK, 0},
             {INFC_W_QUANTIZE_STRIDE_ROW, 1},
             {INFC_W_QUANTIZE_STRIDE_BLOCK, 2},
             {INFC_W_QUANTIZE_STRIDE_INNER, 1},
             {INFC_W_QUANTIZE_STRIDE_INNER, 2},
             {INFC_W_QUANTIZE_STRIDE_ROW, UINT32_MAX},
             {INFC_W_QUANTIZE_SATURATE, 2}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    uint32_t old = s.words[bad[i].word];
    s.words[bad[i].word] = bad[i].value;
    CHECK(!test_validate(&s, INFC_OP_QUANTIZE, 0), "word %d as %u", bad[i].word, bad[i].value);
    s.words[bad[i].word] = old;
  }
  static const uint8_t wrong[] = {
      INFC_DTYPE_F32, INFC_DTYPE_BOOL, INFC_DTYPE_I32, INFC_DTYPE_F16, INFC_DTYPE_F8E8M0, 0, 255};
  for (size_t i = 0; i < sizeof wrong; i++) {
    s.operands[2].dtype = s.operands[3].dtype = wrong[i];
    CHECK(!test_validate(&s, INFC_OP_QUANTIZE, 0), "to type %d", wrong[i]);
  }
  s.operands[3].dtype = INFC_DTYPE_U8;
  s.operands[2].dtype = INFC_DTYPE_I8;
  CHECK(!test_validate(&s, INFC_OP_QUANTIZE, 0), "a zero of another type");
  s.operands[2].dtype = INFC_DTYPE_U8;
  s.operands[1].dims[0] = 2;
  CHECK(!test_validate(&s, INFC_OP_QUANTIZE, 0), "too few scales");
}

int main(void) {
  test_rng rng = {11};
  for (int t = 0; t < 8; t++)
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
      for (int zero = 0; zero < 2; zero++)
        test_integers(&rng, t, &layouts[l], zero);
  test_floats();
  test_validators();
  return test_result();
}
