// conv_i8: every kernel, with and without VNNI, gives the bits of the scalar reference, over random windows, groups,
// strides, epilogues and splits.
#include "cpu_features.h"
#include "kernels/conv_i8/conv_i8.h"
#include "window_step.h"

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct geometry {
  infc_window w;
  int64_t images, groups, channels, columns; // of a group
  int pad;                                   // elements by which pixels lie further apart than they must
  uint32_t activation, residual;
  bool out, in_place; // the residual is the output
} geometry;

typedef struct data {
  uint8_t *x;
  int8_t *b;
  float *scales, *bias;
  int32_t *offsets;
  void *residual;
} data;

static geometry random_geometry(void) {
  static const uint32_t activations[] = {INFC_UNARY_IDENTITY, INFC_UNARY_IDENTITY, INFC_UNARY_SILU,
                                         INFC_UNARY_HARD_SWISH};
  static const int64_t up[INFC_AXES] = {1, 1, 1};
  geometry g = {.images = test_random_int(&rng, 1, 2), .pad = (int)test_random_int(&rng, 0, 3)};
  g.w = test_window(&rng, up);
  if (!test_random_int(&rng, 0, 2)) // a product of matrices
    for (int i = 0; i < INFC_AXES; i++)
      g.w.kernel[i] = g.w.dilation[i] = g.w.stride[i] = 1, g.w.pad[i] = 0, g.w.out[i] = g.w.in[i];
  g.groups = test_random_int(&rng, 0, 1) ? 1 : test_random_int(&rng, 2, 4);
  g.channels = test_random_int(&rng, 0, 1) ? test_random_int(&rng, 1, 15) : test_random_int(&rng, 4, 10) * 4;
  g.columns = test_random_int(&rng, 1, 70);
  g.activation = activations[test_random_int(&rng, 0, 3)];
  g.out = test_random_int(&rng, 0, 2);
  g.residual = (uint32_t)test_random_int(&rng, 0, 2);
  g.in_place = g.residual == (g.out ? INFC_RESIDUAL_U8 : INFC_RESIDUAL_F32) && test_random_int(&rng, 0, 1);
  return g;
}

static int64_t rows_of(const geometry *g) {
  return g->images * test_volume(g->w.out);
}
static int64_t pixels_of(const geometry *g) {
  return g->images * test_volume(g->w.in);
}
static size_t elements(const geometry *g) {
  const int64_t n = g->groups * g->columns;
  return (size_t)((rows_of(g) - 1) * (n + g->pad) + n);
}
static int64_t bytes_of_b(const geometry *g) {
  const int64_t k = test_volume(g->w.kernel) * g->channels;
  return infc_gemm_panels(g->columns) * infc_i8_lines(k) * INFC_I8_LINE;
}

// Extremes among them, whose products saturate 16 bits.
static void *random_bytes(size_t n) {
  uint8_t *bytes = test_alloc(n);
  for (size_t i = 0; i < n; i++)
    bytes[i] = (uint8_t)(test_random_int(&rng, 0, 3) ? test_random_int(&rng, 0, 255) : 127 + 128 * (int)(i % 2));
  return bytes;
}

static data make_data(const geometry *g) {
  const int64_t c = g->groups * g->channels, n = g->groups * g->columns;
  data d = {.x = random_bytes((size_t)((pixels_of(g) - 1) * (c + g->pad) + c)),
            .b = random_bytes((size_t)(g->groups * bytes_of_b(g))),
            .scales = test_rows(&rng, 1, n, 0),
            .bias = test_rows(&rng, 1, n, 0),
            .offsets = test_alloc((size_t)n * sizeof(int32_t))};
  for (int64_t i = 0; i < n; i++) {
    d.scales[i] *= 0.01f;
    d.bias[i] = d.bias[i] * 50 + 100;
    d.offsets[i] = (int32_t)test_random_int(&rng, -9000, 9000);
  }
  d.residual = g->residual == INFC_RESIDUAL_U8 || g->out ? random_bytes(elements(g) * sizeof(float))
                                                         : (void *)test_rows(&rng, 1, (int64_t)elements(g), 0);
  if (g->residual == INFC_RESIDUAL_F32)
    test_fill_random(&rng, d.residual, elements(g), -9, 9);
  return d;
}

static void free_data(data *d) {
  test_free(d->x);
  test_free(d->b);
  test_free(d->scales);
  test_free(d->bias);
  test_free(d->offsets);
  test_free(d->residual);
}

static void make_step(test_step *t, const geometry *g, const data *d, void *y) {
  const int64_t c = g->groups * g->channels, n = g->groups * g->columns;
  const int64_t panels = g->groups * infc_gemm_panels(g->columns);
  const uint8_t type = g->out ? INFC_DTYPE_U8 : INFC_DTYPE_F32;
  test_step_init(t, rows_of(g), panels);
  test_operand(t, false, d->x, INFC_DTYPE_U8, pixels_of(g), c, c + g->pad);
  test_operand(t, false, d->b, INFC_DTYPE_I8, g->groups, bytes_of_b(g), bytes_of_b(g));
  test_operand(t, false, d->scales, INFC_DTYPE_F32, n, 0, 1);
  test_operand(t, false, d->offsets, INFC_DTYPE_I32, n, 0, 1);
  test_operand(t, false, d->bias, INFC_DTYPE_F32, n, 0, 1);
  if (g->residual)
    test_operand(t, false, g->in_place ? y : d->residual,
                 g->residual == INFC_RESIDUAL_U8 ? INFC_DTYPE_U8 : INFC_DTYPE_F32, rows_of(g), n, n + g->pad);
  test_operand(t, true, y, type, rows_of(g), n, n + g->pad);
  test_word(t, g->residual);
  test_word(t, test_float_word(0.7f));
  test_word(t, (uint32_t)g->groups);
  test_word(t, 131);
  test_word(t, g->activation);
  test_word(t, g->out);
  test_word(t, test_float_word(0.9f));
  test_word(t, test_float_word(17.0f));
  test_word(t, test_float_word(g->out ? 3.0f : -50.0f));
  test_word(t, test_float_word(g->out ? 250.3f : 90.0f));
  test_window_words(t, &g->w);
}

static void *run(const geometry *g, const data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const size_t size = elements(g) * (g->out ? 1 : sizeof(float));
  void *y = test_alloc(size);
  memcpy(y, d->residual, size);
  test_step t;
  make_step(&t, g, d, y);
  CHECK(test_validate(&t, INFC_OP_CONV_I8, 0), "refused");
  CHECK(!test_run(&t, kernel, row_parts, col_parts, NULL), "fault");
  return y;
}

// Bits are the same, but for functions of which each width has its own approximation.
static void compare(const geometry *g, const void *got, const void *want, const char *name) {
  const bool exact = g->activation == INFC_UNARY_IDENTITY;
  const int64_t n = g->groups * g->columns, stride = n + g->pad;
  for (size_t i = 0; i < elements(g); i++) {
    const bool inside = (int64_t)i % stride < n;
    const float a = g->out ? ((const uint8_t *)got)[i] : ((const float *)got)[i];
    const float b = g->out ? ((const uint8_t *)want)[i] : ((const float *)want)[i];
    const float slack = exact || !inside ? 0.0f : g->out ? 1.0f : 1e-4f + 1e-5f * fabsf(b);
    if (!CHECK(fabsf(a - b) <= slack || memcmp(&a, &b, sizeof a) == 0, "%s: row %ld column %ld: %g, expected %g", name,
               (int64_t)i / stride, (int64_t)i % stride, (double)a, (double)b))
      return;
  }
}

static void check_geometry(const geometry *g) {
  static const uint32_t features[] = {~0u, 0};
  data d = make_data(g);
  void *want = run(g, &d, test_scalar(INFC_OP_CONV_I8), 1, 1);
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_CONV_I8 || !test_supported(kernel))
      continue;
    for (size_t f = 0; f < 2; f++) {
      infc_cpu_allow(features[f]);
      const int splits[][2] = {{1, 1}, {3, 1}, {1, 2}, {40, 1}, {2, 3}};
      for (size_t j = 0; j < sizeof splits / sizeof *splits; j++) {
        void *got = run(g, &d, kernel, splits[j][0], splits[j][1]);
        compare(g, got, want, kernel->name);
        test_free(got);
      }
    }
    infc_cpu_allow(~0u);
  }
  test_free(want);
  free_data(&d);
}

// More pixels than a block holds, so that blocks and tiles end where lines do not.
static void test_blocks(void) {
  geometry g = {.w = {{1, 81, 67}, {1, 81, 67}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
                .images = 1,
                .groups = 1,
                .columns = 40,
                .out = true};
  for (g.channels = 3; g.channels <= 24; g.channels += 21)
    check_geometry(&g);
}

#define BAD(change)                                                                                                    \
  do {                                                                                                                 \
    test_step t;                                                                                                       \
    make_step(&t, &g, &d, y);                                                                                          \
    change;                                                                                                            \
    CHECK(!test_validate(&t, INFC_OP_CONV_I8, 4), "%s passed", #change);                                               \
  } while (0)

static void test_validator(void) {
  geometry g = {.w = {{1, 9, 9}, {1, 9, 9}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
                .images = 2,
                .groups = 2,
                .channels = 20,
                .columns = 40,
                .residual = INFC_RESIDUAL_U8,
                .out = true};
  data d = make_data(&g);
  void *y = test_alloc(elements(&g));
  test_step good;
  make_step(&good, &g, &d, y);
  CHECK(test_validate(&good, INFC_OP_CONV_I8, 4), "refused");
  test_spoil_window(&good, INFC_OP_CONV_I8, INFC_W_CONV_I8_IN_D);
  BAD(t.step.rows = 161);
  BAD(t.step.cols = 3);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.input_count = 5);
  BAD(t.words[INFC_W_CONV_I8_HAS_RESIDUAL] = 0);
  BAD(t.words[INFC_W_CONV_I8_HAS_RESIDUAL] = 1);
  BAD(t.words[INFC_W_CONV_I8_HAS_RESIDUAL] = 3);
  BAD(t.words[INFC_W_CONV_I8_GROUPS] = 0);
  BAD(t.words[INFC_W_CONV_I8_GROUPS] = 3);
  BAD(t.words[INFC_W_CONV_I8_GROUPS] = 4);
  BAD(t.words[INFC_W_CONV_I8_ZERO] = 256);
  BAD(t.words[INFC_W_CONV_I8_ACTIVATION] = INFC_UNARY_CLIP);
  BAD(t.words[INFC_W_CONV_I8_HAS_OUT] = 0);
  BAD(t.words[INFC_W_CONV_I8_HAS_OUT] = 2);
  BAD(t.words[INFC_W_CONV_I8_LOW] = test_float_word(-1.0f));
  BAD(t.words[INFC_W_CONV_I8_LOW] = test_float_word(251.0f));
  BAD(t.words[INFC_W_CONV_I8_HIGH] = test_float_word(256.0f));
  BAD(t.words[INFC_W_CONV_I8_HIGH] = test_float_word(NAN));
  BAD(t.words[INFC_W_CONV_I8_KERNEL_H] = 0x7FFFFFFF);
  BAD(t.operands[0].dtype = INFC_DTYPE_I8);
  BAD(t.operands[0].dims[1] = 42);
  BAD(t.operands[0].row_stride = 39);
  BAD(t.operands[1].dims[1] -= 128);
  BAD(t.operands[1].dtype = INFC_DTYPE_U8);
  BAD(t.operands[2].dims[0] = 79);
  BAD(t.operands[3].dims[0] = 79);
  BAD(t.operands[3].dtype = INFC_DTYPE_F32);
  BAD(t.operands[4].dims[0] = 79);
  BAD(t.operands[5].dims[1] = 79);
  BAD(t.operands[5].dtype = INFC_DTYPE_F32);
  BAD(t.operands[6].row_stride = 79);
  BAD(t.operands[6].dtype = INFC_DTYPE_F32);
  free_data(&d);
  test_free(y);
}

int main(void) {
  for (int i = 0; i < 150; i++) {
    const geometry g = random_geometry();
    check_geometry(&g);
  }
  test_blocks();
  test_validator();
  return test_result();
}
