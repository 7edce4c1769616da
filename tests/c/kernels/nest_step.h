// Random loop nests and steps over them, for `binary`, `select` and `copy`.
#ifndef INFC_TEST_NEST_STEP_H
#define INFC_TEST_NEST_STEP_H

#include "step.h"

typedef struct test_nest {
  uint32_t dims[INFC_NEST];
  int64_t elements;
} test_nest;

// Up to `most` a dimension, most of them 1.
static inline test_nest test_nest_random(test_rng *rng, int64_t most) {
  test_nest nest = {.elements = 1};
  for (int i = 0; i < INFC_NEST; i++) {
    nest.dims[i] = (uint32_t)(test_random(rng) % 2 ? test_random_int(rng, 1, most) : 1);
    nest.elements *= nest.dims[i];
  }
  return nest;
}

// An operand's strides: dense in a random order of the dimensions if `shuffle`, some repeated if `repeat`, some
// backwards if `flip`.
typedef struct test_layout {
  int32_t strides[INFC_NEST];
  int64_t offset, extent; // element of the first iteration; elements in all
} test_layout;

static inline test_layout test_layout_random(test_rng *rng, const test_nest *nest, bool shuffle, bool repeat,
                                             bool flip) {
  test_layout layout = {.extent = 1};
  int order[INFC_NEST] = {0, 1, 2, 3, 4, 5};
  for (int i = INFC_NEST - 1; shuffle && i > 0; i--) {
    int j = (int)test_random_int(rng, 0, i), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
  for (int k = INFC_NEST - 1; k >= 0; k--) {
    int i = order[k];
    if (repeat && test_random(rng) % 3 == 0)
      continue;
    layout.strides[i] = (int32_t)layout.extent;
    if (flip && test_random(rng) % 4 == 0) {
      layout.offset += (int64_t)(nest->dims[i] - 1) * layout.extent;
      layout.strides[i] = -layout.strides[i];
    }
    layout.extent *= nest->dims[i];
  }
  return layout;
}

static inline void test_nest_words(test_step *s, const uint32_t *dims) {
  for (int i = 0; i < INFC_NEST; i++)
    test_word(s, dims[i]);
}

static inline void test_layout_words(test_step *s, const test_layout *layout) {
  for (int i = 0; i < INFC_NEST; i++)
    test_word(s, (uint32_t)layout->strides[i]);
}

// Element of an operand at iteration `linear` of the nest.
static inline int64_t test_layout_at(const test_nest *nest, const test_layout *layout, int64_t linear) {
  int64_t at = layout->offset;
  for (int i = INFC_NEST - 1; i >= 0; i--) {
    at += linear % nest->dims[i] * layout->strides[i];
    linear /= nest->dims[i];
  }
  return at;
}

// Runs every kernel of `op` that this CPU has, whole and cut into row ranges; after each, `check` looks at the output.
static inline void test_each_kernel(test_step *s, uint16_t op, int64_t *symbols, infc_fault fault, void *y,
                                    size_t bytes, void (*check)(const char *kernel, const void *context),
                                    const void *context) {
  static const int parts[] = {1, 2, 3, 7};
  if (!CHECK(test_validate(s, op, symbols ? INFC_MAX_SYMBOLS : 0), "%s", infc_operators[op].name))
    return;
  for (size_t k = 0; k < infc_kernel_count; k++) {
    if (infc_kernels[k].op != op || !test_supported(&infc_kernels[k]))
      continue;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
      memset(y, 0xEE, bytes);
      CHECK(test_run(s, &infc_kernels[k], parts[p], 1, symbols) == fault, "%s", infc_kernels[k].name);
      check(infc_kernels[k].name, context);
    }
  }
}

// Expected bytes.
typedef struct test_expected {
  const void *got, *want;
  size_t bytes;
} test_expected;

static inline void test_check_bytes(const char *kernel, const void *context) {
  const test_expected *e = context;
  CHECK(!memcmp(e->got, e->want, e->bytes), "%s", kernel);
}

// The validator must refuse what it should; what it accepts must stay within the operands: `operands` buffers are
// exactly as large as their operands say. Words are random, near what is valid.
static inline void test_nest_fuzz(uint16_t op, int groups, const uint8_t *dtypes, int operands, int tries) {
  test_rng rng = {99};
  int accepted = 0;
  for (int t = 0; t < tries; t++) {
    test_step s;
    uint32_t dims[INFC_NEST];
    int64_t product = 1;
    for (int i = 0; i < INFC_NEST; i++)
      product *= dims[i] = (uint32_t)(test_random(&rng) % 2 ? 1 : test_random_int(&rng, test_random(&rng) % 16 > 0, 4));
    test_step_init(&s, dims[0], 1);
    bool follows = test_random(&rng) % 4 == 0;
    s.step.rows_symbol = follows ? 3 : -1;
    if (op == INFC_OP_BINARY)
      test_word(&s, INFC_BINARY_ADD);
    test_nest_words(&s, dims);
    for (int g = 0; g < groups; g++) {
      int64_t dense = 1;
      for (int i = INFC_NEST - 1; i >= 0; i--) {
        s.words[s.step.word_count + (uint32_t)i] =
            (uint32_t)(test_random(&rng) % 12 ? dense : test_random_int(&rng, -3, 9));
        dense *= dims[i];
      }
      s.step.word_count += INFC_NEST;
    }
    if (op == INFC_OP_COPY) {
      test_word(&s, (uint32_t)test_random_int(&rng, 0, 3));
      test_word(&s, (uint32_t)test_random_int(&rng, 0, 3));
    }
    for (int k = 0; k < operands; k++) {
      bool output = k == operands - 1;
      int64_t slack = output && op != INFC_OP_COPY ? 0 : test_random_int(&rng, -1, 4);
      int64_t elements = product + slack > 0 ? product + slack : 1;
      size_t size = dtypes[k] == INFC_DTYPE_BOOL ? 1 : 4;
      infc_operand *o;
      if (follows) {
        int64_t row = dims[0] ? product / dims[0] : 1;
        row += output && op != INFC_OP_COPY ? 0 : test_random_int(&rng, 0, 1);
        row = row > 0 ? row : 1;
        o = test_operand(&s, output, NULL, dtypes[k], dims[0] ? dims[0] : 1, row, row);
        o->rows_symbol = output || test_random(&rng) % 2 ? 3 : -1;
        elements = (int64_t)o->dims[0] * row;
      } else {
        o = test_operand(&s, output, NULL, dtypes[k], elements, 0, 1);
      }
      s.task.ptr[k] = test_alloc((size_t)elements * size);
      memset(s.task.ptr[k], 1, (size_t)elements * size);
    }
    int64_t symbols[INFC_MAX_SYMBOLS] = {0};
    symbols[3] = dims[0] ? test_random_int(&rng, 0, dims[0]) : 0;
    if (test_validate(&s, op, INFC_MAX_SYMBOLS)) {
      accepted++;
      for (size_t k = 0; k < infc_kernel_count; k++)
        if (infc_kernels[k].op == op && test_supported(&infc_kernels[k]))
          test_run(&s, &infc_kernels[k], 2, 1, symbols);
    }
    for (int k = 0; k < operands; k++)
      test_free(s.task.ptr[k]);
  }
  CHECK(accepted > tries / 100 && accepted < tries, "%d of %d accepted", accepted, tries);
}

#endif // INFC_TEST_NEST_STEP_H
