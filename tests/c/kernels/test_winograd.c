// winograd: every kernel against the scalar reference, and that against conv's, over sizes, pads, epilogues and splits.
#include "kernels/winograd/winograd.h"
#include "window_step.h"

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct shape {
  int64_t images, h, w, channels, columns;
  int pad_h, pad_w, gap; // gap: elements by which pixels lie further apart than they must
  uint32_t activation, bias, residual;
} shape;

typedef struct data {
  float *x, *direct, *points, *bias, *residual;
} data;

static int64_t out_h(const shape *s) {
  return s->h + 2 * s->pad_h - 2;
}
static int64_t out_w(const shape *s) {
  return s->w + 2 * s->pad_w - 2;
}
static int64_t pixels(const shape *s) {
  return s->images * out_h(s) * out_w(s);
}
static int64_t packed(const shape *s) {
  return infc_gemm_panels(s->columns) * INFC_PANEL;
}

// G g G^T, G from the points by Lagrange's formula.
static void transform_weights(const float *g, int64_t step, double to[6][6]) {
  const double p[] = {0, INFC_WINOGRAD_A, -INFC_WINOGRAD_A, INFC_WINOGRAD_B, -INFC_WINOGRAD_B};
  double t[6][3] = {{0}, {0}, {0}, {0}, {0}, {0, 0, 1}};
  for (int i = 0; i < 5; i++) {
    double product = 1;
    for (int j = 0; j < 5; j++)
      product *= i == j ? 1 : p[i] - p[j];
    for (int k = 0; k < 3; k++)
      t[i][k] = (k == 0 ? 1 : k == 1 ? p[i] : p[i] * p[i]) / product;
  }
  for (int i = 0; i < 6; i++)
    for (int j = 0; j < 6; j++) {
      to[i][j] = 0;
      for (int k = 0; k < 9; k++)
        to[i][j] += t[i][k / 3] * t[j][k % 3] * (double)g[k * step];
    }
}

static data make_data(const shape *s) {
  const int64_t c = s->channels, n = packed(s);
  data d = {.x = test_rows(&rng, s->images * s->h * s->w, c, c + s->gap),
            .direct = test_rows(&rng, 1, 9 * c * n, 0),
            .points = test_alloc((size_t)(36 * c * n) * sizeof(float)),
            .bias = test_rows(&rng, 1, s->columns, 0),
            .residual = test_rows(&rng, pixels(s), s->columns, s->columns + s->gap)};
  for (int64_t panel = 0; panel < n / INFC_PANEL; panel++)
    for (int64_t i = 0; i < c * INFC_PANEL; i++) {
      double to[6][6];
      transform_weights(d.direct + panel * 9 * c * INFC_PANEL + i, c * INFC_PANEL, to);
      for (int e = 0; e < 36; e++)
        d.points[(panel * 36 + e) * c * INFC_PANEL + i] = (float)to[e / 6][e % 6];
    }
  return d;
}

static void free_data(data *d) {
  test_free(d->x);
  test_free(d->direct);
  test_free(d->points);
  test_free(d->bias);
  test_free(d->residual);
}

static void operands(test_step *t, const shape *s, const data *d, float *b, int64_t taps, float *y) {
  const int64_t n = s->columns;
  test_operand(t, false, d->x, INFC_DTYPE_F32, s->images * s->h * s->w, s->channels, s->channels + s->gap);
  test_operand(t, false, b, INFC_DTYPE_F32, taps * s->channels, n, n)->packing = INFC_PACK_F32_K1N32;
  if (s->bias)
    test_operand(t, false, d->bias, INFC_DTYPE_F32, n, 0, 1);
  if (s->residual)
    test_operand(t, false, d->residual, INFC_DTYPE_F32, pixels(s), n, n + s->gap);
  test_operand(t, true, y, INFC_DTYPE_F32, pixels(s), n, n + s->gap);
  test_word(t, s->activation);
  test_word(t, s->bias);
  test_word(t, s->residual);
}

static void make_step(test_step *t, const shape *s, const data *d, float *y) {
  test_step_init(t, s->images * ((out_h(s) + 3) / 4) * ((out_w(s) + 3) / 4), infc_gemm_panels(s->columns));
  operands(t, s, d, d->points, 36, y);
  const int64_t words[] = {s->h, s->w, out_h(s), out_w(s), s->pad_h, s->pad_w};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    test_word(t, (uint32_t)words[i]);
}

static void make_direct(test_step *t, const shape *s, const data *d, float *y) {
  const infc_window w = {{1, s->h, s->w}, {1, out_h(s), out_w(s)}, {1, 3, 3}, {1, 1, 1},
                         {1, 1, 1},       {0, s->pad_h, s->pad_w}};
  test_step_init(t, pixels(s), infc_gemm_panels(s->columns));
  operands(t, s, d, d->direct, 9, y);
  test_word(t, 1);
  test_window_words(t, &w);
  for (int i = 0; i < INFC_AXES; i++)
    test_word(t, 1);
}

static void check_shape(const shape *s) {
  data d = make_data(s);
  const int64_t stride = s->columns + s->gap, count = (pixels(s) - 1) * stride + s->columns;
  float *want = test_alloc((size_t)count * sizeof *want), *got = test_alloc((size_t)count * sizeof *got);
  test_step t;
  make_direct(&t, s, &d, want);
  CHECK(test_validate(&t, INFC_OP_CONV, 0), "conv refused");
  test_run(&t, test_scalar(INFC_OP_CONV), 1, 1, NULL);
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_WINOGRAD || !test_supported(kernel))
      continue;
    const int splits[][2] = {{1, 1}, {3, 1}, {1, 2}, {40, 1}, {2, 3}};
    for (size_t j = 0; j < sizeof splits / sizeof *splits; j++) {
      memset(got, 0x5A, (size_t)count * sizeof *got);
      make_step(&t, s, &d, got);
      CHECK(test_validate(&t, INFC_OP_WINOGRAD, 0), "refused");
      CHECK(!test_run(&t, kernel, splits[j][0], splits[j][1], NULL), "fault");
      for (int64_t i = 0; i < count; i++)
        if (i % stride < s->columns &&
            !CHECK(test_close(got[i], want[i], 1e-4f), "%s: row %ld column %ld: %g, expected %g", kernel->name,
                   i / stride, i % stride, (double)got[i], (double)want[i]))
          break;
    }
  }
  test_free(want);
  test_free(got);
  free_data(&d);
}

static void test_shapes(void) {
  static const uint32_t activations[] = {INFC_UNARY_IDENTITY, INFC_UNARY_RELU, INFC_UNARY_RELU6, INFC_UNARY_SILU};
  for (int i = 0; i < 40; i++) {
    shape s = {.images = test_random_int(&rng, 1, 2),
               .h = test_random_int(&rng, 3, 15),
               .w = test_random_int(&rng, 3, 15),
               .channels = test_random_int(&rng, 1, 50),
               .columns = test_random_int(&rng, 1, 70),
               .pad_h = (int)test_random_int(&rng, 0, 2),
               .pad_w = (int)test_random_int(&rng, 0, 2),
               .gap = (int)test_random_int(&rng, 0, 3),
               .activation = activations[test_random_int(&rng, 0, 3)],
               .bias = (uint32_t)test_random_int(&rng, 0, 1),
               .residual = (uint32_t)test_random_int(&rng, 0, 2)};
    check_shape(&s);
  }
  const shape blocks = {.images = 1, .h = 50, .w = 30, .channels = 66, .columns = 33, .pad_h = 1, .pad_w = 1};
  check_shape(&blocks); // more tiles than one block holds
}

#define BAD(change)                                                                                                    \
  do {                                                                                                                 \
    make_step(&t, &s, &d, y);                                                                                          \
    change;                                                                                                            \
    CHECK(!test_validate(&t, INFC_OP_WINOGRAD, 4), "%s passed", #change);                                              \
  } while (0)

static void test_validator(void) {
  const shape s = {
      .images = 2, .h = 9, .w = 8, .channels = 5, .columns = 40, .pad_h = 1, .pad_w = 1, .bias = 1, .residual = 1};
  data d = make_data(&s);
  float *y = test_rows(&rng, pixels(&s), 40, 40);
  test_step t;
  make_step(&t, &s, &d, y);
  CHECK(test_validate(&t, INFC_OP_WINOGRAD, 4), "refused");
  for (int word = INFC_W_WINOGRAD_IN_H; word <= INFC_W_WINOGRAD_OUT_W; word++) {
    BAD(t.words[word] = 0);
    BAD(t.words[word] = 0x7FFFFFFF);
    BAD(t.words[word] = 0x80000000);
  }
  BAD(t.step.rows--);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.cols = 3);
  BAD(t.step.word_count--);
  BAD(t.words[INFC_W_WINOGRAD_ACTIVATION] = INFC_UNARY_CLIP);
  BAD(t.words[INFC_W_WINOGRAD_HAS_BIAS] = 2);
  BAD(t.words[INFC_W_WINOGRAD_HAS_RESIDUAL] = 3);
  BAD(t.operands[0].dims[0]--);
  BAD(t.operands[0].row_stride = 4);
  BAD(t.operands[1].dims[0]--);
  BAD(t.operands[1].packing = INFC_PACK_ROW_MAJOR);
  BAD(t.operands[2].dims[0] = 39);
  BAD(t.operands[3].dims[0]--);
  BAD(t.operands[4].dims[1] = 39);
  BAD(t.operands[4].dtype = INFC_DTYPE_I32);
  test_free(y);
  free_data(&d);
}

int main(void) {
  test_shapes();
  test_validator();
  return test_result();
}
