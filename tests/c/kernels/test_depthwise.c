// depthwise: every kernel against the scalar reference, over random windows, strides, activations and splits.
#include "kernels/depthwise/depthwise.h"
#include "window_step.h"

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct geometry {
  infc_window w;
  int64_t images, channels;
  int pad; // elements by which pixels lie further apart than they must
  uint32_t activation, bias;
} geometry;

static void make_step(test_step *t, const geometry *g, float *x, float *w, float *bias, float *y) {
  const int64_t rows = g->images * test_volume(g->w.out), pixels = g->images * test_volume(g->w.in);
  test_step_init(t, rows, 1);
  test_operand(t, false, x, INFC_DTYPE_F32, pixels, g->channels, g->channels + g->pad);
  test_operand(t, false, w, INFC_DTYPE_F32, test_volume(g->w.kernel) * g->channels, 0, 1);
  if (g->bias)
    test_operand(t, false, bias, INFC_DTYPE_F32, g->channels, 0, 1);
  test_operand(t, true, y, INFC_DTYPE_F32, rows, g->channels, g->channels + g->pad);
  test_word(t, g->activation);
  test_word(t, g->bias);
  test_window_words(t, &g->w);
}

static void check_geometry(const geometry *g) {
  const int64_t rows = g->images * test_volume(g->w.out), pixels = g->images * test_volume(g->w.in);
  const int64_t c = g->channels, stride = c + g->pad, count = (rows - 1) * stride + c;
  float *x = test_rows(&rng, pixels, c, stride), *w = test_rows(&rng, 1, test_volume(g->w.kernel) * c, 0);
  float *bias = test_rows(&rng, 1, c, 0), *want = test_rows(&rng, rows, c, stride);
  float *before = test_alloc((size_t)count * sizeof *before), *got = test_alloc((size_t)count * sizeof *got);
  memcpy(before, want, (size_t)count * sizeof *before);
  test_step t;
  make_step(&t, g, x, w, bias, want);
  CHECK(test_validate(&t, INFC_OP_DEPTHWISE, 0), "refused");
  test_run(&t, test_scalar(INFC_OP_DEPTHWISE), 1, 1, NULL);
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_DEPTHWISE || !test_supported(kernel))
      continue;
    for (int parts = 1; parts < 100; parts *= 7) {
      memcpy(got, before, (size_t)count * sizeof *got);
      make_step(&t, g, x, w, bias, got);
      CHECK(!test_run(&t, kernel, parts, 1, NULL), "fault");
      for (int64_t i = 0; i < count; i++)
        if (!CHECK(i % stride < c ? test_close(got[i], want[i], 2e-5f) : got[i] == before[i],
                   "%s: row %ld channel %ld: %g, expected %g", kernel->name, i / stride, i % stride, (double)got[i],
                   (double)want[i]))
          break;
    }
  }
  test_free(x);
  test_free(w);
  test_free(bias);
  test_free(want);
  test_free(before);
  test_free(got);
}

static void test_random_windows(void) {
  static const uint32_t activations[] = {INFC_UNARY_IDENTITY, INFC_UNARY_RELU, INFC_UNARY_RELU6, INFC_UNARY_SILU};
  static const int64_t up[INFC_AXES] = {1, 1, 1};
  for (int i = 0; i < 150; i++) {
    geometry g = {.w = test_window(&rng, up), .images = test_random_int(&rng, 1, 2), .bias = (uint32_t)i % 2};
    if (i % 3 == 0) { // long lines, whose middles go many pixels at a time
      g.w.in[2] = test_random_int(&rng, 30, 60);
      g.w.out[2] = (g.w.in[2] + 2 - (g.w.kernel[2] - 1) * g.w.dilation[2]) / g.w.stride[2];
    }
    g.channels = test_random_int(&rng, 1, 50);
    g.pad = (int)test_random_int(&rng, 0, 3);
    g.activation = activations[test_random_int(&rng, 0, 3)];
    check_geometry(&g);
  }
}

#define BAD(change)                                                                                                    \
  do {                                                                                                                 \
    make_step(&t, &g, data, data, data, data);                                                                         \
    change;                                                                                                            \
    CHECK(!test_validate(&t, INFC_OP_DEPTHWISE, 4), "%s passed", #change);                                             \
  } while (0)

static void test_validator(void) {
  const geometry g = {
      .w = {{1, 9, 9}, {1, 9, 9}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}}, .images = 2, .channels = 20, .bias = 1};
  float data[1];
  test_step t;
  make_step(&t, &g, data, data, data, data);
  CHECK(test_validate(&t, INFC_OP_DEPTHWISE, 4), "refused");
  test_spoil_window(&t, INFC_OP_DEPTHWISE, INFC_W_DEPTHWISE_IN_D);
  BAD(t.step.rows = 161);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.split[1] = INFC_SPLIT_COLS);
  BAD(t.words[INFC_W_DEPTHWISE_ACTIVATION] = INFC_UNARY_ELU);
  BAD(t.words[INFC_W_DEPTHWISE_HAS_BIAS] = 2);
  BAD(t.words[INFC_W_DEPTHWISE_KERNEL_H] = 0x7FFFFFFF);
  BAD(t.operands[0].dims[1] = 21);
  BAD(t.operands[0].row_stride = 19);
  BAD(t.operands[1].dims[0] = 179);
  BAD(t.operands[2].dims[0] = 19);
  BAD(t.operands[3].dims[0] = 163);
  BAD(t.operands[3].dtype = INFC_DTYPE_I32);
}

int main(void) {
  test_random_windows();
  test_validator();
  return test_result();
}
