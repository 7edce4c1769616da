// gemm_i8: the scalar reference against plain sums, every kernel on every path of this machine against the reference.
// Sums are exact, so without an activation results agree bit by bit.
#include "cpu_features.h"
#include "kernels/gemm_i8/gemm_i8.h"
#include "step.h"

#include <math.h>

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct shape {
  int64_t rows, k, n;
  int pad; // elements by which row strides exceed the rows
  uint32_t activation;
  bool dynamic, bias, out;
  uint32_t residual;
  bool in_place; // the residual is the output
  bool sparse;
} shape;

typedef struct data {
  uint8_t *a;
  int8_t *plain, *b; // [k, n], packed
  int32_t *sums;
  float *params, *scales, *bias, *residual, out[2];
} data;

enum fill { RANDOM, EXTREMES, SPECIAL };

static size_t span(int64_t rows, int64_t cols, int64_t stride) {
  return (size_t)((rows - 1) * stride + cols);
}

static int8_t *pack(const int8_t *plain, int64_t k, int64_t n) {
  const size_t size = (size_t)(infc_gemm_panels(n) * infc_i8_lines(k) * INFC_I8_LINE);
  int8_t *b = test_alloc(size);
  memset(b, 0, size);
  for (int64_t i = 0; i < k; i++)
    for (int64_t j = 0; j < n; j++)
      b[(j / INFC_PANEL * infc_i8_lines(k) + i / INFC_I8_DEPTH) * INFC_I8_LINE + j % INFC_PANEL * INFC_I8_DEPTH +
        i % INFC_I8_DEPTH] = plain[i * n + j];
  return b;
}

// Of each four weights of a column the two at random places remain, in `plain` too.
static int8_t *pack_sparse(int8_t *plain, int64_t k, int64_t n) {
  const size_t panel = (size_t)infc_i8_panel_bytes(k, true), size = (size_t)infc_gemm_panels(n) * panel;
  int8_t *b = test_alloc(size);
  memset(b, 0, size);
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < k; i += 4) {
      int8_t *codes = b + (size_t)(j / INFC_PANEL) * panel + i / INFC_I8_UNIT * INFC_I8_UNIT_LINES * INFC_I8_LINE +
                      j % INFC_PANEL * INFC_I8_DEPTH;
      const int64_t step = i % INFC_I8_UNIT / 8, half = i % 8 / 4 * 2, first = test_random_int(&rng, 0, 2);
      const int64_t places[] = {first, test_random_int(&rng, first + 1, 3)};
      for (int64_t at = 0; at < 4; at++)
        plain[(i + at) * n + j] = at == places[0] || at == places[1] ? plain[(i + at) * n + j] : 0;
      for (int kept = 0; kept < 2; kept++) {
        codes[half + kept] = (int8_t)(codes[half + kept] | places[kept] << (2 * step));
        codes[(1 + step) * INFC_I8_LINE + half + kept] = plain[(i + places[kept]) * n + j];
      }
    }
  return b;
}

// Extremes: rows of a are all 0, all 255, or either; columns of b all -128, all 127, or either. Then all sums that
// saturate anywhere would show, and scales of 1 show sums as they are.
static data make_data(const shape *s, enum fill fill) {
  const size_t a_size = span(s->rows, s->k, s->k + s->pad), y_size = span(s->rows, s->n, s->n + s->pad);
  const size_t param_rows = s->dynamic ? (size_t)s->rows : 1, n = (size_t)s->n;
  data d = {.a = test_alloc(a_size),
            .plain = test_alloc((size_t)(s->k * s->n)),
            .sums = test_alloc(n * 4),
            .params = test_alloc(param_rows * 8),
            .scales = test_alloc(n * 4),
            .bias = test_alloc(n * 4),
            .residual = test_alloc(y_size * 4),
            .out = {0.03f, s->n % 2 ? 100 : 0}};
  for (size_t i = 0; i < a_size; i++) {
    const size_t row = i / (size_t)(s->k + s->pad);
    const uint8_t either = test_random(&rng) & 1 ? 255 : 0;
    d.a[i] = fill != EXTREMES ? (uint8_t)test_random(&rng) : row % 3 == 0 ? 255 : row % 3 == 1 ? 0 : either;
  }
  for (int64_t j = 0; j < s->n; j++) {
    for (int64_t i = 0; i < s->k; i++) {
      const int8_t either = test_random(&rng) & 1 ? -128 : 127;
      const int8_t value = fill != EXTREMES ? (int8_t)test_random(&rng) : j % 3 == 0 ? 127 : j % 3 == 1 ? -128 : either;
      d.plain[i * s->n + j] = value;
    }
    d.scales[j] = fill == EXTREMES ? 1.0f : test_random_float(&rng, 0.5f, 1) / (float)s->k;
  }
  d.b = s->sparse ? pack_sparse(d.plain, s->k, s->n) : pack(d.plain, s->k, s->n);
  for (int64_t j = 0; j < s->n; j++) {
    d.sums[j] = 0;
    for (int64_t i = 0; i < s->k; i++)
      d.sums[j] += d.plain[i * s->n + j];
  }
  for (size_t r = 0; r < param_rows; r++) {
    d.params[2 * r] = fill == EXTREMES ? 1.0f : test_random_float(&rng, 0.001f, 0.002f);
    d.params[2 * r + 1] = (float)(fill == EXTREMES ? r % 2 * 255 : (size_t)test_random(&rng) % 256);
  }
  test_fill_random(&rng, d.bias, n, -1, 1);
  test_fill_random(&rng, d.residual, y_size, -1, 1);
  if (fill == SPECIAL) {
    d.params[0] = NAN, d.params[2 * (param_rows - 1) + 1] = INFINITY, d.scales[0] = INFINITY;
    d.residual[0] = -INFINITY, d.bias[s->n - 1] = NAN, d.out[0] = s->k % 2 ? 0 : 0.03f, d.out[1] = -5;
  }
  return d;
}

static void free_data(data *d) {
  void *all[] = {d->a, d->plain, d->b, d->sums, d->params, d->scales, d->bias, d->residual};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    test_free(all[i]);
}

static void make_step(test_step *t, const shape *s, const data *d, void *y) {
  const int64_t bytes = infc_i8_panel_bytes(s->k, s->sparse), panels = infc_gemm_panels(s->n), ldy = s->n + s->pad;
  test_step_init(t, s->rows, panels);
  test_operand(t, false, d->a, INFC_DTYPE_U8, s->rows, s->k, s->k + s->pad);
  if (s->dynamic)
    test_operand(t, false, d->params, INFC_DTYPE_F32, s->rows, 2, 2);
  else
    test_operand(t, false, d->params, INFC_DTYPE_F32, 2, 0, 1);
  test_operand(t, false, d->b, INFC_DTYPE_I8, panels, bytes, bytes);
  test_operand(t, false, d->scales, INFC_DTYPE_F32, s->n, 0, 1);
  test_operand(t, false, d->sums, INFC_DTYPE_I32, s->n, 0, 1);
  if (s->bias)
    test_operand(t, false, d->bias, INFC_DTYPE_F32, s->n, 0, 1);
  if (s->residual)
    test_operand(t, false, s->in_place ? y : d->residual, INFC_DTYPE_F32, s->rows, s->n, ldy);
  if (s->out)
    test_operand(t, false, (void *)d->out, INFC_DTYPE_F32, 2, 0, 1);
  test_operand(t, true, y, s->out ? INFC_DTYPE_U8 : INFC_DTYPE_F32, s->rows, s->n, ldy);
  const uint32_t words[INFC_WORDS_GEMM_I8] = {s->activation, s->bias,        s->residual, s->out,
                                              s->dynamic,    (uint32_t)s->k, s->sparse};
  for (int i = 0; i < INFC_WORDS_GEMM_I8; i++)
    test_word(t, words[i]);
}

static void *run(const shape *s, const data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const size_t size = span(s->rows, s->n, s->n + s->pad) * (s->out ? 1 : 4);
  void *y = test_alloc(size);
  memset(y, 0x5A, size);
  if (s->in_place)
    memcpy(y, d->residual, size);
  test_step t;
  make_step(&t, s, d, y);
  CHECK(test_validate(&t, INFC_OP_GEMM_I8, 0), "%ld x %ld x %ld", s->rows, s->k, s->n);
  CHECK(!test_run(&t, kernel, row_parts, col_parts, NULL), "fault");
  return y;
}

static void compare(const shape *s, const void *got, const void *want, const char *name) {
  const bool exact = s->activation == INFC_UNARY_IDENTITY || s->activation == INFC_UNARY_RELU;
  const int64_t stride = s->n + s->pad, count = (int64_t)span(s->rows, s->n, stride);
  for (int64_t i = 0; i < count; i++) {
    bool same;
    if (s->out) {
      const int a = ((const uint8_t *)got)[i], b = ((const uint8_t *)want)[i];
      same = abs(a - b) <= !(exact || i % stride >= s->n);
    } else { // nothing between the rows is written
      const float a = ((const float *)got)[i], b = ((const float *)want)[i];
      same = i % stride >= s->n ? memcmp(&a, &b, 4) == 0 : test_close(a, b, exact ? 0 : 3e-6f);
    }
    if (!CHECK(same, "%s features %x: %ldx%ldx%ld act %u out %d at %ld,%ld", name, infc_cpu_features(), s->rows, s->k,
               s->n, s->activation, s->out, i / stride, i % stride))
      return;
  }
}

static void check_plain_sums(const shape *s, const data *d, const float *y) {
  for (int64_t r = 0; r < s->rows; r++)
    for (int64_t c = 0; c < s->n; c++) {
      int64_t sum = 0;
      for (int64_t i = 0; i < s->k; i++)
        sum += (d->a[r * (s->k + s->pad) + i] - (int)d->params[s->dynamic ? 2 * r + 1 : 1]) * d->plain[i * s->n + c];
      CHECK(y[r * (s->n + s->pad) + c] == (float)sum, "sum %ld, expected %ld", (long)y[r * (s->n + s->pad) + c], sum);
    }
}

static void check_shape(const shape *s, enum fill fill, int split_count) {
  static const int splits[][2] = {{1, 1}, {3, 2}, {1, 3}, {40, 1}};
  static const uint32_t masks[] = {~0u, 0};
  data d = make_data(s, fill);
  void *want = NULL;
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_GEMM_I8 || !test_supported(kernel))
      continue;
    if (!want) {
      want = run(s, &d, kernel, 1, 1);
      if (fill == EXTREMES && !s->bias && !s->residual && !s->out && !s->activation)
        check_plain_sums(s, &d, want);
    }
    for (size_t m = 0; m < 2; m++) {
      infc_cpu_allow(masks[m]);
      for (int j = 0; j < split_count; j++) {
        void *got = run(s, &d, kernel, splits[j][0], splits[j][1]);
        compare(s, got, want, kernel->name);
        test_free(got);
      }
    }
    infc_cpu_allow(~0u);
  }
  test_free(want);
  free_data(&d);
}

static void test_shapes(void) {
  static const uint32_t functions[] = {INFC_UNARY_IDENTITY,  INFC_UNARY_RELU,      INFC_UNARY_GELU_ERF,
                                       INFC_UNARY_GELU_TANH, INFC_UNARY_SILU,      INFC_UNARY_SIGMOID,
                                       INFC_UNARY_RELU6,     INFC_UNARY_HARD_SWISH};
  for (int64_t k = 1; k <= 100; k++)
    check_shape(&(shape){1 + k * 5 % 27, k, 1 + k * 7 % 70, (int)(k % 3), 0, k & 1, false, false, 0, false, false},
                EXTREMES, 1);
  for (int64_t rows = 1; rows <= 40; rows++)
    check_shape(&(shape){rows, 1 + rows * 37 % 600, 64 + rows % 2, 0, 0, true, false, false, 0, false, false}, EXTREMES,
                4);
  for (int i = 0; i < 150; i++) {
    const bool out = i % 5 == 4;
    const uint32_t residual = (uint32_t)test_random_int(&rng, 0, 2);
    const shape s = {test_random_int(&rng, 1, 45),
                     test_random_int(&rng, 1, i % 10 ? 90 : 1200),
                     test_random_int(&rng, 1, 130),
                     i % 3 ? 0 : (int)test_random_int(&rng, 1, 9),
                     functions[i % 8],
                     test_random(&rng) & 1,
                     test_random(&rng) & 1,
                     out,
                     residual,
                     residual && !out && test_random(&rng) & 1,
                     false};
    check_shape(&s, i % 4 == 3 ? SPECIAL : RANDOM, 4);
  }
  for (int i = 0; i < 60; i++)
    check_shape(&(shape){.rows = test_random_int(&rng, 1, 30),
                         .k = 32 * test_random_int(&rng, 1, 9),
                         .n = test_random_int(&rng, 1, 130),
                         .pad = i % 3,
                         .activation = functions[i % 2],
                         .dynamic = i & 1,
                         .bias = i % 5 == 1,
                         .out = i % 5 == 2,
                         .sparse = true},
                i % 2 ? EXTREMES : RANDOM, 4);
  // Bytes from zero on, which vector kernels finish in registers.
  static const uint32_t bounds[] = {INFC_UNARY_IDENTITY, INFC_UNARY_RELU, INFC_UNARY_RELU6};
  for (int i = 0; i < 60; i++)
    check_shape(&(shape){.rows = test_random_int(&rng, 1, 45),
                         .k = test_random_int(&rng, 1, 90),
                         .n = i % 3 ? 16 * test_random_int(&rng, 1, 7) : test_random_int(&rng, 1, 130),
                         .activation = bounds[i % 3],
                         .dynamic = i & 1,
                         .bias = i % 5 < 3,
                         .out = true},
                i % 4 == 3 ? SPECIAL : RANDOM, 4);
  // A larger than a block of rows; the longest sums; the shortest columns.
  check_shape(&(shape){300, 2000, 33, 0, INFC_UNARY_GELU_ERF, true, true, false, 1, false, false}, RANDOM, 2);
  check_shape(&(shape){7, INFC_I8_MAX_K, 3, 4, 0, true, false, false, 0, false, false}, EXTREMES, 1);
}

// Each change makes a valid step invalid.
static void test_validator(void) {
  const shape s = {8, 46, 70, 0, INFC_UNARY_RELU, true, true, true, 1, false, false};
  data d = make_data(&s, RANDOM);
  uint8_t *y = test_alloc(span(s.rows, s.n, s.n));
  test_step good;
  make_step(&good, &s, &d, y);
  CHECK(test_validate(&good, INFC_OP_GEMM_I8, 0), "valid");
#define BAD(change) TEST_INVALID(good, INFC_OP_GEMM_I8, 0, change)
  BAD(t.step.cols = 4);
  BAD(t.step.rows = 9);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.input_count = 7);
  BAD(t.step.output_count = 2);
  BAD(t.step.word_count = 5);
  BAD(t.words[INFC_W_GEMM_I8_ACTIVATION] = INFC_UNARY_CLIP);
  BAD(t.words[INFC_W_GEMM_I8_HAS_BIAS] = 0);
  BAD(t.words[INFC_W_GEMM_I8_HAS_BIAS] = 0xFFFFFFFF);
  BAD(t.words[INFC_W_GEMM_I8_HAS_RESIDUAL] = 3);
  BAD(t.words[INFC_W_GEMM_I8_HAS_OUT] = 0);
  BAD(t.words[INFC_W_GEMM_I8_HAS_OUT] = 2);
  BAD(t.words[INFC_W_GEMM_I8_DYNAMIC] = 0);
  BAD(t.words[INFC_W_GEMM_I8_DYNAMIC] = 2);
  BAD(t.words[INFC_W_GEMM_I8_SPARSE] = 1);
  BAD(t.words[INFC_W_GEMM_I8_SPARSE] = 2);
  BAD(t.words[INFC_W_GEMM_I8_K] = 44);
  BAD(t.words[INFC_W_GEMM_I8_K] = 0);
  BAD(t.words[INFC_W_GEMM_I8_K] = INFC_I8_MAX_K + 1);
  BAD(t.operands[0].dtype = INFC_DTYPE_I8);
  BAD(t.operands[0].row_stride = 45);
  BAD(t.operands[0].dims[1] = 45);
  BAD(t.operands[0].rows_symbol = 0);
  BAD(t.operands[1].dims[1] = 1);
  BAD(t.operands[1].dims[0] = 7);
  BAD(t.operands[1].dtype = INFC_DTYPE_I32);
  BAD(t.operands[2].dtype = INFC_DTYPE_U8);
  BAD(t.operands[2].dims[1] -= 128);
  BAD(t.operands[2].dims[0] = 2);
  BAD(t.operands[2].row_stride += 128);
  BAD(t.operands[2].rows_symbol = 0);
  BAD(t.operands[3].dims[0] = 69);
  BAD(t.operands[3].dtype = INFC_DTYPE_I32);
  BAD(t.operands[4].dims[0] = 69);
  BAD(t.operands[4].dtype = INFC_DTYPE_F32);
  BAD(t.operands[5].dims[0] = 69);
  BAD(t.operands[6].dims[1] = 71);
  BAD(t.operands[7].dims[0] = 1);
  BAD(t.operands[8].row_stride = 69);
  BAD(t.operands[8].dtype = INFC_DTYPE_F32);
  BAD(t.operands[8].rows_symbol = 1);
  free_data(&d);
  test_free(y);
}

int main(void) {
  test_shapes();
  test_validator();
  return test_result();
}
