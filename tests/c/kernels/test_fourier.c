// dft: against the definition; padded and cut input, real and complex, forward, inverse, and to real numbers.
#include "step.h"

#include <math.h>

static void once(test_rng *rng, int64_t length) {
  const double pi = 3.14159265358979323846;
  const int64_t rows = test_random_int(rng, 1, 3), n = test_random_int(rng, 1, length + 2);
  const int64_t parts = test_random_int(rng, 1, 2), out = test_random_int(rng, 1, length);
  const bool inverse = test_random(rng) % 2, real = inverse && test_random(rng) % 2;
  const int64_t out_parts = real ? 1 : 2, given = real ? length / 2 + 1 : length;
  float *x = test_alloc((size_t)(rows * n * parts) * 4), *y = test_alloc((size_t)(rows * out * out_parts) * 4);
  double *table = test_alloc((size_t)length * 16);
  test_fill_random(rng, x, (size_t)(rows * n * parts), -1, 1);
  for (int64_t i = 0; i < length; i++) {
    table[2 * i] = cos(2 * pi * (double)i / (double)length);
    table[2 * i + 1] = sin(2 * pi * (double)i / (double)length);
  }
  test_step s;
  test_step_init(&s, rows, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, rows, n * parts, n * parts);
  test_operand(&s, false, table, INFC_DTYPE_F64, length, 2, 2);
  test_operand(&s, true, y, INFC_DTYPE_F32, rows, out * out_parts, out * out_parts);
  const uint32_t words[] = {(uint32_t)n, (uint32_t)parts, (uint32_t)length, (uint32_t)out, inverse, real};
  for (int i = 0; i < 6; i++)
    test_word(&s, words[i]);
  CHECK(test_validate(&s, INFC_OP_DFT, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int split = 1; split <= 2; split++) {
      if (infc_kernels[k].op != INFC_OP_DFT || !test_supported(&infc_kernels[k]))
        continue;
      test_run(&s, &infc_kernels[k], split, 1, NULL);
      for (int64_t at = 0; at < rows * out; at++) {
        const float *from = x + at / out * n * parts;
        double re = 0, im = 0;
        for (int64_t i = 0; i < length; i++) {
          const int64_t j = i < given ? i : length - i;
          const double a = j < n ? from[j * parts] : 0, b = j < n && parts == 2 ? from[j * parts + 1] : 0;
          const double angle = (inverse ? 2 : -2) * pi * (double)(i * (at % out) % length) / (double)length;
          const double c = cos(angle), d = sin(angle), imaginary = i < given ? b : -b;
          re += a * c - imaginary * d;
          im += a * d + imaginary * c;
        }
        const double scale = inverse ? 1 / (double)length : 1;
        CHECK(test_close(y[at * out_parts], (float)(re * scale), 1e-5f), "length %d", (int)length);
        CHECK(real || test_close(y[at * out_parts + 1], (float)(im * scale), 1e-5f), "length %d", (int)length);
      }
    }
  s.words[INFC_W_DFT_LENGTH]++;
  CHECK(!test_validate(&s, INFC_OP_DFT, 0), "longer than the table");
  s.words[INFC_W_DFT_LENGTH]--;
  s.words[INFC_W_DFT_OUT] = (uint32_t)length + 1;
  CHECK(!test_validate(&s, INFC_OP_DFT, 0), "more than the transform has");
  test_free(x), test_free(y), test_free(table);
}

int main(void) {
  test_rng rng = {16};
  const int64_t lengths[] = {1, 2, 3, 4, 6, 8, 12, 13, 16, 25, 30, 49, 64};
  for (int t = 0; t < 130; t++)
    once(&rng, lengths[t % 13]);
  return test_result();
}
