// arg and top_k: against a stable sort, with equal elements and NaN.
#include "step.h"

#include <math.h>

enum { MOST = 40 };

// Whether element i of the row comes before element j.
static bool before(const float *x, int i, int j, bool smallest) {
  const bool nan_i = x[i] != x[i], nan_j = x[j] != x[j];
  if (nan_i != nan_j)
    return nan_i != smallest;
  return nan_i || x[i] == x[j] ? i < j : smallest ? x[i] < x[j] : x[i] > x[j];
}

static void sorted(const float *x, int n, bool smallest, int *order) {
  for (int i = 0; i < n; i++) {
    int at = i;
    for (; at > 0 && before(x, i, order[at - 1], smallest); at--)
      order[at] = order[at - 1];
    order[at] = i;
  }
}

static void test_top_k(test_rng *rng) {
  const int64_t rows = test_random_int(rng, 1, 5), n = test_random_int(rng, 1, MOST), k = test_random_int(rng, 1, n);
  const bool smallest = test_random(rng) % 2;
  const size_t bytes = (size_t)(rows * k);
  float *x = test_alloc((size_t)(rows * n) * 4), *values = test_alloc(bytes * 4);
  int64_t *indices = test_alloc(bytes * 8);
  for (int64_t i = 0; i < rows * n; i++)
    x[i] = test_random(rng) % 9 == 0 ? NAN : (float)test_random_int(rng, -6, 6);
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, rows, n, n);
  test_operand(&s, true, values, INFC_DTYPE_F32, rows, k, k);
  test_operand(&s, true, indices, INFC_DTYPE_I64, rows, k, k);
  test_word(&s, (uint32_t)n);
  test_word(&s, (uint32_t)k);
  test_word(&s, smallest);
  CHECK(test_validate(&s, INFC_OP_TOP_K, 0), "valid");
  for (size_t which = 0; which < infc_kernel_count; which++)
    for (int parts = 1; parts <= 3; parts++) {
      if (infc_kernels[which].op != INFC_OP_TOP_K || !test_supported(&infc_kernels[which]))
        continue;
      test_run(&s, &infc_kernels[which], parts, 1, NULL);
      for (int64_t r = 0; r < rows; r++) {
        int order[MOST];
        sorted(x + r * n, (int)n, smallest, order);
        for (int64_t i = 0; i < k; i++) {
          CHECK(indices[r * k + i] == order[i], "%s", infc_kernels[which].name);
          CHECK(!memcmp(&values[r * k + i], &x[r * n + order[i]], 4), "%s", infc_kernels[which].name);
        }
      }
    }
  s.words[INFC_W_TOP_K_K] = (uint32_t)n + 1;
  CHECK(!test_validate(&s, INFC_OP_TOP_K, 0), "more than there are");
  s.words[INFC_W_TOP_K_K] = 0;
  CHECK(!test_validate(&s, INFC_OP_TOP_K, 0), "none");
  test_free(x), test_free(values), test_free(indices);
}

static void test_arg(test_rng *rng) {
  const int64_t rows = test_random_int(rng, 1, 4), n = test_random_int(rng, 1, 9), inner = test_random_int(rng, 1, 5);
  const bool smallest = test_random(rng) % 2, last = test_random(rng) % 2;
  int32_t *x = test_alloc((size_t)(rows * n * inner) * 4);
  int64_t *y = test_alloc((size_t)(rows * inner) * 8);
  for (int64_t i = 0; i < rows * n * inner; i++)
    x[i] = (int32_t)test_random_int(rng, -3, 3);
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, x, INFC_DTYPE_I32, rows, n * inner, n * inner);
  test_operand(&s, true, y, INFC_DTYPE_I64, rows, inner, inner);
  test_word(&s, smallest);
  test_word(&s, last);
  test_word(&s, (uint32_t)n);
  test_word(&s, (uint32_t)inner);
  CHECK(test_validate(&s, INFC_OP_ARG, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 3; parts++) {
      if (infc_kernels[k].op != INFC_OP_ARG || !test_supported(&infc_kernels[k]))
        continue;
      test_run(&s, &infc_kernels[k], parts, 1, NULL);
      for (int64_t at = 0; at < rows * inner; at++) {
        const int32_t *from = x + at / inner * n * inner + at % inner;
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++)
          if (smallest ? from[i * inner] < from[best * inner] : from[i * inner] > from[best * inner])
            best = i;
        for (int64_t i = best + 1; i < n && last; i++)
          best = from[i * inner] == from[best * inner] ? i : best;
        CHECK(y[at] == best, "%s", infc_kernels[k].name);
      }
    }
  s.words[INFC_W_ARG_REDUCED]++;
  CHECK(!test_validate(&s, INFC_OP_ARG, 0), "more than x has");
  s.operands[0].dtype = INFC_DTYPE_BOOL;
  CHECK(!test_validate(&s, INFC_OP_ARG, 0), "no order");
  test_free(x), test_free(y);
}

int main(void) {
  test_rng rng = {12};
  for (int t = 0; t < 300; t++) {
    test_top_k(&rng);
    test_arg(&rng);
  }
  return test_result();
}
