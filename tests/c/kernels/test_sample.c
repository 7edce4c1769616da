// grid_sample and roi_align: weights of samples of a linear image give back the points; every instruction set as the
// reference; anything in points and regions stays in bounds.
#include "step.h"

#include <math.h>

typedef struct shape {
  int64_t images, d, h, w, channels, stride, per_image, dims;
} shape;

static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0.5f, -0.5f, 1e-30f};

static void grid_step(test_step *s, const shape *g, float *x, float *points, float *y, uint32_t mode, uint32_t outside,
                      bool align) {
  test_step_init(s, g->images * g->per_image, 1);
  test_operand(s, false, x, INFC_DTYPE_F32, g->images * g->d * g->h * g->w, g->channels, g->stride);
  test_operand(s, false, points, INFC_DTYPE_F32, g->images * g->per_image, g->dims, g->dims);
  test_operand(s, true, y, INFC_DTYPE_F32, g->images * g->per_image, g->channels, g->channels);
  const uint32_t words[] = {mode,           outside,        align,         (uint32_t)g->per_image, (uint32_t)g->dims,
                            (uint32_t)g->d, (uint32_t)g->h, (uint32_t)g->w};
  for (int i = 0; i < 8; i++)
    test_word(s, words[i]);
}

static void test_grid(test_rng *rng, int t) {
  shape g = {.images = test_random_int(rng, 1, 2),
             .d = 1,
             .h = 1,
             .w = test_random_int(rng, 1, 5),
             .channels = test_random_int(rng, 1, 40),
             .per_image = test_random_int(rng, 1, 7),
             .dims = test_random_int(rng, 1, 3)};
  g.h = g.dims > 1 ? test_random_int(rng, 1, 5) : 1;
  g.d = g.dims > 2 ? test_random_int(rng, 1, 5) : 1;
  g.stride = g.channels + test_random_int(rng, 0, 3);
  const int64_t pixels = g.images * g.d * g.h * g.w, rows = g.images * g.per_image;
  const size_t out = (size_t)(rows * g.channels);
  float *x = test_alloc((size_t)((pixels - 1) * g.stride + g.channels) * 4),
        *points = test_alloc((size_t)(rows * g.dims) * 4);
  float *y = test_alloc(out * 4), *want = test_alloc(out * 4);
  test_fill_random(rng, x, (size_t)((pixels - 1) * g.stride + g.channels), -1, 1);
  for (int64_t i = 0; i < rows * g.dims; i++)
    points[i] = t % 3 == 2 && test_random(rng) % 4 == 0 ? odd[test_random(rng) % 8] : test_random_float(rng, -9, 9);
  test_step s;
  grid_step(&s, &g, x, points, y, (uint32_t)t % INFC_SAMPLE_COUNT, (uint32_t)t / 3 % INFC_BORDER_COUNT, t / 9 % 2);
  CHECK(test_validate(&s, INFC_OP_GRID_SAMPLE, 0), "valid");
  memset(want, 0, out * 4);
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 3; parts++) {
      if (infc_kernels[k].op != INFC_OP_GRID_SAMPLE || !test_supported(&infc_kernels[k]))
        continue;
      test_run(&s, &infc_kernels[k], parts, 1, NULL);
      if (infc_kernels[k].isa == INFC_ISA_SCALAR && parts == 1)
        memcpy(want, y, out * 4);
      for (size_t i = 0; i < out; i++)
        CHECK(test_close(y[i], want[i], 1e-4f), "%s: %g, not %g", infc_kernels[k].name, (double)y[i], (double)want[i]);
    }
  s.words[INFC_W_GRID_SAMPLE_IN_W]++;
  CHECK(!test_validate(&s, INFC_OP_GRID_SAMPLE, 0), "more pixels than x has");
  s.words[INFC_W_GRID_SAMPLE_IN_W]--;
  s.words[INFC_W_GRID_SAMPLE_DIMS] = 4;
  CHECK(!test_validate(&s, INFC_OP_GRID_SAMPLE, 0), "four dimensions");
  test_free(x), test_free(points), test_free(y), test_free(want);
}

// An image whose pixels hold their own place: linear and cubic samples inside of it are the points.
static void test_places(test_rng *rng, uint32_t mode) {
  enum { SIZE = 9, POINTS = 20 };
  float x[SIZE * SIZE * 2], points[POINTS * 2], y[POINTS * 2];
  for (int i = 0; i < SIZE * SIZE; i++) {
    x[2 * i] = (float)(i % SIZE);
    x[2 * i + 1] = (float)(i / SIZE);
  }
  test_fill_random(rng, points, POINTS * 2, 1, SIZE - 2);
  const shape g = {1, 1, SIZE, SIZE, 2, 2, POINTS, 2};
  test_step s;
  grid_step(&s, &g, x, points, y, mode, INFC_BORDER_ZEROS, true);
  for (size_t k = 0; k < infc_kernel_count; k++) {
    if (infc_kernels[k].op != INFC_OP_GRID_SAMPLE || !test_supported(&infc_kernels[k]))
      continue;
    test_run(&s, &infc_kernels[k], 1, 1, NULL);
    for (int i = 0; i < 2 * POINTS; i++)
      CHECK(test_close(y[i], mode == INFC_SAMPLE_NEAREST ? rintf(points[i]) : points[i],
                       mode == INFC_SAMPLE_CUBIC ? 0.2f : 1e-5f),
            "%s", infc_kernels[k].name);
  }
}

static void test_roi(test_rng *rng, int t) {
  const int64_t images = 2, h = test_random_int(rng, 1, 6), w = test_random_int(rng, 1, 6), channels = 3, regions = 3;
  const int64_t out_h = test_random_int(rng, 1, 3), out_w = test_random_int(rng, 1, 3), rows = regions * out_h * out_w;
  const bool bad = t % 3 == 0;
  float *x = test_alloc((size_t)(images * h * w * channels) * 4), *rois = test_alloc((size_t)regions * 16);
  float *y = test_alloc((size_t)(rows * channels) * 4);
  int64_t *which = test_alloc((size_t)regions * 8);
  for (int64_t i = 0; i < images * h * w * channels; i++)
    x[i] = (float)(i % channels); // so that every sample inside is its channel
  for (int64_t r = 0; r < regions; r++) {
    which[r] = bad && r == 1 ? (test_random(rng) % 2 ? -1 : images) : test_random_int(rng, 0, images - 1);
    for (int i = 0; i < 4; i++)
      rois[4 * r + i] = t % 2 ? odd[test_random(rng) % 8] : test_random_float(rng, 0, 1) * (float)((i % 2 ? h : w) - 1);
  }
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, images * h * w, channels, channels);
  test_operand(&s, false, rois, INFC_DTYPE_F32, regions, 4, 4);
  test_operand(&s, false, which, INFC_DTYPE_I64, regions, 0, 1);
  test_operand(&s, true, y, INFC_DTYPE_F32, rows, channels, channels);
  const uint32_t words[] = {
      0, t / 2 % 2, 1, test_float_word(1), (uint32_t)h, (uint32_t)w, (uint32_t)out_h, (uint32_t)out_w};
  for (int i = 0; i < 8; i++)
    test_word(&s, words[i]);
  CHECK(test_validate(&s, INFC_OP_ROI_ALIGN, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++) {
    if (infc_kernels[k].op != INFC_OP_ROI_ALIGN || !test_supported(&infc_kernels[k]))
      continue;
    for (int parts = 1; parts <= 3; parts++)
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, NULL) == (bad ? INFC_FAULT_INDEX : INFC_FAULT_NONE), "fault");
    for (int64_t i = 0; i < rows * channels && t % 4 == 2; i++) // half pixels, so that small regions stay inside
      CHECK(test_close(y[i], bad && i / channels / (out_h * out_w) == 1 ? 0 : (float)(i % channels), 1e-5f), "%g",
            (double)y[i]);
  }
  s.words[INFC_W_ROI_ALIGN_OUT_H] = 0;
  CHECK(!test_validate(&s, INFC_OP_ROI_ALIGN, 0), "no bins");
  s.words[INFC_W_ROI_ALIGN_OUT_H] = (uint32_t)out_h;
  s.words[INFC_W_ROI_ALIGN_IN_H] = UINT32_MAX;
  CHECK(!test_validate(&s, INFC_OP_ROI_ALIGN, 0), "more pixels than x has");
  test_free(x), test_free(rois), test_free(y), test_free(which);
}

int main(void) {
  test_rng rng = {17};
  for (int t = 0; t < 360; t++)
    test_grid(&rng, t);
  for (uint32_t mode = 0; mode < INFC_SAMPLE_COUNT; mode++)
    test_places(&rng, mode);
  for (int t = 0; t < 100; t++)
    test_roi(&rng, t);
  return test_result();
}
