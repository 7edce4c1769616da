// gemm_grouped: the scalar reference against plain sums of weights as they were before packing, every kernel on every
// path of this machine against the reference.
#include "cpu_features.h"
#include "kernels/gemm_grouped/gemm_grouped.h"
#include "step.h"

#include <math.h>

static test_rng rng = {0x9E3779B97F4A7C15u};

typedef struct shape {
  int64_t rows, groups, n;
  uint32_t group, bits;
  bool wide, sparse, bias;
  uint32_t zeros; // as the step's word
  uint32_t residual, activation;
  int pad;       // elements by which row strides exceed the rows
  bool in_place; // the residual is the output
} shape;

typedef struct data {
  int8_t *a;
  float *params;
  uint8_t *b;
  double *plain; // [k, n]: weights as numbers
  float *bias, *residual;
} data;

enum fill { RANDOM, EXTREMES, SPECIAL };

static size_t span(int64_t rows, int64_t cols, int64_t stride) {
  return (size_t)((rows - 1) * stride + cols);
}

static int64_t group_bytes(const shape *s) {
  const int64_t scale_bytes = INFC_PANEL * (s->wide ? 4 : 2);
  return scale_bytes + (s->zeros == INFC_GROUPED_ZEROS_NONE ? 0 : INFC_PANEL) +
         infc_grouped_lines(s->group, s->bits, s->sparse) * INFC_GROUPED_LINE;
}

// A scale that f16 holds: 1.m * 2^e.
static float make_scale(uint8_t *at, bool wide, enum fill fill) {
  const uint32_t exponent = fill == EXTREMES ? 15 : (uint32_t)test_random_int(&rng, 3, 9);
  const uint32_t mantissa = fill == EXTREMES ? 0 : (uint32_t)test_random_int(&rng, 0, 1023);
  const uint16_t half = (uint16_t)(exponent << 10 | mantissa);
  const float scale = ldexpf(1.0f + (float)mantissa / 1024.0f, (int)exponent - 15);
  if (wide)
    memcpy(at, &scale, sizeof scale);
  else
    memcpy(at, &half, sizeof half);
  return scale;
}

static int make_byte(int top, enum fill fill) {
  return fill == EXTREMES ? (test_random(&rng) & 1 ? top : 0) : (int)test_random_int(&rng, 0, top);
}

static int make_weight(const shape *s, enum fill fill) {
  return make_byte(s->bits == 4 ? 15 : 255, fill);
}

// Packs weights of a column's group, drawn here, and notes what they stand for.
static void make_column(const shape *s, uint8_t *b, int64_t column, double *plain, enum fill fill) {
  const int64_t scale_bytes = INFC_PANEL * (s->wide ? 4 : 2);
  const float scale = make_scale(b + column * (s->wide ? 4 : 2), s->wide, fill);
  const bool zeros = s->zeros != INFC_GROUPED_ZEROS_NONE, sixteenths = s->zeros == INFC_GROUPED_ZEROS_SIXTEENTHS;
  const int byte = sixteenths ? make_byte(255, fill) : make_weight(s, fill), middle = s->bits == 4 ? 8 : 128;
  const double zero = zeros ? byte / (sixteenths ? 16.0 : 1.0) : middle;
  if (zeros)
    b[scale_bytes + column] = (uint8_t)byte;
  uint8_t *dwords = b + scale_bytes + (zeros ? INFC_PANEL : 0) + 4 * column;
  for (int64_t i = 0; i < s->group && !s->sparse; i++) {
    const int w = make_weight(s, fill);
    plain[i * s->n] = ((double)w - zero) * (double)scale;
    if (s->bits == 8)
      dwords[i / 4 * INFC_GROUPED_LINE + i % 4] = (uint8_t)w;
    else
      dwords[i / 8 * INFC_GROUPED_LINE + i % 4] |= (uint8_t)(w << (i % 8 / 4 * 4));
  }
  for (int64_t i = 0; i < s->group && s->sparse; i += 4) {
    const int64_t first = test_random_int(&rng, 0, 2), second = test_random_int(&rng, first + 1, 3);
    const int64_t places[] = {first, second}, step = i % INFC_GROUPED_UNIT / 8;
    uint8_t *codes = dwords + i / INFC_GROUPED_UNIT * 3 * INFC_GROUPED_LINE;
    for (int at = 0; at < 4; at++)
      plain[(i + at) * s->n] = 0.0;
    for (int kept = 0; kept < 2; kept++) {
      const int w = make_weight(s, fill), place = (int)(i % 8 / 4) * 2 + kept;
      plain[(i + places[kept]) * s->n] = ((double)w - zero) * (double)scale;
      codes[place] |= (uint8_t)(places[kept] << (2 * step));
      codes[(1 + step / 2) * INFC_GROUPED_LINE + place] |= (uint8_t)(w << (step % 2 * 4));
    }
  }
}

static data make_data(const shape *s, enum fill fill) {
  const int64_t k = s->groups * s->group, panels = infc_gemm_panels(s->n);
  const size_t a_size = span(s->rows, k, k + s->pad), y_size = span(s->rows, s->n, s->n + s->pad);
  const size_t b_size = (size_t)(panels * s->groups * group_bytes(s));
  data d = {.a = test_alloc(a_size),
            .params = test_alloc((size_t)(s->rows * s->groups * 8)),
            .b = test_alloc(b_size),
            .plain = test_alloc((size_t)(k * s->n) * sizeof(double)),
            .bias = test_alloc((size_t)s->n * 4),
            .residual = test_alloc(y_size * 4)};
  memset(d.b, 0, b_size);
  for (size_t i = 0; i < a_size; i++)
    d.a[i] = fill == EXTREMES ? (i % 5 ? -128 : 127) : (int8_t)test_random_int(&rng, -127, 127);
  for (int64_t r = 0; r < s->rows; r++)
    for (int64_t g = 0; g < s->groups; g++) {
      float *params = d.params + 2 * (r * s->groups + g), sum = 0;
      for (int64_t i = 0; i < s->group; i++)
        sum += (float)d.a[r * (k + s->pad) + g * s->group + i];
      params[0] = fill == EXTREMES ? 1.0f : test_random_float(&rng, 0.001f, 0.002f);
      params[1] = sum;
    }
  for (int64_t c = 0; c < s->n; c++)
    for (int64_t g = 0; g < s->groups; g++)
      make_column(s, d.b + (c / INFC_PANEL * s->groups + g) * group_bytes(s), c % INFC_PANEL,
                  d.plain + g * s->group * s->n + c, fill);
  test_fill_random(&rng, d.bias, (size_t)s->n, -1, 1);
  test_fill_random(&rng, d.residual, y_size, -1, 1);
  if (fill == SPECIAL) { // a sum counts for nothing where its scale is NaN
    d.params[2 * s->rows * s->groups - 2] = INFINITY;
    d.params[0] = NAN, d.params[1] = NAN, d.residual[0] = -INFINITY, d.bias[s->n - 1] = NAN;
  }
  return d;
}

static void free_data(data *d) {
  void *all[] = {d->a, d->params, d->b, d->plain, d->bias, d->residual};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    test_free(all[i]);
}

static void make_step(test_step *t, const shape *s, const data *d, float *y) {
  const int64_t k = s->groups * s->group, panels = infc_gemm_panels(s->n), ldy = s->n + s->pad;
  const int64_t bytes = s->groups * group_bytes(s);
  test_step_init(t, s->rows, panels);
  test_operand(t, false, d->a, INFC_DTYPE_I8, s->rows, k, k + s->pad);
  test_operand(t, false, d->params, INFC_DTYPE_F32, s->rows, 2 * s->groups, 2 * s->groups);
  test_operand(t, false, d->b, INFC_DTYPE_U8, panels, bytes, bytes);
  if (s->bias)
    test_operand(t, false, d->bias, INFC_DTYPE_F32, s->n, 0, 1);
  if (s->residual)
    test_operand(t, false, s->in_place ? y : d->residual, INFC_DTYPE_F32, s->rows, s->n, ldy);
  test_operand(t, true, y, INFC_DTYPE_F32, s->rows, s->n, ldy);
  const uint32_t words[INFC_WORDS_GEMM_GROUPED] = {s->activation, s->bias,   s->residual, s->bits,     s->wide,
                                                   s->zeros,      s->sparse, s->group,    (uint32_t)k, (uint32_t)s->n};
  for (int i = 0; i < INFC_WORDS_GEMM_GROUPED; i++)
    test_word(t, words[i]);
}

static float *run(const shape *s, const data *d, const infc_kernel *kernel, int row_parts, int col_parts) {
  const size_t size = span(s->rows, s->n, s->n + s->pad) * sizeof(float);
  float *y = test_alloc(size);
  memset(y, 0x5A, size);
  if (s->in_place)
    memcpy(y, d->residual, size);
  test_step t;
  make_step(&t, s, d, y);
  CHECK(test_validate(&t, INFC_OP_GEMM_GROUPED, 0), "%ld x %ld x %ld", s->rows, s->groups, s->n);
  CHECK(!test_run(&t, kernel, row_parts, col_parts, NULL), "fault");
  return y;
}

static void compare(const shape *s, const float *got, const float *want, float tolerance, const char *name) {
  const int64_t stride = s->n + s->pad, count = (int64_t)span(s->rows, s->n, stride);
  for (int64_t i = 0; i < count; i++) {
    const bool between = i % stride >= s->n; // nothing between the rows is written
    const bool same = between ? memcmp(&got[i], &want[i], 4) == 0 : test_close(got[i], want[i], tolerance);
    if (!CHECK(same, "%s features %x: %ldx%ldx%ld of %u, %u bits%s%s act %u at %ld,%ld: %g, expected %g", name,
               infc_cpu_features(), s->rows, s->groups, s->n, s->group, s->bits,
               (const char *[]){"", ", zeros", ", sixteenths"}[s->zeros], s->sparse ? ", sparse" : "", s->activation,
               i / stride, i % stride, (double)got[i], (double)want[i]))
      return;
  }
}

static void check_plain_sums(const shape *s, const data *d, const float *y) {
  const int64_t k = s->groups * s->group;
  for (int64_t r = 0; r < s->rows; r++)
    for (int64_t c = 0; c < s->n; c++) {
      double sum = s->bias ? (double)d->bias[c] : 0.0;
      for (int64_t i = 0; i < k; i++)
        sum +=
            d->a[r * (k + s->pad) + i] * d->plain[i * s->n + c] * (double)d->params[2 * (r * s->groups + i / s->group)];
      const float got = y[r * (s->n + s->pad) + c];
      if (!CHECK(test_close(got, (float)sum, 1e-5f), "sum %g, expected %g", (double)got, sum))
        return;
    }
}

static void check_shape(const shape *s, enum fill fill, int split_count) {
  static const int splits[][2] = {{1, 1}, {3, 2}, {1, 3}, {40, 1}};
  static const uint32_t masks[] = {~0u, 0};
  data d = make_data(s, fill);
  float *want = NULL;
  for (size_t i = 0; i < infc_kernel_count; i++) {
    const infc_kernel *kernel = &infc_kernels[i];
    if (kernel->op != INFC_OP_GEMM_GROUPED || !test_supported(kernel))
      continue;
    if (!want) {
      want = run(s, &d, kernel, 1, 1);
      if (fill != SPECIAL && !s->residual && !s->activation)
        check_plain_sums(s, &d, want);
    }
    for (size_t m = 0; m < 2; m++) {
      infc_cpu_allow(masks[m]);
      float *whole = NULL;
      for (int j = 0; j < split_count; j++) {
        float *got = run(s, &d, kernel, splits[j][0], splits[j][1]);
        // Sums of extremes are integers that f32 holds: any that saturated would show.
        compare(s, got, whole ? whole : want, whole || (fill == EXTREMES && !s->activation) ? 0 : 3e-6f, kernel->name);
        if (whole)
          test_free(got);
        else
          whole = got;
      }
      test_free(whole);
    }
    infc_cpu_allow(~0u);
  }
  test_free(want);
  free_data(&d);
}

static void test_shapes(void) {
  static const uint32_t functions[] = {INFC_UNARY_IDENTITY, INFC_UNARY_RELU, INFC_UNARY_GELU_ERF, INFC_UNARY_SILU,
                                       INFC_UNARY_IDENTITY};
  static const struct {
    uint32_t bits;
    bool sparse;
    int kinds; // of zeros
  } formats[] = {{4, false, INFC_GROUPED_ZEROS_COUNT}, {8, false, 2}, {4, true, 2}};
  for (int i = 0; i < 300; i++) {
    const uint32_t residual = i % 2 ? (uint32_t)test_random_int(&rng, 0, 2) : 0;
    const enum fill fill = i % 7 == 3 ? SPECIAL : i % 7 == 5 ? EXTREMES : RANDOM;
    const shape s = {.rows = i < 60 ? 1 + i % 30 : test_random_int(&rng, 1, 45),
                     .groups = test_random_int(&rng, 1, i % 10 ? 4 : 20),
                     .n = test_random_int(&rng, 1, 130),
                     .group = 32u << test_random_int(&rng, 0, 2),
                     .bits = formats[i % 3].bits,
                     .sparse = formats[i % 3].sparse,
                     .wide = test_random(&rng) & 1,
                     .zeros = (uint32_t)test_random_int(&rng, 0, formats[i % 3].kinds - 1),
                     .bias = fill != EXTREMES && test_random(&rng) & 1,
                     .residual = fill == EXTREMES ? 0 : residual,
                     .activation = functions[i % 5],
                     .pad = i % 4 ? 0 : (int)test_random_int(&rng, 1, 9),
                     .in_place = residual && fill != EXTREMES && test_random(&rng) & 1};
    check_shape(&s, fill, 4);
  }
  // A larger than a block of rows.
  check_shape(&(shape){.rows = 90, .groups = 40, .n = 70, .group = 128, .bits = 4, .zeros = 1}, RANDOM, 2);
  check_shape(&(shape){.rows = 90, .groups = 40, .n = 70, .group = 128, .bits = 4, .zeros = 2}, RANDOM, 2);
}

// Each change makes a valid step invalid.
static void test_validator(void) {
  const shape s = {.rows = 8, .groups = 3, .n = 70, .group = 64, .bits = 4, .zeros = 1, .bias = true, .residual = 1};
  data d = make_data(&s, RANDOM);
  float *y = test_alloc(span(s.rows, s.n, s.n) * sizeof(float));
  test_step good;
  make_step(&good, &s, &d, y);
  CHECK(test_validate(&good, INFC_OP_GEMM_GROUPED, 0), "valid");
#define BAD(change) TEST_INVALID(good, INFC_OP_GEMM_GROUPED, 0, change)
  BAD(t.step.cols = 4);
  BAD(t.step.rows = 9);
  BAD(t.step.rows_symbol = 0);
  BAD(t.step.input_count = 4);
  BAD(t.step.output_count = 2);
  BAD(t.step.word_count = 9);
  BAD(t.words[INFC_W_GEMM_GROUPED_ACTIVATION] = INFC_UNARY_CLIP);
  BAD(t.words[INFC_W_GEMM_GROUPED_HAS_BIAS] = 0);
  BAD(t.words[INFC_W_GEMM_GROUPED_HAS_BIAS] = 0xFFFFFFFF);
  BAD(t.words[INFC_W_GEMM_GROUPED_HAS_RESIDUAL] = 3);
  BAD(t.words[INFC_W_GEMM_GROUPED_BITS] = 8);
  BAD(t.words[INFC_W_GEMM_GROUPED_BITS] = 5);
  BAD(t.words[INFC_W_GEMM_GROUPED_BITS] = 0);
  BAD(t.words[INFC_W_GEMM_GROUPED_WIDE] = 1);
  BAD(t.words[INFC_W_GEMM_GROUPED_WIDE] = 2);
  BAD(t.words[INFC_W_GEMM_GROUPED_ZEROS] = INFC_GROUPED_ZEROS_NONE);
  BAD(t.words[INFC_W_GEMM_GROUPED_ZEROS] = INFC_GROUPED_ZEROS_COUNT);
  for (uint32_t i = 0; i < 2; i++) // sixteenths of what has none, the panels as long as they would be
    BAD((t.words[INFC_W_GEMM_GROUPED_ZEROS] = INFC_GROUPED_ZEROS_SIXTEENTHS,
         t.words[INFC_W_GEMM_GROUPED_BITS] = i ? 8 : 4, t.words[INFC_W_GEMM_GROUPED_SPARSE] = !i,
         t.operands[2].dims[1] = 3 * (3 * INFC_PANEL + infc_grouped_lines(64, i ? 8 : 4, !i) * INFC_GROUPED_LINE)));
  BAD(t.words[INFC_W_GEMM_GROUPED_SPARSE] = 1);
  BAD(t.words[INFC_W_GEMM_GROUPED_SPARSE] = 2);
  BAD((t.words[INFC_W_GEMM_GROUPED_SPARSE] = 1, t.words[INFC_W_GEMM_GROUPED_BITS] = 8));
  BAD(t.words[INFC_W_GEMM_GROUPED_GROUP] = 0);
  BAD(t.words[INFC_W_GEMM_GROUPED_GROUP] = 16);
  BAD(t.words[INFC_W_GEMM_GROUPED_GROUP] = 32);
  BAD(t.words[INFC_W_GEMM_GROUPED_GROUP] = 128);
  BAD(t.words[INFC_W_GEMM_GROUPED_K] = 0);
  BAD(t.words[INFC_W_GEMM_GROUPED_K] = 128);
  BAD(t.words[INFC_W_GEMM_GROUPED_K] = 0xFFFFFFC0);
  BAD(t.words[INFC_W_GEMM_GROUPED_N] = 0);
  BAD(t.words[INFC_W_GEMM_GROUPED_N] = 71);
  BAD(t.words[INFC_W_GEMM_GROUPED_N] = 0xFFFFFFFF);
  BAD(t.operands[0].dtype = INFC_DTYPE_U8);
  BAD(t.operands[0].row_stride = 191);
  BAD(t.operands[0].dims[1] = 128);
  BAD(t.operands[0].rows_symbol = 0);
  BAD(t.operands[1].dims[1] = 2);
  BAD(t.operands[1].dims[0] = 7);
  BAD(t.operands[1].dtype = INFC_DTYPE_I32);
  BAD(t.operands[2].dtype = INFC_DTYPE_I8);
  BAD(t.operands[2].dims[1] -= 128);
  BAD(t.operands[2].dims[0] = 2);
  BAD(t.operands[2].row_stride += 128);
  BAD(t.operands[2].rows_symbol = 0);
  BAD(t.operands[3].dims[0] = 69);
  BAD(t.operands[4].dims[1] = 71);
  BAD(t.operands[5].row_stride = 69);
  BAD(t.operands[5].dtype = INFC_DTYPE_U8);
  BAD(t.operands[5].rows_symbol = 1);
  free_data(&d);
  test_free(y);
}

int main(void) {
  test_shapes();
  test_validator();
  return test_result();
}
