// matmul: every kernel against the scalar reference, over shapes, transposition, broadcast batches and splits.
#include "kernels/matmul/matmul.h"
#include "step.h"

#include <math.h>

static test_rng rng = {0xD1B54A32D192ED03u};

typedef struct shape {
  int64_t batch, m, n, k;
  bool trans_b, shared_a, shared_b; // shared: one matrix for the whole batch
  float alpha;
} shape;

typedef struct data {
  float *a, *b;
  int64_t batch_a, batch_b;
} data;

static float *random_floats(int64_t count) {
  float *x = test_alloc((size_t)count * sizeof(float));
  test_fill_random(&rng, x, (size_t)count, -1, 1);
  return x;
}

static data make_data(const shape *s) {
  data d = {.batch_a = s->shared_a ? 1 : s->batch, .batch_b = s->shared_b ? 1 : s->batch};
  d.a = random_floats(d.batch_a * s->m * s->k);
  d.b = random_floats(d.batch_b * s->n * s->k);
  return d;
}

static void make_step(test_step *t, const shape *s, const data *d, float *y) {
  test_step_init(t, s->batch, infc_matmul_panels(s->n));
  test_operand(t, false, d->a, INFC_DTYPE_F32, d->batch_a, s->m * s->k, s->m * s->k);
  test_operand(t, false, d->b, INFC_DTYPE_F32, d->batch_b, s->n * s->k, s->n * s->k);
  test_operand(t, true, y, INFC_DTYPE_F32, s->batch, s->m * s->n, s->m * s->n);
  const int64_t words[] = {s->m,
                           s->n,
                           s->k,
                           s->shared_a ? 0 : s->m * s->k,
                           s->shared_b ? 0 : s->n * s->k,
                           s->trans_b,
                           test_float_word(s->alpha)};
  for (int i = 0; i < INFC_WORDS_MATMUL; i++)
    test_word(t, (uint32_t)words[i]);
}

static float *run(const shape *s, const data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const size_t size = (size_t)(s->batch * s->m * s->n) * sizeof(float);
  float *y = test_alloc(size);
  memset(y, 0x5A, size);
  test_step t;
  make_step(&t, s, d, y);
  CHECK(test_validate(&t, INFC_OP_MATMUL, 0), "valid");
  if (col_parts == 1) // a step without a COLS split need not say how many panels there are
    t.step.cols = 1;
  CHECK(!test_run(&t, kernel, row_parts, col_parts, NULL), "fault");
  return y;
}

static const infc_kernel *scalar_kernel(void) {
  for (size_t i = 0; i < infc_kernel_count; i++)
    if (infc_kernels[i].op == INFC_OP_MATMUL && infc_kernels[i].isa == INFC_ISA_SCALAR)
      return &infc_kernels[i];
  abort();
}

static void compare(const shape *s, const float *got, const float *want, const char *name) {
  const float tolerance = (2e-7f * (float)s->k + 1e-6f) * (fabsf(s->alpha) + 1.0f);
  for (int64_t i = 0; i < s->batch * s->m * s->n; i++)
    if (!CHECK(test_close(got[i], want[i], tolerance), "%s %ldx%ldx%ldx%ld trans %d at %ld: %g, expected %g", name,
               s->batch, s->m, s->n, s->k, s->trans_b, i, (double)got[i], (double)want[i]))
      return;
}

static void check_shape(const shape *s, bool specials) {
  data d = make_data(s);
  if (specials) {
    d.a[0] = NAN;
    d.a[s->m * s->k - 1] = INFINITY;
    d.b[s->n * s->k / 2] = -INFINITY;
  }
  float *want = run(s, &d, scalar_kernel(), 1, 1);
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_MATMUL || !test_supported(kernel))
      continue;
    const int splits[][2] = {{1, 1}, {2, 1}, {1, 2}, {3, 3}};
    for (size_t j = 0; j < sizeof splits / sizeof *splits; j++) {
      float *got = run(s, &d, kernel, splits[j][0], splits[j][1]);
      compare(s, got, want, kernel->name);
      test_free(got);
    }
  }
  test_free(want);
  test_free(d.a);
  test_free(d.b);
}

static void test_shapes(void) {
  for (int i = 0; i < 150; i++) {
    const shape s = {test_random_int(&rng, 1, 4),  test_random_int(&rng, 1, 30), test_random_int(&rng, 1, 100),
                     test_random_int(&rng, 1, 60), test_random(&rng) & 1,        test_random(&rng) % 4 == 0,
                     test_random(&rng) % 4 == 0,   i % 2 ? 1.0f : 0.125f};
    check_shape(&s, i % 5 == 4);
  }
  check_shape(&(shape){1, 13, 40, 1100, false, false, false, 1.0f}, false); // several blocks of K
  check_shape(&(shape){1, 3, 40, 1100, false, false, false, -2.0f}, false);
  check_shape(&(shape){1, 13, 40, 1100, true, false, false, 1.0f}, false);
}

// Each change makes a valid step invalid.
static void test_validator(void) {
  const shape s = {3, 5, 70, 11, false, false, false, 1.0f};
  data d = make_data(&s);
  float *y = random_floats(s.batch * s.m * s.n);
  test_step good;
  make_step(&good, &s, &d, y);
  CHECK(test_validate(&good, INFC_OP_MATMUL, 0), "valid");
#define BAD(change) TEST_INVALID(good, INFC_OP_MATMUL, 0, change)
  BAD(t.step.rows = 4);
  BAD(t.step.rows = 0);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.input_count = 3);
  BAD(t.step.word_count = 6);
  BAD((t.step.split[1] = INFC_SPLIT_COLS, t.step.cols = 2));
  BAD(t.words[INFC_W_MATMUL_M] = 0);
  BAD(t.words[INFC_W_MATMUL_M]++);
  BAD(t.words[INFC_W_MATMUL_N]--);
  BAD(t.words[INFC_W_MATMUL_K]++);
  BAD(t.words[INFC_W_MATMUL_K] = UINT32_MAX);
  BAD((t.words[INFC_W_MATMUL_M] = UINT32_MAX, t.words[INFC_W_MATMUL_N] = UINT32_MAX));
  BAD(t.words[INFC_W_MATMUL_STRIDE_A]++);
  BAD(t.words[INFC_W_MATMUL_STRIDE_B] = UINT32_MAX);
  BAD(t.words[INFC_W_MATMUL_TRANS_B] = 2);
  BAD(t.operands[0].dims[0] = 2);
  BAD(t.operands[0].rows_symbol = 0);
  BAD(t.operands[0].dtype = INFC_DTYPE_F64);
  BAD(t.operands[1].dtype = INFC_DTYPE_F16);
  BAD(t.operands[1].row_stride++);
  BAD(t.operands[2].dims[1]++);
  BAD(t.operands[2].dtype = INFC_DTYPE_I32);
  test_free(d.a);
  test_free(d.b);
  test_free(y);
}

int main(void) {
  test_shapes();
  test_validator();
  return test_result();
}
