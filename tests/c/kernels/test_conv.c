// conv: every kernel against the scalar reference, over random windows, groups, strides, epilogues and splits.
#include "kernels/conv/conv.h"
#include "window_step.h"

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct geometry {
  infc_window w;
  int64_t up[INFC_AXES], images, groups, channels, columns; // of a group
  int pad;                                                  // elements by which pixels lie further apart than they must
  uint32_t activation, bias, residual;
  bool in_place; // the residual is the output
} geometry;

typedef struct data {
  float *x, *b, *bias, *residual;
} data;

static geometry random_geometry(void) {
  static const uint32_t activations[] = {INFC_UNARY_IDENTITY, INFC_UNARY_RELU, INFC_UNARY_RELU6, INFC_UNARY_SILU,
                                         INFC_UNARY_HARD_SWISH};
  geometry g = {.images = test_random_int(&rng, 1, 2), .pad = (int)test_random_int(&rng, 0, 3)};
  for (int i = 0; i < INFC_AXES; i++)
    g.up[i] = test_random_int(&rng, 0, 4) ? 1 : test_random_int(&rng, 2, 3);
  g.w = test_window(&rng, g.up);
  g.groups = test_random_int(&rng, 0, 1) ? 1 : test_random_int(&rng, 2, 4);
  g.channels = test_random_int(&rng, 0, 1) ? test_random_int(&rng, 1, 15) : test_random_int(&rng, 16, 40);
  g.columns = test_random_int(&rng, 1, 70);
  g.activation = activations[test_random_int(&rng, 0, 4)];
  g.bias = (uint32_t)test_random_int(&rng, 0, 1);
  g.residual = (uint32_t)test_random_int(&rng, 0, 2);
  g.in_place = g.residual && test_random_int(&rng, 0, 1);
  return g;
}

static int64_t rows_of(const geometry *g) {
  return g->images * test_volume(g->w.out);
}
static int64_t pixels_of(const geometry *g) {
  return g->images * test_volume(g->w.in);
}

static data make_data(const geometry *g) {
  const int64_t c = g->groups * g->channels, n = g->groups * g->columns, k = test_volume(g->w.kernel) * g->channels;
  const int64_t packed = g->groups * infc_gemm_panels(g->columns) * INFC_PANEL;
  data d = {test_rows(&rng, pixels_of(g), c, c + g->pad), test_rows(&rng, 1, k * packed, 0), test_rows(&rng, 1, n, 0),
            test_rows(&rng, rows_of(g), n, n + g->pad)};
  return d;
}

static void free_data(data *d) {
  test_free(d->x);
  test_free(d->b);
  test_free(d->bias);
  test_free(d->residual);
}

static void make_step(test_step *t, const geometry *g, const data *d, float *y) {
  const int64_t c = g->groups * g->channels, n = g->groups * g->columns, k = test_volume(g->w.kernel) * g->channels;
  const int64_t panels = g->groups * infc_gemm_panels(g->columns), wide = g->groups == 1 ? n : panels * INFC_PANEL;
  test_step_init(t, rows_of(g), panels);
  test_operand(t, false, d->x, INFC_DTYPE_F32, pixels_of(g), c, c + g->pad);
  test_operand(t, false, d->b, INFC_DTYPE_F32, k, wide, wide)->packing = INFC_PACK_F32_K1N32;
  if (g->bias)
    test_operand(t, false, d->bias, INFC_DTYPE_F32, n, 0, 1);
  if (g->residual)
    test_operand(t, false, g->in_place ? y : d->residual, INFC_DTYPE_F32, rows_of(g), n, n + g->pad);
  test_operand(t, true, y, INFC_DTYPE_F32, rows_of(g), n, n + g->pad);
  test_word(t, g->activation);
  test_word(t, g->bias);
  test_word(t, g->residual);
  test_word(t, (uint32_t)g->groups);
  test_window_words(t, &g->w);
  for (int i = 0; i < INFC_AXES; i++)
    test_word(t, (uint32_t)g->up[i]);
}

static float *run(const geometry *g, const data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const int64_t n = g->groups * g->columns;
  const size_t size = (size_t)((rows_of(g) - 1) * (n + g->pad) + n) * sizeof(float);
  float *y = test_alloc(size);
  memcpy(y, d->residual, size);
  test_step t;
  make_step(&t, g, d, y);
  CHECK(test_validate(&t, INFC_OP_CONV, 0), "refused");
  CHECK(!test_run(&t, kernel, row_parts, col_parts, NULL), "fault");
  return y;
}

static void compare(const geometry *g, const float *got, const float *want, const char *name) {
  const int64_t n = g->groups * g->columns, stride = n + g->pad;
  const float tolerance = 2e-7f * (float)(test_volume(g->w.kernel) * g->channels) + 2e-5f;
  for (int64_t i = 0; i < (rows_of(g) - 1) * stride + n; i++)
    if (!CHECK(i % stride < n ? test_close(got[i], want[i], tolerance) : got[i] == want[i],
               "%s: row %ld column %ld: %g, expected %g", name, i / stride, i % stride, (double)got[i],
               (double)want[i]))
      return;
}

static void check_geometry(const geometry *g) {
  data d = make_data(g);
  float *want = run(g, &d, test_scalar(INFC_OP_CONV), 1, 1);
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_CONV || !test_supported(kernel))
      continue;
    const int splits[][2] = {{1, 1}, {3, 1}, {1, 2}, {40, 1}, {2, 3}};
    for (size_t j = 0; j < sizeof splits / sizeof *splits; j++) {
      float *got = run(g, &d, kernel, splits[j][0], splits[j][1]);
      compare(g, got, want, kernel->name);
      test_free(got);
    }
  }
  test_free(want);
  free_data(&d);
}

// More pixels than a block holds, so that blocks and tiles end where lines do not.
static void test_blocks(void) {
  geometry g = {.w = {{1, 61, 47}, {1, 61, 47}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
                .up = {1, 1, 1},
                .images = 1,
                .groups = 1,
                .columns = 40};
  for (g.channels = 3; g.channels <= 24; g.channels += 21)
    check_geometry(&g);
}

#define BAD(change)                                                                                                    \
  do {                                                                                                                 \
    test_step t;                                                                                                       \
    make_step(&t, &g, &d, y);                                                                                          \
    change;                                                                                                            \
    CHECK(!test_validate(&t, INFC_OP_CONV, 4), "%s passed", #change);                                                  \
  } while (0)

static void test_validator(void) {
  geometry g = {.w = {{1, 9, 9}, {1, 9, 9}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
                .up = {1, 1, 1},
                .images = 2,
                .groups = 2,
                .channels = 20,
                .columns = 30,
                .bias = 1,
                .residual = 1};
  data d = make_data(&g);
  float *y = test_rows(&rng, rows_of(&g), 60, 60);
  test_step good;
  make_step(&good, &g, &d, y);
  CHECK(test_validate(&good, INFC_OP_CONV, 4), "refused");
  test_spoil_window(&good, INFC_OP_CONV, INFC_W_CONV_IN_D);
  BAD(t.step.word_count--);
  BAD(t.step.cols = 3);
  BAD(t.step.rows = 161);
  BAD(t.step.rows_symbol = 0);
  BAD(t.words[INFC_W_CONV_GROUPS] = 0);
  BAD(t.words[INFC_W_CONV_GROUPS] = 3);
  BAD(t.words[INFC_W_CONV_GROUPS] = 0x80000000);
  BAD(t.words[INFC_W_CONV_UP_W] = 0);
  BAD(t.words[INFC_W_CONV_ACTIVATION] = INFC_UNARY_CLIP);
  BAD(t.words[INFC_W_CONV_HAS_BIAS] = 0);
  BAD(t.words[INFC_W_CONV_HAS_RESIDUAL] = 3);
  BAD(t.words[INFC_W_CONV_KERNEL_W] = 0x7FFFFFFF);
  BAD(t.operands[0].dims[0] = 161);
  BAD(t.operands[0].dims[1] = 42);
  BAD(t.operands[0].row_stride = 39);
  BAD(t.operands[0].dtype = INFC_DTYPE_F16);
  BAD(t.operands[0].rows_symbol = 0);
  BAD(t.operands[1].packing = INFC_PACK_ROW_MAJOR);
  BAD(t.operands[1].dims[0] = 181);
  BAD(t.operands[1].dims[1] = 65);
  BAD(t.operands[2].dims[0] = 59);
  BAD(t.operands[3].dims[1] = 59);
  BAD(t.operands[4].row_stride = 59);
  BAD(t.operands[4].dims[1] = 61);
  test_free(y);
  free_data(&d);
}

int main(void) {
  for (int i = 0; i < 120; i++) {
    const geometry g = random_geometry();
    check_geometry(&g);
  }
  test_blocks();
  test_validator();
  return test_result();
}
