// cumulate: sums and products along the middle, both directions, with and without the element itself.
#include "step.h"

static void once(test_rng *rng) {
  const int64_t rows = test_random_int(rng, 1, 4), n = test_random_int(rng, 1, 9), inner = test_random_int(rng, 1, 5);
  const uint32_t kind = (uint32_t)test_random(rng) % INFC_CUMULATE_COUNT;
  const bool exclusive = test_random(rng) % 2, reverse = test_random(rng) % 2;
  const size_t count = (size_t)(rows * n * inner);
  int32_t *x = test_alloc(count * 4), *y = test_alloc(count * 4);
  for (size_t i = 0; i < count; i++)
    x[i] = (int32_t)test_random(rng);
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, x, INFC_DTYPE_I32, rows, n * inner, n * inner);
  test_operand(&s, true, y, INFC_DTYPE_I32, rows, n * inner, n * inner);
  test_word(&s, kind);
  test_word(&s, (uint32_t)n);
  test_word(&s, (uint32_t)inner);
  test_word(&s, exclusive);
  test_word(&s, reverse);
  CHECK(test_validate(&s, INFC_OP_CUMULATE, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 3; parts++) {
      if (infc_kernels[k].op != INFC_OP_CUMULATE || !test_supported(&infc_kernels[k]))
        continue;
      test_run(&s, &infc_kernels[k], parts, 1, NULL);
      for (int64_t at = 0; at < (int64_t)count; at++) {
        const int64_t place = at / inner % n;
        uint32_t want = kind == INFC_CUMULATE_PROD;
        for (int64_t i = 0; i < n; i++) {
          const bool counted = i == place ? !exclusive : reverse ? i > place : i < place;
          const uint32_t v = (uint32_t)x[at + (i - place) * inner];
          want = !counted ? want : kind == INFC_CUMULATE_PROD ? want * v : want + v;
        }
        CHECK(y[at] == (int32_t)want, "%s", infc_kernels[k].name);
      }
    }
  s.words[INFC_W_CUMULATE_N]++;
  CHECK(!test_validate(&s, INFC_OP_CUMULATE, 0), "more than x has");
  s.words[INFC_W_CUMULATE_N] = s.words[INFC_W_CUMULATE_INNER] = UINT32_MAX;
  CHECK(!test_validate(&s, INFC_OP_CUMULATE, 0), "overflow");
  test_free(x), test_free(y);
}

int main(void) {
  test_rng rng = {13};
  for (int t = 0; t < 300; t++)
    once(&rng);
  return test_result();
}
