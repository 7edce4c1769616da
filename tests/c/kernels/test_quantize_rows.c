// quantize_rows: the scalar reference against its definition, every other kernel against it, bit by bit.
#include "kernels/quantize_rows/quantize_rows.h"
#include "step.h"

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct shape {
  int64_t rows, k, group;
  int pad;
  uint32_t kind;
} shape;

typedef struct result {
  uint8_t *q;
  float *params;
} result;

static int64_t groups_of(const shape *s) {
  return s->group ? s->k / s->group : 1;
}

static void make_step(test_step *t, const shape *s, float *x, result r) {
  test_step_init(t, s->rows, 1);
  test_operand(t, false, x, INFC_DTYPE_F32, s->rows, s->k, s->k + s->pad);
  test_operand(t, true, r.q, s->kind == INFC_QUANTIZE_ROWS_SYMMETRIC ? INFC_DTYPE_I8 : INFC_DTYPE_U8, s->rows, s->k,
               s->k);
  test_operand(t, true, r.params, INFC_DTYPE_F32, s->rows, 2 * groups_of(s), 2 * groups_of(s));
  test_word(t, s->kind);
  test_word(t, (uint32_t)s->group);
}

static result run(const shape *s, float *x, const infc_kernel *kernel, int parts) {
  const result r = {test_alloc((size_t)(s->rows * s->k)), test_alloc((size_t)(s->rows * groups_of(s)) * 8)};
  test_step t;
  make_step(&t, s, x, r);
  CHECK(test_validate(&t, INFC_OP_QUANTIZE_ROWS, 0), "%ld x %ld", s->rows, s->k);
  CHECK(!test_run(&t, kernel, parts, 1, NULL), "fault");
  return r;
}

static void free_result(result r) {
  test_free(r.q);
  test_free(r.params);
}

static float *make_rows(const shape *s, bool special) {
  static const float specials[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-42f, -0.0f, 1e-38f};
  const size_t count = (size_t)((s->rows - 1) * (s->k + s->pad) + s->k);
  float *x = test_alloc(count * 4);
  for (int64_t r = 0; r < s->rows; r++) { // rows of one sign, of both, of zeros
    const float low = r % 3 == 0 ? 0.5f : -2.0f, high = r % 3 == 1 ? -0.5f : 3.0f;
    const int64_t end = r + 1 < s->rows ? s->k + s->pad : s->k;
    test_fill_random(&rng, x + r * (s->k + s->pad), (size_t)end, r % 7 == 6 ? 0 : low, r % 7 == 6 ? 0 : high);
  }
  for (int64_t i = 0; special && i < s->rows; i++)
    x[i * (s->k + s->pad) + test_random_int(&rng, 0, s->k - 1)] = specials[i % 8];
  return x;
}

// Dequantised elements are half a step away at most, and zero is a number of the grid.
static void check_reference(const shape *s, const float *x, result r) {
  for (int64_t i = 0; i < s->rows * s->k; i++) {
    const int64_t row = i / s->k, column = i % s->k, group = s->group ? s->group : s->k;
    const float *params = r.params + 2 * (row * groups_of(s) + column / group), v = x[row * (s->k + s->pad) + column];
    const int q = s->kind == INFC_QUANTIZE_ROWS_SYMMETRIC ? (int8_t)r.q[i] : r.q[i];
    const float zero = s->kind == INFC_QUANTIZE_ROWS_SYMMETRIC ? 0 : params[1];
    if (!CHECK(params[0] > 0 && zero >= 0 && zero <= 255 && rintf(zero) == zero, "scale %g", (double)params[0]) ||
        !CHECK(fabsf(((float)q - zero) * params[0] - v) <= 0.5001f * params[0] + 1e-30f, "kind %u: %g is %d", s->kind,
               (double)v, q))
      return;
    if (s->kind != INFC_QUANTIZE_ROWS_SYMMETRIC || column % group)
      continue;
    int sum = 0;
    for (int64_t j = 0; j < group; j++)
      sum += (int8_t)r.q[i + j];
    CHECK(params[1] == (float)sum, "sum %g, expected %d", (double)params[1], sum);
  }
}

static void check_shape(const shape *s, bool special) {
  float *x = make_rows(s, special);
  result want = {0};
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_QUANTIZE_ROWS || !test_supported(kernel))
      continue;
    if (kernel->isa == INFC_ISA_SCALAR) {
      want = run(s, x, kernel, 1);
      if (!special)
        check_reference(s, x, want);
      continue;
    }
    for (int parts = 1; parts <= 3; parts += 2) {
      const result got = run(s, x, kernel, parts);
      CHECK(!memcmp(got.q, want.q, (size_t)(s->rows * s->k)), "%s kind %u %ldx%ld", kernel->name, s->kind, s->rows,
            s->k);
      for (int64_t j = 0; j < 2 * s->rows * groups_of(s); j++)
        CHECK(test_close(got.params[j], want.params[j], 0), "%s kind %u: %g, expected %g", kernel->name, s->kind,
              (double)got.params[j], (double)want.params[j]);
      free_result(got);
    }
  }
  free_result(want);
  test_free(x);
}

static void test_shapes(void) {
  for (uint32_t kind = 0; kind < INFC_QUANTIZE_ROWS_COUNT; kind++) {
    for (int64_t k = 1; k <= 140; k++)
      check_shape(&(shape){1 + k % 9, k, 0, (int)(k % 3), kind}, k % 4 == 3);
    for (int64_t group = 1; group <= 70; group++)
      check_shape(&(shape){1 + group % 9, group * (1 + group % 5), group, (int)(group % 3), kind}, group % 4 == 3);
  }
}

// Halves go to even numbers, extremes to the ends.
static void test_values(void) {
  float x[8] = {-127.5f, 127.5f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0};
  uint8_t q[8];
  float params[2];
  test_step t;
  make_step(&t, &(shape){1, 8, 0, 0, INFC_QUANTIZE_ROWS_ASYMMETRIC}, x, (result){q, params});
  const uint8_t want[8] = {0, 255, 128, 130, 130, 128, 126, 128};
  for (size_t i = 0; i < infc_kernel_count; i++) {
    if (infc_kernels[i].op != INFC_OP_QUANTIZE_ROWS || !test_supported(&infc_kernels[i]))
      continue;
    test_run(&t, &infc_kernels[i], 1, 1, NULL);
    CHECK(params[0] == 1 && params[1] == 128 && !memcmp(q, want, 8), "%s", infc_kernels[i].name);
  }
}

static void test_validator(void) {
  const shape s = {6, 12, 4, 0, INFC_QUANTIZE_ROWS_ASYMMETRIC};
  float *x = make_rows(&s, false);
  const result r = {test_alloc(72), test_alloc(6 * 3 * 8)};
  test_step good;
  make_step(&good, &s, x, r);
  CHECK(test_validate(&good, INFC_OP_QUANTIZE_ROWS, 0), "valid");
#define BAD(change) TEST_INVALID(good, INFC_OP_QUANTIZE_ROWS, 0, change)
  BAD(t.words[INFC_W_QUANTIZE_ROWS_KIND] = INFC_QUANTIZE_ROWS_COUNT);
  BAD(t.words[INFC_W_QUANTIZE_ROWS_KIND] = INFC_QUANTIZE_ROWS_SYMMETRIC);
  BAD(t.words[INFC_W_QUANTIZE_ROWS_GROUP] = 5);
  BAD(t.words[INFC_W_QUANTIZE_ROWS_GROUP] = 0);
  BAD(t.words[INFC_W_QUANTIZE_ROWS_GROUP] = 24);
  BAD(t.words[INFC_W_QUANTIZE_ROWS_GROUP] = 0xFFFFFFFC);
  BAD(t.step.rows = 7);
  BAD(t.step.rows = 0);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.split[1] = INFC_SPLIT_COLS);
  BAD(t.operands[0].dtype = INFC_DTYPE_F16);
  BAD(t.operands[0].row_stride = 11);
  BAD(t.operands[1].row_stride = 13);
  BAD(t.operands[1].dims[0] = 5);
  BAD(t.operands[1].dtype = INFC_DTYPE_I8);
  BAD(t.operands[2].dims[1] = 2);
  BAD(t.operands[2].dtype = INFC_DTYPE_I32);
  BAD(t.operands[2].rows_symbol = 1);
  free_result(r);
  test_free(x);
}

int main(void) {
  test_shapes();
  test_values();
  test_validator();
  return test_result();
}
