// depthwise_i8: every kernel, with and without VNNI, gives the bits of the scalar reference, over random windows,
// channels, epilogues and splits.
#include "cpu_features.h"
#include "kernels/depthwise_i8/depthwise_i8.h"
#include "window_step.h"

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct geometry {
  infc_window w;
  int64_t images, channels;
  int pad; // elements by which pixels lie further apart than they must
  uint32_t activation;
  bool out;
} geometry;

typedef struct data {
  uint8_t *x;
  int8_t *w;
  float *scales, *bias;
  int32_t *offsets;
} data;

// Extremes among them, whose products saturate 16 bits.
static void *random_bytes(size_t n) {
  uint8_t *bytes = test_alloc(n);
  for (size_t i = 0; i < n; i++)
    bytes[i] = (uint8_t)(test_random_int(&rng, 0, 3) ? test_random_int(&rng, 0, 255) : 127 + 128 * (int)(i % 2));
  return bytes;
}

static int64_t bytes_of_w(const geometry *g) {
  return infc_dw_chunks(g->channels) * infc_dw_quads(test_volume(g->w.kernel)) * INFC_DW_BYTES;
}

static data make_data(const geometry *g) {
  const int64_t places = infc_dw_chunks(g->channels) * INFC_DW_CHUNK, pixels = g->images * test_volume(g->w.in);
  data d = {.x = random_bytes((size_t)((pixels - 1) * (g->channels + g->pad) + g->channels)),
            .w = random_bytes((size_t)bytes_of_w(g)),
            .scales = test_rows(&rng, 1, places, 0),
            .bias = test_rows(&rng, 1, places, 0),
            .offsets = test_alloc((size_t)places * sizeof(int32_t))};
  const int64_t taps = test_volume(g->w.kernel), quads = infc_dw_quads(taps);
  for (int64_t i = 0; i < bytes_of_w(g); i++) // nothing beyond the taps
    if (i / INFC_DW_BYTES % quads * INFC_DW_QUAD + i % INFC_DW_QUAD >= taps)
      d.w[i] = 0;
  for (int64_t i = 0; i < places; i++) {
    d.scales[i] *= 0.02f;
    d.bias[i] = d.bias[i] * 50 + 100;
    d.offsets[i] = (int32_t)test_random_int(&rng, -9000, 9000);
  }
  return d;
}

static void make_step(test_step *t, const geometry *g, const data *d, void *y) {
  const int64_t rows = g->images * test_volume(g->w.out), pixels = g->images * test_volume(g->w.in);
  const int64_t places = infc_dw_chunks(g->channels) * INFC_DW_CHUNK;
  test_step_init(t, rows, 1);
  test_operand(t, false, d->x, INFC_DTYPE_U8, pixels, g->channels, g->channels + g->pad);
  test_operand(t, false, d->w, INFC_DTYPE_I8, bytes_of_w(g), 0, 1);
  test_operand(t, false, d->scales, INFC_DTYPE_F32, places, 0, 1);
  test_operand(t, false, d->offsets, INFC_DTYPE_I32, places, 0, 1);
  test_operand(t, false, d->bias, INFC_DTYPE_F32, places, 0, 1);
  test_operand(t, true, y, g->out ? INFC_DTYPE_U8 : INFC_DTYPE_F32, rows, g->channels, g->channels + g->pad);
  test_word(t, 131);
  test_word(t, g->activation);
  test_word(t, g->out);
  test_word(t, test_float_word(0.9f));
  test_word(t, test_float_word(17.0f));
  test_word(t, test_float_word(g->out ? 3.0f : -50.0f));
  test_word(t, test_float_word(g->out ? 250.3f : 90.0f));
  test_window_words(t, &g->w);
}

static void check_geometry(const geometry *g) {
  static const uint32_t features[] = {~0u, 0};
  const int64_t rows = g->images * test_volume(g->w.out), stride = g->channels + g->pad;
  const size_t count = (size_t)((rows - 1) * stride + g->channels), size = count * (g->out ? 1 : sizeof(float));
  data d = make_data(g);
  void *before = random_bytes(size), *want = test_alloc(size), *got = test_alloc(size);
  memcpy(want, before, size);
  test_step t;
  make_step(&t, g, &d, want);
  CHECK(test_validate(&t, INFC_OP_DEPTHWISE_I8, 0), "refused");
  test_run(&t, test_scalar(INFC_OP_DEPTHWISE_I8), 1, 1, NULL);
  const float slack = g->activation == INFC_UNARY_IDENTITY ? 0.0f : g->out ? 1.0f : 1e-3f;
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_DEPTHWISE_I8 || !test_supported(kernel))
      continue;
    for (int part = 0; part < 6; part++) {
      infc_cpu_allow(features[part % 2]);
      memcpy(got, before, size);
      make_step(&t, g, &d, got);
      CHECK(!test_run(&t, kernel, (int[]){1, 7, 49}[part / 2], 1, NULL), "fault");
      for (size_t i = 0; i < count; i++) {
        const float a = g->out ? ((uint8_t *)got)[i] : ((float *)got)[i];
        const float b = g->out ? ((uint8_t *)want)[i] : ((float *)want)[i];
        const bool inside = (int64_t)i % stride < g->channels;
        if (!CHECK(memcmp(&a, &b, sizeof a) == 0 || (inside && fabsf(a - b) <= slack),
                   "%s: row %ld channel %ld: %g, expected %g", kernel->name, (int64_t)i / stride, (int64_t)i % stride,
                   (double)a, (double)b))
          break;
      }
    }
    infc_cpu_allow(~0u);
  }
  test_free(d.x);
  test_free(d.w);
  test_free(d.scales);
  test_free(d.bias);
  test_free(d.offsets);
  test_free(before);
  test_free(want);
  test_free(got);
}

static void test_random_windows(void) {
  static const uint32_t activations[] = {INFC_UNARY_IDENTITY, INFC_UNARY_IDENTITY, INFC_UNARY_RELU6, INFC_UNARY_SILU};
  static const int64_t up[INFC_AXES] = {1, 1, 1};
  for (int i = 0; i < 150; i++) {
    geometry g = {.w = test_window(&rng, up), .images = test_random_int(&rng, 1, 2)};
    if (i % 3 == 0) { // long lines, whose middles go several pixels at a time
      g.w.in[2] = test_random_int(&rng, 30, 60);
      g.w.out[2] = (g.w.in[2] + 2 - (g.w.kernel[2] - 1) * g.w.dilation[2]) / g.w.stride[2];
    }
    g.channels = test_random_int(&rng, 1, i % 5 ? 50 : 200);
    g.pad = (int)test_random_int(&rng, 0, 3);
    g.activation = activations[test_random_int(&rng, 0, 3)];
    g.out = test_random_int(&rng, 0, 2);
    check_geometry(&g);
  }
}

#define BAD(change)                                                                                                    \
  do {                                                                                                                 \
    make_step(&t, &g, &d, y);                                                                                          \
    change;                                                                                                            \
    CHECK(!test_validate(&t, INFC_OP_DEPTHWISE_I8, 4), "%s passed", #change);                                          \
  } while (0)

static void test_validator(void) {
  const geometry g = {.w = {{1, 9, 9}, {1, 9, 9}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
                      .images = 2,
                      .channels = 70,
                      .out = true};
  const data d = {0};
  float y[1];
  test_step t;
  make_step(&t, &g, &d, y);
  CHECK(test_validate(&t, INFC_OP_DEPTHWISE_I8, 4), "refused");
  test_spoil_window(&t, INFC_OP_DEPTHWISE_I8, INFC_W_DEPTHWISE_I8_IN_D);
  BAD(t.step.rows = 161);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.split[1] = INFC_SPLIT_COLS);
  BAD(t.words[INFC_W_DEPTHWISE_I8_ACTIVATION] = INFC_UNARY_ELU);
  BAD(t.words[INFC_W_DEPTHWISE_I8_HAS_OUT] = 0);
  BAD(t.words[INFC_W_DEPTHWISE_I8_ZERO] = 256);
  BAD(t.words[INFC_W_DEPTHWISE_I8_HIGH] = test_float_word(300.0f));
  BAD(t.words[INFC_W_DEPTHWISE_I8_KERNEL_H] = 0x7FFFFFFF);
  BAD(t.operands[0].dims[1] = 71);
  BAD(t.operands[0].row_stride = 69);
  BAD(t.operands[0].dtype = INFC_DTYPE_F32);
  BAD(t.operands[1].dims[0] -= 256);
  BAD(t.operands[2].dims[0] = 70);
  BAD(t.operands[3].dims[0] = 70);
  BAD(t.operands[3].dtype = INFC_DTYPE_F32);
  BAD(t.operands[4].dims[0] = 70);
  BAD(t.operands[5].dims[0] = 163);
  BAD(t.operands[5].dtype = INFC_DTYPE_F32);
}

int main(void) {
  test_random_windows();
  test_validator();
  return test_result();
}
