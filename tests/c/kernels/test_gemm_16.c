// gemm_16: the scalar reference against plain sums, every kernel on every path of this machine against the reference.
#include "cpu_features.h"
#include "kernels/gemm_16/gemm_16.h"
#include "step.h"

#include <math.h>

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct shape {
  int64_t rows, k, n;
  int pad; // elements by which row strides exceed the rows
  uint32_t format;
  bool sparse;
  uint32_t activation;
  bool scales, bias;
  uint32_t residual;
  bool in_place; // the residual is the output
} shape;

typedef struct data {
  void *a;
  float *wide_a, *plain; // a in f32; b as [k, n]
  uint8_t *b;
  float *scales, *bias, *residual;
} data;

enum fill { RANDOM, SPECIAL };

static size_t span(int64_t rows, int64_t cols, int64_t stride) {
  return (size_t)((rows - 1) * stride + cols);
}

static uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return x != x ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
static float of_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}
// By the definition: 1.mmm * 2^(e - 7), 0.mmm * 2^-6 where e is 0.
static float of_f8(uint8_t x) {
  const int e = x >> 3 & 15, m = x & 7;
  const float y = e ? ldexpf(1.0f + (float)m / 8, e - 7) : ldexpf((float)m / 8, -6);
  return x & 0x80 ? -y : y;
}
// Of normal numbers.
static float of_f16(uint16_t x) {
  const float y = ldexpf(1.0f + (float)(x & 1023) / 1024, (x >> 10 & 31) - 15);
  return x >> 15 ? -y : y;
}

// A dense weight at random, in the stored bits; and what it stands for.
static float draw_weight(uint32_t format, uint8_t *to) {
  if (format == INFC_GEMM_16_F8E4M3) {
    *to = (uint8_t)test_random(&rng);
    return of_f8(*to);
  }
  const uint16_t bits = format == INFC_GEMM_16_BF16
                            ? to_bf16(test_random_float(&rng, -1, 1))
                            : (uint16_t)((test_random(&rng) & 0x83FF) | (10 + test_random(&rng) % 6) << 10);
  memcpy(to, &bits, 2);
  return format == INFC_GEMM_16_BF16 ? of_bf16(bits) : of_f16(bits);
}

static size_t weight_bytes(const shape *s) {
  return (size_t)(infc_gemm_panels(s->n) * infc_gemm_16_lines(s->format, s->sparse, s->k) *
                  infc_gemm_16_line(s->format, s->sparse));
}

static void fill_dense(const shape *s, data *d) {
  const int64_t lines = infc_gemm_16_lines(s->format, false, s->k), line = infc_gemm_16_line(s->format, false);
  const int64_t depth = infc_gemm_16_depth(s->format, false), size = s->format == INFC_GEMM_16_F8E4M3 ? 1 : 2;
  for (int64_t i = 0; i < s->k; i++)
    for (int64_t j = 0; j < s->n; j++)
      d->plain[i * s->n + j] = draw_weight(s->format, d->b + (j / INFC_PANEL * lines + i / depth) * line +
                                                          (j % INFC_PANEL * depth + i % depth) * size);
}

static void fill_sparse(const shape *s, data *d) {
  static const uint8_t patterns[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
  const int64_t lines = infc_gemm_16_lines(s->format, true, s->k), line = infc_gemm_16_line(s->format, true);
  for (int64_t i = 0; i < s->k / 4; i++)
    for (int64_t j = 0; j < s->n; j++) {
      uint8_t *at = d->b + (j / INFC_PANEL * lines + i / 8) * line;
      const uint32_t code = (uint32_t)(test_random(&rng) % 6);
      uint32_t codes;
      memcpy(&codes, at + j % INFC_PANEL * 4, 4);
      codes |= (code | (uint32_t)(i % 2) << 3) << i % 8 * 4;
      memcpy(at + j % INFC_PANEL * 4, &codes, 4);
      for (int p = 0; p < 2; p++)
        d->plain[(i * 4 + patterns[code][p]) * s->n + j] =
            draw_weight(s->format, at + (1 + i % 8) * INFC_PANEL * 4 + j % INFC_PANEL * 4 + p * 2);
    }
}

static data make_data(const shape *s, enum fill fill) {
  const size_t a_size = span(s->rows, s->k, s->k + s->pad), y_size = span(s->rows, s->n, s->n + s->pad);
  const size_t n = (size_t)s->n, element = s->format == INFC_GEMM_16_F16 ? 4 : 2;
  data d = {.a = test_alloc(a_size * element),
            .wide_a = test_alloc(a_size * 4),
            .plain = test_alloc((size_t)(s->k * s->n) * 4),
            .b = test_alloc(weight_bytes(s)),
            .scales = test_alloc(n * 4),
            .bias = test_alloc(n * 4),
            .residual = test_alloc(y_size * 4)};
  memset(d.plain, 0, (size_t)(s->k * s->n) * 4);
  memset(d.b, 0, weight_bytes(s));
  test_fill_random(&rng, d.wide_a, a_size, -1, 1);
  if (fill == SPECIAL)
    d.wide_a[0] = NAN, d.wide_a[a_size - 1] = INFINITY;
  for (size_t i = 0; i < a_size; i++) {
    if (element == 2)
      d.wide_a[i] = of_bf16(((uint16_t *)d.a)[i] = to_bf16(d.wide_a[i]));
    else
      ((float *)d.a)[i] = d.wide_a[i];
  }
  if (s->sparse)
    fill_sparse(s, &d);
  else
    fill_dense(s, &d);
  test_fill_random(&rng, d.scales, n, 0.5f, 1);
  for (size_t i = 0; i < n; i++) // results about 1
    d.scales[i] /= sqrtf((float)s->k) * (s->format == INFC_GEMM_16_F8E4M3 ? 100 : 1);
  test_fill_random(&rng, d.bias, n, -1, 1);
  test_fill_random(&rng, d.residual, y_size, -1, 1);
  if (fill == SPECIAL)
    d.residual[0] = -INFINITY, d.bias[s->n - 1] = NAN, d.scales[0] = INFINITY;
  return d;
}

static void free_data(data *d) {
  void *all[] = {d->a, d->wide_a, d->plain, d->b, d->scales, d->bias, d->residual};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    test_free(all[i]);
}

static void make_step(test_step *t, const shape *s, const data *d, float *y) {
  const int64_t panels = infc_gemm_panels(s->n), ldy = s->n + s->pad, bytes = (int64_t)weight_bytes(s) / panels;
  test_step_init(t, s->rows, panels);
  test_operand(t, false, d->a, infc_gemm_16_a_type(s->format), s->rows, s->k, s->k + s->pad);
  test_operand(t, false, d->b, INFC_DTYPE_U8, panels, bytes, bytes);
  if (s->scales)
    test_operand(t, false, d->scales, INFC_DTYPE_F32, s->n, 0, 1);
  if (s->bias)
    test_operand(t, false, d->bias, INFC_DTYPE_F32, s->n, 0, 1);
  if (s->residual)
    test_operand(t, false, s->in_place ? y : d->residual, INFC_DTYPE_F32, s->rows, s->n, ldy);
  test_operand(t, true, y, INFC_DTYPE_F32, s->rows, s->n, ldy);
  const uint32_t words[INFC_WORDS_GEMM_16] = {s->activation, s->bias,   s->residual,    s->scales,
                                              s->format,     s->sparse, (uint32_t)s->k, (uint32_t)s->n};
  for (int i = 0; i < INFC_WORDS_GEMM_16; i++)
    test_word(t, words[i]);
}

static float *run(const shape *s, const data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const size_t size = span(s->rows, s->n, s->n + s->pad) * 4;
  float *y = test_alloc(size);
  memset(y, 0x5A, size);
  if (s->in_place)
    memcpy(y, d->residual, size);
  test_step t;
  make_step(&t, s, d, y);
  CHECK(test_validate(&t, INFC_OP_GEMM_16, 0), "%ld x %ld x %ld", s->rows, s->k, s->n);
  CHECK(!test_run(&t, kernel, row_parts, col_parts, NULL), "fault");
  return y;
}

// Rounding of k sums: the parts are about 1 where scales make results so, or as large as the weights are.
static float tolerance(const shape *s) {
  const float large = s->format == INFC_GEMM_16_F8E4M3 ? 100 : 1;
  return s->scales ? 2e-6f + 2e-7f * sqrtf((float)s->k) : 1e-6f * large * (float)(s->k + 4);
}

static void compare(const shape *s, const float *got, const float *want, const char *name) {
  const int64_t stride = s->n + s->pad, count = (int64_t)span(s->rows, s->n, stride);
  for (int64_t i = 0; i < count; i++) {
    const bool between = i % stride >= s->n; // where nothing is written
    const bool same = between ? memcmp(&got[i], &want[i], 4) == 0 : test_close(got[i], want[i], tolerance(s));
    if (!CHECK(same, "%s features %x: %ldx%ldx%ld format %u%s act %u at %ld,%ld: %g, expected %g", name,
               infc_cpu_features(), s->rows, s->k, s->n, s->format, s->sparse ? " sparse" : "", s->activation,
               i / stride, i % stride, (double)got[i], (double)want[i]))
      return;
  }
}

static void check_plain_sums(const shape *s, const data *d, const float *y) {
  for (int64_t r = 0; r < s->rows; r++)
    for (int64_t c = 0; c < s->n; c++) {
      double sum = 0;
      for (int64_t i = 0; i < s->k; i++)
        sum += (double)d->wide_a[r * (s->k + s->pad) + i] * (double)d->plain[i * s->n + c];
      CHECK(y[r * (s->n + s->pad) + c] == (float)sum, "sum %g, expected %g", (double)y[r * (s->n + s->pad) + c], sum);
    }
}

static void check_shape(const shape *s, enum fill fill, int split_count) {
  static const int splits[][2] = {{1, 1}, {3, 2}, {1, 3}, {40, 1}};
  static const uint32_t masks[] = {~0u, 0};
  data d = make_data(s, fill);
  float *want = NULL;
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_GEMM_16 || !test_supported(kernel))
      continue;
    if (!want) {
      want = run(s, &d, kernel, 1, 1);
      if (fill == RANDOM && !s->scales && !s->bias && !s->residual && !s->activation)
        check_plain_sums(s, &d, want);
    }
    for (size_t m = 0; m < 2; m++) {
      infc_cpu_allow(masks[m]);
      for (int j = 0; j < split_count; j++) {
        float *got = run(s, &d, kernel, splits[j][0], splits[j][1]);
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
                                       INFC_UNARY_IDENTITY,  INFC_UNARY_HARD_SWISH};
  for (int64_t i = 1; i <= 60; i++)
    check_shape(&(shape){.rows = 1 + i * 5 % 27,
                         .k = i % 4 == 3 ? 32 * (1 + i % 5) : i,
                         .n = 1 + i * 7 % 70,
                         .pad = (int)(i % 3),
                         .format = i % 4 == 3 ? INFC_GEMM_16_BF16 : (uint32_t)(i % 4),
                         .sparse = i % 4 == 3},
                RANDOM, 1);
  for (int64_t rows = 1; rows <= 40; rows++)
    for (uint32_t form = 0; form < 4; form++)
      check_shape(&(shape){.rows = rows,
                           .k = form == 3 ? 32 * (1 + rows * 7 % 10) : 1 + rows * 37 % 300,
                           .n = 64 + rows % 2,
                           .format = form % 3,
                           .sparse = form == 3,
                           .scales = true},
                  RANDOM, 4);
  for (int i = 0; i < 160; i++) {
    const uint32_t form = (uint32_t)(i % 4), residual = (uint32_t)test_random_int(&rng, 0, 2);
    const int64_t k = test_random_int(&rng, 1, i % 10 ? 90 : 1200);
    const shape s = {test_random_int(&rng, 1, 45),
                     form == 3 ? (k + 31) / 32 * 32 : k,
                     test_random_int(&rng, 1, 130),
                     i % 3 ? 0 : (int)test_random_int(&rng, 1, 9),
                     form % 3,
                     form == 3,
                     functions[i / 4 % 8],
                     true,
                     test_random(&rng) & 1,
                     residual,
                     residual && test_random(&rng) & 1};
    check_shape(&s, i % 16 >= 12 ? SPECIAL : RANDOM, 4);
  }
  // A larger than a block of rows, chunks of K, and few columns.
  for (uint32_t form = 0; form < 4; form++) {
    check_shape(&(shape){300, 1600, 33, 0, form % 3, form == 3, INFC_UNARY_GELU_ERF, true, true, 1, false}, RANDOM, 2);
    check_shape(&(shape){7, 4096, 3, 4, form % 3, form == 3, 0, true, false, 0, false}, RANDOM, 1);
  }
}

static void test_f8(void) {
  for (int i = 0; i < 256; i++)
    CHECK(of_bf16(infc_bf16_of_f8((uint8_t)i)) == of_f8((uint8_t)i), "f8 %02x", i);
}

// Each change makes a valid step invalid.
static void test_validator(void) {
  const shape s = {8, 64, 70, 0, INFC_GEMM_16_BF16, false, INFC_UNARY_RELU, true, true, 1, false};
  data d = make_data(&s, RANDOM);
  float *y = test_alloc(span(s.rows, s.n, s.n) * 4);
  test_step good;
  make_step(&good, &s, &d, y);
  CHECK(test_validate(&good, INFC_OP_GEMM_16, 0), "valid");
#define BAD(change) TEST_INVALID(good, INFC_OP_GEMM_16, 0, change)
  BAD(t.step.cols = 4);
  BAD(t.step.rows = 9);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.input_count = 4);
  BAD(t.step.output_count = 2);
  BAD(t.step.word_count = 5);
  BAD(t.words[INFC_W_GEMM_16_ACTIVATION] = INFC_UNARY_CLIP);
  BAD(t.words[INFC_W_GEMM_16_HAS_BIAS] = 0);
  BAD(t.words[INFC_W_GEMM_16_HAS_BIAS] = 0xFFFFFFFF);
  BAD(t.words[INFC_W_GEMM_16_HAS_RESIDUAL] = 3);
  BAD(t.words[INFC_W_GEMM_16_HAS_SCALES] = 0);
  BAD(t.words[INFC_W_GEMM_16_HAS_SCALES] = 2);
  BAD(t.words[INFC_W_GEMM_16_FORMAT] = INFC_GEMM_16_F16);
  BAD(t.words[INFC_W_GEMM_16_FORMAT] = INFC_GEMM_16_F8E4M3);
  BAD(t.words[INFC_W_GEMM_16_FORMAT] = INFC_GEMM_16_COUNT);
  BAD(t.words[INFC_W_GEMM_16_SPARSE] = 1);
  BAD(t.words[INFC_W_GEMM_16_SPARSE] = 2);
  BAD(t.words[INFC_W_GEMM_16_K] = 62);
  BAD(t.words[INFC_W_GEMM_16_K] = 0);
  BAD(t.words[INFC_W_GEMM_16_K] = 0xFFFFFFFF);
  BAD(t.words[INFC_W_GEMM_16_N] = 69);
  BAD(t.words[INFC_W_GEMM_16_N] = 0);
  BAD(t.words[INFC_W_GEMM_16_N] = 0xFFFFFFFF);
  BAD(t.operands[0].dtype = INFC_DTYPE_F16);
  BAD(t.operands[0].row_stride = 63);
  BAD(t.operands[0].dims[1] = 63);
  BAD(t.operands[0].rows_symbol = 0);
  BAD(t.operands[1].dtype = INFC_DTYPE_I8);
  BAD(t.operands[1].dims[1] -= 128);
  BAD(t.operands[1].dims[0] = 2);
  BAD(t.operands[1].row_stride += 128);
  BAD(t.operands[1].rows_symbol = 0);
  BAD(t.operands[2].dims[0] = 69);
  BAD(t.operands[2].dtype = INFC_DTYPE_I32);
  BAD(t.operands[3].dims[0] = 69);
  BAD(t.operands[4].dims[1] = 71);
  BAD(t.operands[5].row_stride = 69);
  BAD(t.operands[5].dtype = INFC_DTYPE_U8);
  BAD(t.operands[5].rows_symbol = 1);
  // Sparse weights come in whole lines.
  BAD(t.words[INFC_W_GEMM_16_SPARSE] = 1; t.words[INFC_W_GEMM_16_K] = t.operands[0].dims[1] = 48;
      t.operands[1].dims[1] = t.operands[1].row_stride = 2 * 1152);
  free_data(&d);
  test_free(y);
}

int main(void) {
  test_f8();
  test_shapes();
  test_validator();
  return test_result();
}
