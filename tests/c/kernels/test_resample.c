// resample: windows of weights along the middle dimension; places outside are faults.
#include "step.h"

static void once(test_rng *rng, bool bad) {
  const int64_t images = test_random_int(rng, 1, 3), n = test_random_int(rng, 1, 9), out = test_random_int(rng, 1, 9);
  const int64_t taps = test_random_int(rng, 1, n), inner = test_random(rng) % 2 ? 1 : test_random_int(rng, 1, 150),
                rows = images * out;
  float *x = test_alloc((size_t)(images * n * inner) * 4), *weights = test_alloc((size_t)(out * taps) * 4);
  float *y = test_alloc((size_t)(rows * inner) * 4);
  int32_t *first = test_alloc((size_t)out * 4);
  test_fill_random(rng, x, (size_t)(images * n * inner), -1, 1);
  test_fill_random(rng, weights, (size_t)(out * taps), -1, 1);
  for (int64_t o = 0; o < out; o++)
    first[o] = (int32_t)test_random_int(rng, 0, n - taps);
  if (bad)
    first[out - 1] = test_random(rng) % 2 ? (int32_t)(n - taps + 1) : INT32_MIN;
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, images, n * inner, n * inner);
  test_operand(&s, false, first, INFC_DTYPE_I32, out, 0, 1);
  test_operand(&s, false, weights, INFC_DTYPE_F32, out, taps, taps);
  test_operand(&s, true, y, INFC_DTYPE_F32, rows, inner, inner);
  test_word(&s, (uint32_t)n);
  test_word(&s, (uint32_t)out);
  test_word(&s, (uint32_t)taps);
  test_word(&s, (uint32_t)inner);
  CHECK(test_validate(&s, INFC_OP_RESAMPLE, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 3; parts++) {
      if (infc_kernels[k].op != INFC_OP_RESAMPLE || !test_supported(&infc_kernels[k]))
        continue;
      CHECK(test_run(&s, &infc_kernels[k], parts, 1, NULL) == (bad ? INFC_FAULT_INDEX : INFC_FAULT_NONE), "%s",
            infc_kernels[k].name);
      for (int64_t at = 0; at < rows * inner; at++) {
        const int64_t row = at / inner, o = row % out;
        double want = 0;
        for (int64_t t = 0; t < taps && (!bad || o < out - 1); t++)
          want += (double)weights[o * taps + t] * x[((row / out) * n + first[o] + t) * inner + at % inner];
        CHECK(test_close(y[at], (float)want, 1e-5f), "%s", infc_kernels[k].name);
      }
    }
  s.words[INFC_W_RESAMPLE_N]++;
  CHECK(!test_validate(&s, INFC_OP_RESAMPLE, 0), "more than x has");
  s.words[INFC_W_RESAMPLE_N]--;
  s.words[INFC_W_RESAMPLE_TAPS] = (uint32_t)n + 1;
  CHECK(!test_validate(&s, INFC_OP_RESAMPLE, 0), "windows wider than x");
  test_free(x), test_free(y), test_free(first), test_free(weights);
}

int main(void) {
  test_rng rng = {14};
  for (int t = 0; t < 200; t++)
    once(&rng, t % 2);
  return test_result();
}
