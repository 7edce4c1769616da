// gemm: every kernel against the scalar reference, over shapes, strides, epilogues and splits.
#include "kernels/gemm/gemm.h"
#include "step.h"

#include <math.h>

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct shape {
  int64_t rows, k, n;
  int pad; // elements by which row strides exceed the rows
  uint32_t activation;
  bool bias, residual, in_place; // in_place: the residual is the output
} shape;

static void pack(float *b, const float *plain, int64_t k, int64_t n) {
  for (int64_t i = 0; i < k; i++)
    for (int64_t j = 0; j < infc_gemm_panels(n) * INFC_PANEL; j++)
      b[(j / INFC_PANEL * k + i) * INFC_PANEL + j % INFC_PANEL] = j < n ? plain[i * n + j] : 0.0f;
}

static size_t span(int64_t rows, int64_t cols, int64_t stride) {
  return (size_t)((rows - 1) * stride + cols) * sizeof(float);
}

typedef struct data {
  float *a, *b, *bias, *residual;
} data;

static data make_data(const shape *s) {
  const int64_t lda = s->k + s->pad, ldy = s->n + s->pad, packed = infc_gemm_panels(s->n) * INFC_PANEL * s->k;
  data d = {test_alloc(span(s->rows, s->k, lda)), test_alloc((size_t)packed * 4), test_alloc((size_t)s->n * 4),
            test_alloc(span(s->rows, s->n, ldy))};
  float *plain = test_alloc((size_t)(s->k * s->n) * 4);
  test_fill_random(&rng, d.a, span(s->rows, s->k, lda) / 4, -1, 1);
  test_fill_random(&rng, plain, (size_t)(s->k * s->n), -1, 1);
  test_fill_random(&rng, d.bias, (size_t)s->n, -1, 1);
  test_fill_random(&rng, d.residual, span(s->rows, s->n, ldy) / 4, -1, 1);
  pack(d.b, plain, s->k, s->n);
  test_free(plain);
  return d;
}

static void free_data(data *d) {
  test_free(d->a);
  test_free(d->b);
  test_free(d->bias);
  test_free(d->residual);
}

static void make_step(test_step *t, const shape *s, const data *d, float *y) {
  test_step_init(t, s->rows, infc_gemm_panels(s->n));
  test_operand(t, false, d->a, INFC_DTYPE_F32, s->rows, s->k, s->k + s->pad);
  test_operand(t, false, d->b, INFC_DTYPE_F32, s->k, s->n, s->n)->packing = INFC_PACK_F32_K1N32;
  if (s->bias)
    test_operand(t, false, d->bias, INFC_DTYPE_F32, s->n, 0, 1);
  if (s->residual)
    test_operand(t, false, s->in_place ? y : d->residual, INFC_DTYPE_F32, s->rows, s->n, s->n + s->pad);
  test_operand(t, true, y, INFC_DTYPE_F32, s->rows, s->n, s->n + s->pad);
  test_word(t, s->activation);
  test_word(t, s->bias);
  test_word(t, s->residual);
}

static float *run(const shape *s, const data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const size_t size = span(s->rows, s->n, s->n + s->pad);
  float *y = test_alloc(size);
  memset(y, 0x5A, size);
  if (s->in_place)
    memcpy(y, d->residual, size);
  test_step t;
  make_step(&t, s, d, y);
  CHECK(test_validate(&t, INFC_OP_GEMM, 0), "%ld x %ld x %ld", s->rows, s->k, s->n);
  CHECK(!test_run(&t, kernel, row_parts, col_parts, NULL), "fault");
  return y;
}

static const infc_kernel *scalar_kernel(void) {
  for (size_t i = 0; i < infc_kernel_count; i++)
    if (infc_kernels[i].op == INFC_OP_GEMM && infc_kernels[i].isa == INFC_ISA_SCALAR)
      return &infc_kernels[i];
  abort();
}

static void compare(const shape *s, const float *got, const float *want, const char *name, const char *what) {
  const float tolerance = 2e-7f * (float)s->k + 2e-6f;
  const int64_t stride = s->n + s->pad;
  for (int64_t r = 0; r < s->rows; r++) {
    for (int64_t c = 0; c < stride && r * stride + c < (int64_t)(span(s->rows, s->n, stride) / 4); c++) {
      const float a = got[r * stride + c], b = want[r * stride + c];
      const bool same =
          c < s->n ? test_close(a, b, tolerance) : memcmp(&a, &b, 4) == 0; // nothing between the rows is written
      if (!CHECK(same, "%s %s %ldx%ldx%ld act %u at %ld,%ld: %g, expected %g", name, what, s->rows, s->k, s->n,
                 s->activation, r, c, (double)a, (double)b))
        return;
    }
  }
}

static void check_shape(const shape *s, void (*spoil)(const shape *, data *)) {
  data d = make_data(s);
  if (spoil)
    spoil(s, &d);
  float *want = run(s, &d, scalar_kernel(), 1, 1);
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_GEMM || !test_supported(kernel))
      continue;
    const int splits[][2] = {{1, 1}, {3, 1}, {1, 2}, {40, 1}, {2, 3}};
    for (size_t j = 0; j < sizeof splits / sizeof *splits; j++) {
      float *got = run(s, &d, kernel, splits[j][0], splits[j][1]);
      compare(s, got, want, kernel->name, spoil ? "special" : "plain");
      test_free(got);
    }
  }
  test_free(want);
  free_data(&d);
}

static void add_specials(const shape *s, data *d) {
  d->a[0] = NAN;
  d->a[(s->rows - 1) * (s->k + s->pad)] = INFINITY;
  d->a[s->rows / 2 * (s->k + s->pad) + s->k - 1] = -INFINITY;
}

static void test_shapes(void) {
  static const uint32_t functions[] = {INFC_UNARY_IDENTITY,   INFC_UNARY_RELU, INFC_UNARY_GELU_ERF,
                                       INFC_UNARY_GELU_TANH,  INFC_UNARY_SILU, INFC_UNARY_SIGMOID,
                                       INFC_UNARY_QUICK_GELU, INFC_UNARY_TANH};
  for (int64_t rows = 1; rows <= 26; rows++) {
    const shape s = {rows, 1 + rows * 7 % 40, 64, 0, INFC_UNARY_IDENTITY, true, false, false};
    check_shape(&s, NULL);
  }
  for (int i = 0; i < 120; i++) {
    const shape s = {test_random_int(&rng, 1, 45),
                     test_random_int(&rng, 1, i % 10 ? 70 : 700),
                     test_random_int(&rng, 1, 130),
                     i % 3 ? 0 : (int)test_random_int(&rng, 1, 9),
                     functions[i % 8],
                     test_random(&rng) & 1,
                     test_random(&rng) & 1,
                     test_random(&rng) & 1};
    check_shape(&s, i % 4 == 3 ? add_specials : NULL);
  }
  // A larger than a block of rows; no column of a panel whole.
  const shape large[] = {{300, 1000, 33, 0, INFC_UNARY_GELU_ERF, true, true, false},
                         {5, 20000, 3, 4, 0, false, false, false}};
  check_shape(&large[0], NULL);
  check_shape(&large[1], NULL);
}

// Each change makes a valid step invalid.
static void test_validator(void) {
  const shape s = {8, 48, 70, 0, INFC_UNARY_RELU, true, true, false};
  data d = make_data(&s);
  float *y = test_alloc(span(s.rows, s.n, s.n));
  test_step good;
  make_step(&good, &s, &d, y);
  CHECK(test_validate(&good, INFC_OP_GEMM, 0), "valid");
#define BAD(change) TEST_INVALID(good, INFC_OP_GEMM, 0, change)
  BAD(t.step.cols = 4);
  BAD(t.step.rows = 9);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.input_count = 3);
  BAD(t.step.output_count = 2);
  BAD(t.step.word_count = 2);
  BAD(t.words[INFC_W_GEMM_ACTIVATION] = INFC_UNARY_CLIP);
  BAD(t.words[INFC_W_GEMM_ACTIVATION] = 0xFFFFFFFF);
  BAD(t.words[INFC_W_GEMM_HAS_BIAS] = 0);
  BAD(t.words[INFC_W_GEMM_HAS_BIAS] = 2);
  BAD(t.words[INFC_W_GEMM_HAS_RESIDUAL] = 0x80000000u);
  BAD(t.operands[0].dtype = INFC_DTYPE_F16);
  BAD(t.operands[0].row_stride = 47);
  BAD(t.operands[0].dims[1] = 47);
  BAD(t.operands[0].dims[0] = 7);
  BAD(t.operands[0].rows_symbol = 0);
  BAD(t.operands[0].packing = INFC_PACK_F32_K1N32);
  BAD(t.operands[1].packing = INFC_PACK_ROW_MAJOR);
  BAD(t.operands[1].dims[0] = 49);
  BAD(t.operands[1].dims[1] = 96);
  BAD(t.operands[1].rank = 1);
  BAD(t.operands[1].rows_symbol = 0);
  BAD(t.operands[2].dims[0] = 69);
  BAD(t.operands[2].dtype = INFC_DTYPE_I32);
  BAD(t.operands[3].dims[1] = 71);
  BAD(t.operands[4].row_stride = 69);
  BAD(t.operands[4].dtype = INFC_DTYPE_I32);
  BAD(t.operands[4].rows_symbol = 1);
  free_data(&d);
  test_free(y);
}

int main(void) {
  test_shapes();
  test_validator();
  return test_result();
}
