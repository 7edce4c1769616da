// Every `norm` kernel against the scalar reference: kinds, optional operands, odd sizes, row splits, aliasing, large
// means, special values; and the validator.
#include "step.h"

#include <math.h>

typedef struct form {
  uint32_t kind;
  bool gamma, beta, residual, sum;
} form;

typedef struct buffers {
  float *x, *gamma, *beta, *residual, *y, *sum;
} buffers;

static const infc_kernel *scalar;

static void make(test_step *s, form f, const buffers *b, int64_t rows, int64_t n, float epsilon) {
  test_step_init(s, rows, 0);
  test_operand(s, false, b->x, INFC_DTYPE_F32, rows, n, n);
  if (f.gamma)
    test_operand(s, false, b->gamma, INFC_DTYPE_F32, n, 0, 1);
  if (f.beta)
    test_operand(s, false, b->beta, INFC_DTYPE_F32, n, 0, 1);
  if (f.residual)
    test_operand(s, false, b->residual, INFC_DTYPE_F32, rows, n, n);
  test_operand(s, true, b->y, INFC_DTYPE_F32, rows, n, n);
  if (f.sum)
    test_operand(s, true, b->sum, INFC_DTYPE_F32, rows, n, n);
  const uint32_t words[] = {f.kind, test_float_word(epsilon), f.gamma, f.beta, f.residual, f.sum};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    test_word(s, words[i]);
}

static bool same(const float *a, const float *b, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (!test_close(a[i], b[i], 0))
      return false;
  return true;
}

static void test_form(const infc_kernel *kernel, form f, test_rng *rng, int64_t rows, int64_t n, float mean) {
  size_t size = (size_t)(rows * n) * sizeof(float);
  buffers b = {test_alloc(size), test_alloc((size_t)n * 4), test_alloc((size_t)n * 4),
               test_alloc(size), test_alloc(size),          test_alloc(size)};
  buffers want = b;
  want.y = test_alloc(size), want.sum = test_alloc(size);
  test_fill_random(rng, b.x, (size_t)(rows * n), mean - 2, mean + 2);
  test_fill_random(rng, b.residual, (size_t)(rows * n), -1, 1);
  test_fill_random(rng, b.gamma, (size_t)n, -2, 2);
  test_fill_random(rng, b.beta, (size_t)n, -2, 2);
  test_step s;
  make(&s, f, &want, rows, n, 1e-5f);
  CHECK(test_validate(&s, INFC_OP_NORM, 0), "kind %u", f.kind);
  test_run(&s, scalar, 1, 1, NULL);
  make(&s, f, &b, rows, n, 1e-5f);
  test_run(&s, kernel, 1, 1, NULL);
  // A row of few elements can have any conditioning: the sum's own rounding, which both share, is all that matters.
  for (int64_t i = 0; i < rows * n; i++)
    CHECK(test_close(b.y[i], want.y[i], 4e-6f * (1 + fabsf(want.y[i]))), "%s kind %u n %d mean %g: %g is not %g",
          kernel->name, f.kind, (int)n, mean, b.y[i], want.y[i]);
  CHECK(!f.sum || same(b.sum, want.sum, rows * n), "%s: sum", kernel->name);

  memcpy(want.y, b.y, size); // from here the kernel against itself: row splits, then y in place of x
  memset(b.y, 0xFF, size);
  test_run(&s, kernel, 3, 1, NULL);
  CHECK(same(b.y, want.y, rows * n), "%s kind %u n %d: a row depends on its neighbours", kernel->name, f.kind, (int)n);
  float *y = b.y;
  b.y = b.x;
  make(&s, f, &b, rows, n, 1e-5f);
  test_run(&s, kernel, 1, 1, NULL);
  CHECK(same(b.x, want.y, rows * n), "%s kind %u n %d: in place differs", kernel->name, f.kind, (int)n);
  test_free(y), test_free(b.x), test_free(b.gamma), test_free(b.beta), test_free(b.residual), test_free(b.sum);
  test_free(want.y), test_free(want.sum);
}

// Rows that hold a NaN or an infinity; constant rows; rows of zeros.
static void test_special(const infc_kernel *kernel, uint32_t kind) {
  enum { ROWS = 5, N = 37 };
  float x[ROWS * N], y[ROWS * N], want[ROWS * N];
  for (int i = 0; i < ROWS * N; i++)
    x[i] = i / N == 3 ? 12345.678f : i / N == 4 ? 0.0f : (float)(i % 7) - 3;
  x[5] = NAN;
  x[N + 36] = INFINITY;
  buffers b = {.x = x, .y = want};
  test_step s;
  make(&s, (form){.kind = kind}, &b, ROWS, N, 1e-12f);
  test_run(&s, scalar, 1, 1, NULL);
  b.y = y;
  make(&s, (form){.kind = kind}, &b, ROWS, N, 1e-12f);
  test_run(&s, kernel, 1, 1, NULL);
  for (int i = 0; i < ROWS * N; i++)
    CHECK(test_close(y[i], want[i], 1e-5f), "%s kind %u row %d: %g is not %g", kernel->name, kind, i / N, y[i],
          want[i]);
}

static void test_validator(void) {
  float data[24], vector[6];
  buffers b = {data, vector, vector, data, data, data};
  test_step good, s;
  make(&good, (form){INFC_NORM_LAYER, true, true, true, true}, &b, 4, 6, 1e-5f);
  CHECK(test_validate(&good, INFC_OP_NORM, 1), "the good step");
#define REFUSES(change)                                                                                                \
  do {                                                                                                                 \
    s = good;                                                                                                          \
    s.task.operands = s.operands, s.task.words = s.words, s.task.step = &s.step;                                       \
    change;                                                                                                            \
    CHECK(!test_validate(&s, INFC_OP_NORM, 1), #change);                                                               \
  } while (0)
  REFUSES(s.words[INFC_W_NORM_KIND] = INFC_NORM_COUNT);
  REFUSES(s.words[INFC_W_NORM_HAS_GAMMA] = 0);
  REFUSES(s.words[INFC_W_NORM_HAS_GAMMA] = 2);
  REFUSES(s.words[INFC_W_NORM_HAS_BETA] = 0xFFFFFFFF);
  REFUSES(s.words[INFC_W_NORM_HAS_SUM] = 0);
  REFUSES(s.step.word_count--);
  REFUSES(s.step.input_count--);
  REFUSES(s.step.output_count--);
  REFUSES(s.step.rows = 3);
  REFUSES(s.step.rows_symbol = 0);
  REFUSES(s.operands[0].rank = 9);
  REFUSES(s.operands[0].rank = 0);
  REFUSES(s.operands[1].rows_symbol = 0);
  for (int i = 0; i < 6; i++) {
    REFUSES(s.operands[i].dtype = INFC_DTYPE_F16);
    REFUSES(s.operands[i].row_stride++);
    REFUSES(s.operands[i].dims[0]--);
    REFUSES(s.operands[i].packing = INFC_PACK_F32_K1N32);
  }
  REFUSES(s.operands[5].rows_symbol = 0);
}

int main(void) {
  test_rng rng = {7};
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_NORM && infc_kernels[k].isa == INFC_ISA_SCALAR)
      scalar = &infc_kernels[k];
  const int64_t sizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129, 384, 1000};
  for (size_t k = 0; k < infc_kernel_count; k++) {
    const infc_kernel *kernel = &infc_kernels[k];
    if (kernel->op != INFC_OP_NORM || !test_supported(kernel))
      continue;
    for (uint32_t kind = 0; kind < INFC_NORM_COUNT; kind++) {
      for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bits = 0; bits < 16; bits++)
          test_form(kernel, (form){kind, bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1}, &rng, 1 + bits % 10,
                    sizes[i], 0);
      test_special(kernel, kind);
    }
    for (int residual = 0; residual < 2; residual++)
      test_form(kernel, (form){INFC_NORM_LAYER, true, true, residual, residual}, &rng, 5, 384, 1e5f);
  }
  test_validator();
  return test_result();
}
