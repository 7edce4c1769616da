// copy: any nest, type and direction against an element-by-element copy; nests that leave an operand are refused.
#include "nest_step.h"

static const uint8_t dtypes[] = {INFC_DTYPE_U8, INFC_DTYPE_F16, INFC_DTYPE_F32, INFC_DTYPE_I64};
static const size_t sizes[] = {1, 2, 4, 8};

static void copy_once(test_rng *rng, const test_nest *nest, const test_layout *x, const test_layout *y, int type) {
  size_t size = sizes[type], x_bytes = (size_t)(x->extent + 3) * size, y_bytes = (size_t)(y->extent + 2) * size;
  uint8_t *from = test_alloc(x_bytes), *to = test_alloc(y_bytes), *want = test_alloc(y_bytes);
  for (size_t i = 0; i < x_bytes; i++)
    from[i] = (uint8_t)test_random(rng);
  memset(want, 0xEE, y_bytes);
  for (int64_t i = 0; i < nest->elements; i++)
    memcpy(want + (size_t)(test_layout_at(nest, y, i) + 2) * size,
           from + (size_t)(test_layout_at(nest, x, i) + 3) * size, size);
  test_step s;
  test_step_init(&s, nest->dims[0], 1);
  test_operand(&s, false, from, dtypes[type], x->extent + 3, 0, 1);
  test_operand(&s, true, to, dtypes[type], y->extent + 2, 0, 1);
  test_nest_words(&s, nest->dims);
  test_layout_words(&s, x);
  test_layout_words(&s, y);
  test_word(&s, (uint32_t)x->offset + 3);
  test_word(&s, (uint32_t)y->offset + 2);
  test_expected expected = {to, want, y_bytes};
  test_each_kernel(&s, INFC_OP_COPY, NULL, INFC_FAULT_NONE, to, y_bytes, test_check_bytes, &expected);
  test_free(from);
  test_free(to);
  test_free(want);
}

static void test_random_nests(void) {
  test_rng rng = {1};
  for (int t = 0; t < 400; t++) {
    test_nest nest = test_nest_random(&rng, 5);
    test_layout x = test_layout_random(&rng, &nest, t % 2, t % 3 == 0, true);
    test_layout y = test_layout_random(&rng, &nest, t % 5 == 0, false, true);
    copy_once(&rng, &nest, &x, &y, t % 4);
  }
}

static void test_transpositions(void) {
  test_rng rng = {2};
  static const uint32_t sides[] = {1, 7, 8, 15, 16, 17, 33, 40};
  for (int r = 0; r < 8; r++)
    for (int c = 0; c < 8; c++)
      for (int batch = 1; batch <= 3; batch += 2) {
        uint32_t rows = sides[r], cols = sides[c];
        test_nest nest = {{1, 1, 1, (uint32_t)batch, rows, cols}, (int64_t)batch * rows * cols};
        test_layout x = {.strides = {0, 0, 0, (int32_t)(rows * cols), 1, (int32_t)rows}, .extent = nest.elements};
        test_layout y = {.strides = {0, 0, 0, (int32_t)(rows * cols), (int32_t)cols, 1}, .extent = nest.elements};
        copy_once(&rng, &nest, &x, &y, (r + c) % 4);
        copy_once(&rng, &nest, &x, &y, 2);
        // The same with the rows where ROWS divides.
        test_nest rows_first = {{rows, 1, 1, (uint32_t)batch, 1, cols}, nest.elements};
        test_layout x2 = {.strides = {1, 0, 0, (int32_t)(rows * cols), 0, (int32_t)rows}, .extent = nest.elements};
        test_layout y2 = {.strides = {(int32_t)cols, 0, 0, (int32_t)(rows * cols), 0, 1}, .extent = nest.elements};
        copy_once(&rng, &rows_first, &x2, &y2, 2);
      }
}

// A step over 4 rows of 3 elements that a validator must accept, and changes it must refuse.
static test_step valid(void) {
  static float x[12], y[12];
  test_step s;
  test_step_init(&s, 4, 1);
  test_operand(&s, false, x, INFC_DTYPE_F32, 4, 3, 3);
  test_operand(&s, true, y, INFC_DTYPE_F32, 4, 3, 3);
  test_layout layout = {.strides = {3, 0, 0, 0, 0, 1}};
  test_nest_words(&s, (uint32_t[]){4, 1, 1, 1, 1, 3});
  test_layout_words(&s, &layout);
  test_layout_words(&s, &layout);
  test_word(&s, 0);
  test_word(&s, 0);
  return s;
}

static void refuse(uint32_t word, uint32_t value) {
  test_step s = valid();
  s.task = (infc_task){.operands = s.operands, .words = s.words, .step = &s.step};
  s.words[word] = value;
  CHECK(!test_validate(&s, INFC_OP_COPY, 4), "word %u = %u", word, value);
}

static void test_validator(void) {
  test_step s = valid();
  s.task = (infc_task){.operands = s.operands, .words = s.words, .step = &s.step};
  CHECK(test_validate(&s, INFC_OP_COPY, 4), "valid");
  refuse(INFC_W_COPY_D0, 5);
  refuse(INFC_W_COPY_D1, 0);
  refuse(INFC_W_COPY_D1, 2); // would write each element twice
  refuse(INFC_W_COPY_D1, UINT32_MAX);
  refuse(INFC_W_COPY_SX0, 4);
  refuse(INFC_W_COPY_SX5, (uint32_t)-1);
  refuse(INFC_W_COPY_SX5, INT32_MAX);
  refuse(INFC_W_COPY_SX5, (uint32_t)INT32_MIN);
  refuse(INFC_W_COPY_SY0, 0);
  refuse(INFC_W_COPY_SY0, 2);
  refuse(INFC_W_COPY_OFFSET_X, 1);
  refuse(INFC_W_COPY_OFFSET_Y, UINT32_MAX);
  s.step.rows_symbol = s.operands[1].rows_symbol = 2;
  CHECK(test_validate(&s, INFC_OP_COPY, 4), "a constant input of as many rows as the bound");
  s.operands[0].rows_symbol = 1;
  CHECK(!test_validate(&s, INFC_OP_COPY, 4), "rows of another symbol");
  s.operands[0].rows_symbol = 2;
  CHECK(test_validate(&s, INFC_OP_COPY, 4), "valid");
  s.words[INFC_W_COPY_SX0] = 0;
  CHECK(!test_validate(&s, INFC_OP_COPY, 4), "a row of x that is not the step's");
  s = valid();
  s.task = (infc_task){.operands = s.operands, .words = s.words, .step = &s.step};
  s.operands[1].dtype = INFC_DTYPE_I32;
  CHECK(!test_validate(&s, INFC_OP_COPY, 4), "types differ");
  s.operands[1].dtype = INFC_DTYPE_F32;
  s.step.word_count--;
  CHECK(!test_validate(&s, INFC_OP_COPY, 4), "a word is missing");
}

// A hostile program's operands may overlap: AddressSanitizer knows a memcpy that must not.
static void test_overlap(void) {
  uint8_t *memory = test_alloc(64 + 256);
  for (int i = 0; i < 64 + 256; i++)
    memory[i] = (uint8_t)i;
  test_step s;
  test_step_init(&s, 1, 1);
  test_operand(&s, false, memory, INFC_DTYPE_U8, 256, 0, 1);
  test_operand(&s, true, memory + 64, INFC_DTYPE_U8, 256, 0, 1);
  test_layout layout = {.strides = {0, 0, 0, 0, 0, 1}};
  test_nest_words(&s, (uint32_t[]){1, 1, 1, 1, 1, 256});
  test_layout_words(&s, &layout);
  test_layout_words(&s, &layout);
  test_word(&s, 0);
  test_word(&s, 0);
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_COPY && test_supported(&infc_kernels[k]))
      CHECK(test_run(&s, &infc_kernels[k], 1, 1, NULL) == INFC_FAULT_NONE, "%s", infc_kernels[k].name);
  test_free(memory);
}

int main(void) {
  test_random_nests();
  test_overlap();
  test_transpositions();
  test_validator();
  test_nest_fuzz(INFC_OP_COPY, 2, (uint8_t[]){INFC_DTYPE_F32, INFC_DTYPE_F32}, 2, 20000);
  return test_result();
}
