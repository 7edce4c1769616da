// det: products of triangular matrices with rows exchanged, of which the determinant is known.
#include "step.h"

static void once(test_rng *rng) {
  enum { MOST = 7 };
  const int64_t rows = test_random_int(rng, 1, 4), n = test_random_int(rng, 1, MOST);
  float *x = test_alloc((size_t)(rows * n * n) * 4), *y = test_alloc((size_t)rows * 4), want[4];
  for (int64_t r = 0; r < rows; r++) {
    float low[MOST][MOST] = {0}, high[MOST][MOST] = {0};
    want[r] = 1;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++)
        (j < i ? low : high)[i][j] = (float)test_random_int(rng, -2, 2);
      low[i][i] = 1;
      high[i][i] = (float)test_random_int(rng, -3, 3);
      want[r] *= high[i][i];
    }
    const int64_t swapped = test_random_int(rng, 0, n - 1);
    want[r] *= swapped ? -1 : 1;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < n; j++) {
        const int64_t to = i == 0 ? swapped : i == swapped ? 0 : i;
        float sum = 0;
        for (int64_t k = 0; k < n; k++)
          sum += low[i][k] * high[k][j];
        x[(r * n + to) * n + j] = sum;
      }
  }
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, rows, n * n, n * n);
  test_operand(&s, true, y, INFC_DTYPE_F32, rows, 0, 1);
  test_word(&s, (uint32_t)n);
  CHECK(test_validate(&s, INFC_OP_DET, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 2; parts++) {
      if (infc_kernels[k].op != INFC_OP_DET || !test_supported(&infc_kernels[k]))
        continue;
      test_run(&s, &infc_kernels[k], parts, 1, NULL);
      for (int64_t r = 0; r < rows; r++)
        CHECK(test_close(y[r], want[r], 1e-2f), "%g, not %g", (double)y[r], (double)want[r]);
    }
  s.words[INFC_W_DET_N]++;
  CHECK(!test_validate(&s, INFC_OP_DET, 0), "larger than x");
  s.words[INFC_W_DET_N] = UINT32_MAX;
  CHECK(!test_validate(&s, INFC_OP_DET, 0), "overflow");
  test_free(x), test_free(y);
}

int main(void) {
  test_rng rng = {15};
  for (int t = 0; t < 200; t++)
    once(&rng);
  return test_result();
}
