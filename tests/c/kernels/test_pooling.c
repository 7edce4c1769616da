// pool: every kernel against the scalar reference, over random windows, and the reference against known values.
#include "kernels/pooling/pooling.h"
#include "window_step.h"

#include <math.h>

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct geometry {
  infc_window w;
  int64_t images, channels;
  uint32_t kind, count_pad, has_argmax, by_column;
} geometry;

static void make_step(test_step *t, const geometry *g, void *x, void *y, int64_t *argmax, uint8_t dtype) {
  const int64_t rows = g->images * test_volume(g->w.out), pixels = g->images * test_volume(g->w.in);
  test_step_init(t, rows, 1);
  test_operand(t, false, x, dtype, pixels, g->channels, g->channels);
  test_operand(t, true, y, dtype, rows, g->channels, g->channels);
  if (g->has_argmax)
    test_operand(t, true, argmax, INFC_DTYPE_I64, rows, g->channels, g->channels);
  test_word(t, g->kind);
  test_word(t, g->count_pad);
  test_word(t, test_float_word(2.0f));
  test_word(t, g->has_argmax);
  test_word(t, g->by_column);
  test_window_words(t, &g->w);
  for (int i = 0; i < INFC_AXES; i++)
    test_word(t, (uint32_t)(g->w.in[i] + 1));
}

static void check_geometry(const geometry *g, bool special) {
  const int64_t rows = g->images * test_volume(g->w.out), pixels = g->images * test_volume(g->w.in);
  const size_t count = (size_t)(rows * g->channels);
  float *x = test_rows(&rng, pixels, g->channels, g->channels), *want = test_alloc(count * 4);
  int64_t *at = test_alloc(count * 8), *want_at = test_alloc(count * 8);
  for (int64_t i = 0; special && i < pixels * g->channels; i += 5)
    x[i] = i % 2 ? NAN : i % 3 ? INFINITY : -INFINITY;
  test_step t;
  make_step(&t, g, x, want, want_at, INFC_DTYPE_F32);
  CHECK(test_validate(&t, INFC_OP_POOL, 0), "refused");
  test_run(&t, test_scalar(INFC_OP_POOL), 1, 1, NULL);
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_POOL || !test_supported(kernel))
      continue;
    for (int parts = 1; parts < 100; parts *= 7) {
      float *got = test_alloc(count * 4);
      make_step(&t, g, x, got, at, INFC_DTYPE_F32);
      CHECK(!test_run(&t, kernel, parts, 1, NULL), "fault");
      for (size_t i = 0; i < count; i++)
        if (!CHECK(test_close(got[i], want[i], 2e-5f) && (!g->has_argmax || at[i] == want_at[i]),
                   "%s: element %zu: %g, expected %g", kernel->name, i, (double)got[i], (double)want[i]))
          break;
      test_free(got);
    }
  }
  test_free(x);
  test_free(want);
  test_free(at);
  test_free(want_at);
}

// Two channels of a 3 x 2 image, pads of 1, and the places of maxima in both orders.
static void test_known_values(void) {
  geometry g = {.w = {{1, 3, 2}, {1, 2, 1}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}}, .images = 1, .channels = 2};
  float x[] = {1, -1, 2, -2, 3, -3, 9, -9, 5, -5, 6, -6}, y[4];
  int64_t at[4];
  test_step t;
  g.has_argmax = 1;
  make_step(&t, &g, x, y, at, INFC_DTYPE_F32);
  test_run(&t, test_scalar(INFC_OP_POOL), 1, 1, NULL);
  CHECK(y[0] == 9 && y[1] == -1 && y[2] == 9 && y[3] == -3, "%g %g %g %g", (double)y[0], (double)y[1], (double)y[2],
        (double)y[3]);
  CHECK(at[0] == 3 && at[1] == 6 && at[2] == 3 && at[3] == 8, "%ld %ld %ld %ld", at[0], at[1], at[2], at[3]);
  g.by_column = 1;
  make_step(&t, &g, x, y, at, INFC_DTYPE_F32);
  test_run(&t, test_scalar(INFC_OP_POOL), 1, 1, NULL);
  CHECK(at[0] == 4 && at[1] == 6 && at[2] == 4 && at[3] == 7, "%ld %ld %ld %ld", at[0], at[1], at[2], at[3]);
  g.kind = INFC_POOL_AVERAGE;
  g.has_argmax = 0;
  make_step(&t, &g, x, y, at, INFC_DTYPE_F32);
  test_run(&t, test_scalar(INFC_OP_POOL), 1, 1, NULL);
  CHECK(y[0] == 15.0f / 4 && y[2] == 23.0f / 4, "%g %g", (double)y[0], (double)y[2]);
  g.count_pad = 1;
  make_step(&t, &g, x, y, at, INFC_DTYPE_F32);
  test_run(&t, test_scalar(INFC_OP_POOL), 1, 1, NULL);
  CHECK(y[0] == 15.0f / 9, "%g", (double)y[0]);
}

static void test_integers(void) {
  geometry g = {.w = {{1, 1, 4}, {1, 1, 2}, {1, 1, 2}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0}}, .images = 1, .channels = 1};
  uint8_t x[] = {200, 3, 7, 255}, y[2];
  test_step t;
  make_step(&t, &g, x, y, NULL, INFC_DTYPE_U8);
  CHECK(test_validate(&t, INFC_OP_POOL, 0), "refused");
  test_run(&t, test_scalar(INFC_OP_POOL), 1, 1, NULL);
  CHECK(y[0] == 200 && y[1] == 255, "%d %d", y[0], y[1]);
  make_step(&t, &g, x, y, NULL, INFC_DTYPE_I8);
  test_run(&t, test_scalar(INFC_OP_POOL), 1, 1, NULL);
  CHECK((int8_t)y[0] == 3 && (int8_t)y[1] == 7, "%d %d", (int8_t)y[0], (int8_t)y[1]);
}

#define BAD(change)                                                                                                    \
  do {                                                                                                                 \
    make_step(&t, &g, data, data, at, INFC_DTYPE_F32);                                                                 \
    change;                                                                                                            \
    CHECK(!test_validate(&t, INFC_OP_POOL, 4), "%s passed", #change);                                                  \
  } while (0)

static void test_validator(void) {
  const geometry g = {.w = {{1, 9, 9}, {1, 9, 9}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1}},
                      .images = 2,
                      .channels = 20,
                      .has_argmax = 1};
  float data[1];
  int64_t at[1];
  test_step t;
  make_step(&t, &g, data, data, at, INFC_DTYPE_F32);
  CHECK(test_validate(&t, INFC_OP_POOL, 4), "refused");
  test_spoil_window(&t, INFC_OP_POOL, INFC_W_POOL_IN_D);
  BAD(t.step.rows = 161);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.split[0] = INFC_SPLIT_COLS);
  BAD(t.words[INFC_W_POOL_KIND] = INFC_POOL_COUNT);
  BAD(t.words[INFC_W_POOL_KIND] = INFC_POOL_AVERAGE); // has places of maxima
  BAD(t.words[INFC_W_POOL_COUNT_PAD] = 2);
  BAD(t.words[INFC_W_POOL_HAS_ARGMAX] = 0);
  BAD(t.operands[0].dtype = INFC_DTYPE_I32);
  BAD(t.operands[0].dims[0] = 163);
  BAD(t.operands[1].row_stride = 19);
  BAD(t.operands[2].dtype = INFC_DTYPE_I32);
  BAD(t.operands[2].dims[1] = 19);
}

int main(void) {
  static const int64_t up[INFC_AXES] = {1, 1, 1};
  for (int i = 0; i < 200; i++) {
    const geometry g = {.w = test_window(&rng, up),
                        .images = test_random_int(&rng, 1, 2),
                        .channels = test_random_int(&rng, 1, 90),
                        .kind = (uint32_t)i % INFC_POOL_COUNT,
                        .count_pad = (uint32_t)test_random_int(&rng, 0, 1),
                        .has_argmax = i % 6 == 0,
                        .by_column = (uint32_t)test_random_int(&rng, 0, 1)};
    check_geometry(&g, i % 6 == 3);
  }
  test_known_values();
  test_integers();
  test_validator();
  return test_result();
}
