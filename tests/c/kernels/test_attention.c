// attention: every kernel against the scalar reference, over shapes, masks, segments and splits.
#include "step.h"

#include <math.h>

static test_rng rng = {0x2545F4914F6CDD1Du};

typedef struct shape {
  int64_t heads, kv_heads, head_dim, v_dim;
  int64_t batch, q_len, kv_len; // segments: q_len bounds the lengths
  bool segments, causal;
  uint8_t bias; // 0, INFC_DTYPE_F32 or INFC_DTYPE_BOOL
  bool bias_by_query;
  int pad;        // elements by which strides exceed the rows
  int64_t unused; // segments: rows of the bound that are not in use
} shape;

typedef struct data {
  int64_t rows, key_rows, batch; // bounds
  float *q, *k, *v;
  void *bias;
  int32_t *offsets, *key_start;
  int64_t symbols[2]; // rows, batch
} data;

static float *random_rows(int64_t rows, int64_t stride) {
  float *x = test_alloc((size_t)(rows * stride) * sizeof(float));
  test_fill_random(&rng, x, (size_t)(rows * stride), -1, 1);
  return x;
}

static int64_t bias_queries(const shape *s) {
  return s->bias_by_query ? s->q_len : 1;
}

static void *random_bias(const shape *s) {
  const int64_t count = s->batch * s->heads * bias_queries(s) * s->kv_len;
  if (s->bias == INFC_DTYPE_F32) {
    float *x = random_rows(count, 1);
    for (int64_t i = 0; i < count; i++) // additive masks of both customs among it
      x[i] = i % 7 == 0 ? -INFINITY : i % 11 == 0 ? -0x1.fffffep127f : x[i];
    return x;
  }
  uint8_t *x = test_alloc((size_t)count);
  for (int64_t i = 0; i < count; i++)
    x[i] = test_random(&rng) % 3 != 0;
  return x;
}

static data make_data(const shape *s) {
  data d = {.batch = s->batch};
  if (s->segments) {
    d.offsets = test_alloc((size_t)(s->batch + 1) * 4);
    d.key_start = test_alloc((size_t)s->batch * 4);
    d.offsets[0] = 0;
    for (int64_t b = 0; b < s->batch; b++) {
      d.offsets[b + 1] = d.offsets[b] + (int32_t)test_random_int(&rng, 1, s->q_len);
      d.key_start[b] = d.offsets[b] + (int32_t)(test_random(&rng) % 2);
    }
    d.symbols[0] = d.offsets[s->batch];
    d.rows = d.key_rows = d.symbols[0] + s->unused;
  } else {
    d.rows = d.symbols[0] = s->batch * s->q_len;
    d.key_rows = s->batch * s->kv_len;
  }
  d.symbols[1] = s->batch;
  d.q = random_rows(d.rows, s->heads * s->head_dim + s->pad);
  d.k = random_rows(d.key_rows, s->kv_heads * s->head_dim + s->pad);
  d.v = random_rows(d.key_rows, s->kv_heads * s->v_dim + s->pad);
  if (s->bias)
    d.bias = random_bias(s);
  return d;
}

static void free_data(data *d) {
  test_free(d->q);
  test_free(d->k);
  test_free(d->v);
  test_free(d->bias);
  test_free(d->offsets);
  test_free(d->key_start);
}

static infc_operand *rows_operand(test_step *t, bool output, void *x, int64_t rows, int64_t cols, int pad,
                                  bool symbolic) {
  infc_operand *o = test_operand(t, output, x, INFC_DTYPE_F32, rows, cols, cols + pad);
  o->rows_symbol = symbolic ? 0 : -1;
  return o;
}

static void make_step(test_step *t, const shape *s, const data *d, float *y) {
  test_step_init(t, d->rows, s->heads);
  t->step.rows_symbol = s->segments ? 0 : -1;
  rows_operand(t, false, d->q, d->rows, s->heads * s->head_dim, s->pad, s->segments);
  rows_operand(t, false, d->k, d->key_rows, s->kv_heads * s->head_dim, s->pad, s->segments);
  rows_operand(t, false, d->v, d->key_rows, s->kv_heads * s->v_dim, s->pad, s->segments);
  if (s->segments) {
    test_operand(t, false, d->offsets, INFC_DTYPE_I32, s->batch + 1, 0, 1);
    test_operand(t, false, d->key_start, INFC_DTYPE_I32, s->batch, 0, 1)->rows_symbol = 1;
  }
  const int64_t bias_h = bias_queries(s) * s->kv_len;
  if (s->bias)
    test_operand(t, false, d->bias, s->bias, s->batch * s->heads, bias_h, bias_h);
  rows_operand(t, true, y, d->rows, s->heads * s->v_dim, 0, s->segments);
  const int64_t words[INFC_WORDS_ATTENTION] = {
      [INFC_W_ATTENTION_HEADS] = s->heads,
      [INFC_W_ATTENTION_KV_HEADS] = s->kv_heads,
      [INFC_W_ATTENTION_HEAD_DIM] = s->head_dim,
      [INFC_W_ATTENTION_V_DIM] = s->v_dim,
      [INFC_W_ATTENTION_SCALE] = test_float_word(1.0f / sqrtf((float)s->head_dim)),
      [INFC_W_ATTENTION_CAUSAL] = s->causal,
      [INFC_W_ATTENTION_HAS_SEGMENTS] = s->segments,
      [INFC_W_ATTENTION_BATCH_SYMBOL] = s->segments ? 1 : -1,
      [INFC_W_ATTENTION_BATCH] = s->batch,
      [INFC_W_ATTENTION_Q_LEN] = s->q_len,
      [INFC_W_ATTENTION_KV_LEN] = s->kv_len,
      [INFC_W_ATTENTION_HAS_BIAS] = s->bias != 0,
      [INFC_W_ATTENTION_BIAS_B] = s->heads * bias_h,
      [INFC_W_ATTENTION_BIAS_H] = bias_h,
      [INFC_W_ATTENTION_BIAS_Q] = s->bias_by_query ? s->kv_len : 0,
  };
  for (int i = 0; i < INFC_WORDS_ATTENTION; i++)
    test_word(t, (uint32_t)words[i]);
}

static float *run(const shape *s, data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const size_t size = (size_t)(d->rows * s->heads * s->v_dim) * sizeof(float);
  float *y = test_alloc(size);
  memset(y, 0x5A, size);
  test_step t;
  make_step(&t, s, d, y);
  CHECK(test_validate(&t, INFC_OP_ATTENTION, 2), "valid");
  CHECK(!test_run(&t, kernel, row_parts, col_parts, d->symbols), "fault");
  return y;
}

static const infc_kernel *scalar_kernel(void) {
  for (size_t i = 0; i < infc_kernel_count; i++)
    if (infc_kernels[i].op == INFC_OP_ATTENTION && infc_kernels[i].isa == INFC_ISA_SCALAR)
      return &infc_kernels[i];
  abort();
}

static void compare(const shape *s, const data *d, const float *got, const float *want, float tolerance,
                    const char *name) {
  const int64_t cols = s->heads * s->v_dim;
  for (int64_t i = 0; i < d->rows * cols; i++)
    if (!CHECK(test_close(got[i], want[i], tolerance),
               "%s heads %ld/%ld dims %ld %ld batch %ld len %ld %ld segments %d causal %d bias %d at %ld,%ld: %g, "
               "expected %g",
               name, s->heads, s->kv_heads, s->head_dim, s->v_dim, s->batch, s->q_len, s->kv_len, s->segments,
               s->causal, s->bias, i / cols, i % cols, (double)got[i], (double)want[i]))
      return;
}

static void check_data(const shape *s, data *d, float tolerance) {
  float *want = run(s, d, scalar_kernel(), 1, 1);
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_ATTENTION || !test_supported(kernel))
      continue;
    const int splits[][2] = {{1, 1}, {2, 1}, {1, 2}, {7, 1}};
    for (size_t j = 0; j < sizeof splits / sizeof *splits; j++) {
      float *got = run(s, d, kernel, splits[j][0], splits[j][1]);
      compare(s, d, got, want, tolerance, kernel->name);
      test_free(got);
    }
  }
  test_free(want);
}

// Large scores: one key takes all, the others vanish.
static void add_peaks(const shape *s, data *d) {
  for (int64_t i = 0; i < d->rows * (s->heads * s->head_dim + s->pad); i++)
    d->q[i] *= 300.0f;
}

static void check_shape(const shape *s, void (*spoil)(const shape *, data *)) {
  data d = make_data(s);
  if (spoil)
    spoil(s, &d);
  check_data(s, &d, spoil == add_peaks ? 1e-4f : 4e-6f); // scores in the hundreds are rounded to 1e-5
  free_data(&d);
}

static void add_specials(const shape *s, data *d) {
  d->q[0] = NAN;
  d->k[s->head_dim - 1] = INFINITY;
  d->v[0] = -INFINITY;
}

// Rows of the second sequence are its third's too, then beyond the end, then before the start.
static void corrupt_offsets(const shape *s, data *d) {
  d->offsets[1] = INT32_MAX;
  d->offsets[s->batch] = -5;
  d->key_start[0] = INT32_MIN;
  d->key_start[s->batch - 1] = INT32_MAX;
}

static void test_shapes(void) {
  static const int64_t dims[] = {1, 3, 8, 16, 20, 32, 33, 64};
  for (int i = 0; i < 160; i++) {
    const int64_t kv_heads = test_random_int(&rng, 1, 3);
    shape s = {
        .heads = kv_heads * test_random_int(&rng, 1, 2),
        .kv_heads = kv_heads,
        .head_dim = dims[test_random(&rng) % 8],
        .v_dim = dims[test_random(&rng) % 8],
        .batch = test_random_int(&rng, 1, 4),
        .q_len = test_random_int(&rng, 1, i % 8 ? 40 : 90),
        .segments = i & 1,
        .causal = i & 2,
        .bias = (uint8_t[]){0, 0, INFC_DTYPE_F32, INFC_DTYPE_BOOL}[test_random(&rng) % 4],
        .bias_by_query = test_random(&rng) & 1,
        .pad = (int)test_random_int(&rng, 0, 3),
        .unused = test_random_int(&rng, 0, 5),
    };
    s.kv_len = s.segments || test_random(&rng) % 2 ? s.q_len : test_random_int(&rng, 1, 300);
    check_shape(&s, NULL);
  }
  const shape minilm = {12, 12, 32, 32, 2, 128, 128, true, false, 0, false, 0, 0};
  check_shape(&minilm, NULL);
  const shape lengthy = {2, 1, 16, 8, 1, 50, 1000, false, true, 0, false, 0, 0};
  check_shape(&lengthy, NULL);
  check_shape(&lengthy, add_peaks);
  const shape small = {2, 2, 8, 8, 2, 40, 20, false, false, 0, false, 0, 0};
  check_shape(&small, add_specials);
  const shape packed = {2, 2, 8, 8, 5, 20, 20, true, false, 0, false, 1, 3};
  check_shape(&packed, corrupt_offsets);
  const shape packed_bias = {2, 2, 8, 8, 5, 20, 20, true, true, INFC_DTYPE_F32, true, 1, 3};
  check_shape(&packed_bias, corrupt_offsets);
}

// Nothing attended: zeros, not NaN.
static void test_no_keys(void) {
  const shape s = {1, 1, 8, 8, 1, 5, 6, false, false, INFC_DTYPE_BOOL, false, 0, 0};
  data d = make_data(&s);
  memset(d.bias, 0, 6);
  check_data(&s, &d, 0.0f);
  float *y = run(&s, &d, scalar_kernel(), 1, 1);
  for (int i = 0; i < 40; i++)
    CHECK(y[i] == 0.0f, "%g", (double)y[i]);
  test_free(y);
  free_data(&d);
}

#define BAD(change) TEST_INVALID(good, INFC_OP_ATTENTION, 2, change)

// Each change makes a valid step invalid.
static void test_validator(const shape *s) {
  data d = make_data(s);
  float *y = test_alloc((size_t)(d.rows * s->heads * s->v_dim) * sizeof(float));
  test_step good;
  make_step(&good, s, &d, y);
  CHECK(test_validate(&good, INFC_OP_ATTENTION, 2), "valid");
  const int out = good.step.input_count;
  BAD(t.step.word_count--);
  BAD(t.step.cols++);
  BAD(t.step.rows++);
  BAD(t.step.rows_symbol = 1);
  BAD(t.step.input_count++);
  BAD(t.step.output_count++);
  BAD(t.words[INFC_W_ATTENTION_HEADS] = 0);
  BAD(t.words[INFC_W_ATTENTION_HEADS]++);
  BAD(t.words[INFC_W_ATTENTION_KV_HEADS] = 0);
  BAD(t.words[INFC_W_ATTENTION_KV_HEADS] = 3);
  BAD(t.words[INFC_W_ATTENTION_HEAD_DIM]++);
  BAD(t.words[INFC_W_ATTENTION_HEAD_DIM] = 0x80000000u);
  BAD(t.words[INFC_W_ATTENTION_V_DIM] = 0);
  BAD(t.words[INFC_W_ATTENTION_V_DIM]--);
  BAD(t.words[INFC_W_ATTENTION_CAUSAL] = 2);
  BAD(t.words[INFC_W_ATTENTION_HAS_SEGMENTS] ^= 1);
  BAD(t.words[INFC_W_ATTENTION_HAS_SEGMENTS] = 2);
  BAD(t.words[INFC_W_ATTENTION_BATCH_SYMBOL] = 2);
  BAD(t.words[INFC_W_ATTENTION_BATCH_SYMBOL] = 0x80000000u);
  BAD(t.words[INFC_W_ATTENTION_BATCH]++);
  BAD(t.words[INFC_W_ATTENTION_BATCH] = 0);
  BAD(t.words[INFC_W_ATTENTION_HAS_BIAS] ^= 1);
  if (s->bias) {
    BAD(t.words[INFC_W_ATTENTION_BIAS_B]++);
    BAD(t.words[INFC_W_ATTENTION_BIAS_H] = UINT32_MAX);
    BAD(t.words[INFC_W_ATTENTION_BIAS_Q]++);
    BAD(t.words[INFC_W_ATTENTION_KV_LEN]++);
    BAD(t.operands[out - 1].dtype = INFC_DTYPE_I32);
    BAD(t.operands[out - 1].dims[0]--);
  }
  BAD(t.operands[0].dtype = INFC_DTYPE_F16);
  BAD(t.operands[0].row_stride = t.operands[0].dims[1] - 1);
  BAD(t.operands[1].dims[0]--);
  BAD(t.operands[1].dims[1]++);
  BAD(t.operands[1].rows_symbol = 1);
  BAD(t.operands[2].dims[0]--);
  BAD(t.operands[2].row_stride = 1);
  BAD(t.operands[out].dims[1]--);
  BAD(t.operands[out].rows_symbol ^= 1);
  if (s->segments) {
    BAD(t.operands[3].dims[0]--);
    BAD(t.operands[3].rows_symbol = 1);
    BAD(t.operands[3].dtype = INFC_DTYPE_I64);
    BAD(t.operands[4].dims[0]--);
    BAD(t.operands[4].rows_symbol = 0);
  }
  test_free(y);
  free_data(&d);
}

int main(void) {
  test_shapes();
  test_no_keys();
  test_validator(&(shape){4, 2, 8, 16, 3, 5, 7, false, false, INFC_DTYPE_F32, true, 0, 0});
  test_validator(&(shape){4, 2, 8, 16, 3, 5, 5, true, false, 0, false, 2, 0});
  return test_result();
}
