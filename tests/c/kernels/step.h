// A step made by hand for tests and benchmarks of kernels: operands and words one after the other, then kernels run
// over ranges.
#ifndef INFC_TEST_STEP_H
#define INFC_TEST_STEP_H

#include "kernels/kernel.h"
#include "test.h"

typedef struct test_step {
  infc_operand operands[INFC_MAX_OPERANDS];
  uint32_t words[64];
  infc_step step;
  infc_task task;
} test_step;

static inline void test_step_init(test_step *s, int64_t rows, int64_t cols) {
  memset(s, 0, sizeof *s);
  s->step = (infc_step){.rows = (uint32_t)rows, .cols = (uint32_t)cols, .rows_symbol = -1};
  s->task = (infc_task){.operands = s->operands, .words = s->words, .step = &s->step};
}

// The next operand, inputs first: a matrix, or a vector if cols is 0.
static inline infc_operand *test_operand(test_step *s, bool output, void *data, uint8_t dtype, int64_t rows,
                                         int64_t cols, int64_t stride) {
  const int at = s->step.input_count + s->step.output_count;
  if (output)
    s->step.output_count++;
  else
    s->step.input_count++;
  s->task.ptr[at] = data;
  s->operands[at] = (infc_operand){.space = INFC_SPACE_ARENA,
                                   .dtype = dtype,
                                   .rank = cols ? 2 : 1,
                                   .rows_symbol = -1,
                                   .row_stride = (uint32_t)stride,
                                   .dims = {(uint32_t)rows, cols ? (uint32_t)cols : 1, 1, 1, 1, 1, 1, 1}};
  return &s->operands[at];
}

static inline void test_word(test_step *s, uint32_t word) {
  s->words[s->step.word_count++] = word;
}

static inline uint32_t test_float_word(float value) {
  uint32_t word;
  memcpy(&word, &value, sizeof word);
  return word;
}

static inline bool test_validate(const test_step *s, uint16_t op, uint32_t symbols) {
  return infc_operators[op].validate(&s->task, symbols);
}

// Checks that the change, of `t`, makes a valid step an invalid one.
#define TEST_INVALID(good, op, symbols, change)                                                                        \
  do {                                                                                                                 \
    test_step t = good;                                                                                                \
    t.task.operands = t.operands, t.task.words = t.words, t.task.step = &t.step;                                       \
    change;                                                                                                            \
    CHECK(!test_validate(&t, op, symbols), #change);                                                                   \
  } while (0)

// Runs a kernel over the whole step, cut at the given rows and columns (splits of 1 leave it whole). Scratch is exactly
// as large as the operator asks.
static inline infc_fault test_run(const test_step *s, const infc_kernel *kernel, int row_parts, int col_parts,
                                  int64_t *symbols) {
  const size_t scratch = infc_operators[kernel->op].scratch(&s->task);
  infc_worker worker = {.scratch = test_alloc(scratch + 1), .symbols = symbols, .threads = 1};
  const int64_t rows = s->step.rows_symbol >= 0 ? symbols[s->step.rows_symbol] : s->step.rows;
  infc_fault fault = INFC_FAULT_NONE;
  for (int r = 0; r < row_parts; r++) {
    for (int c = 0; c < col_parts; c++) {
      const infc_range range = {rows * r / row_parts, rows * (r + 1) / row_parts, rows,
                                (int64_t)s->step.cols * c / col_parts, (int64_t)s->step.cols * (c + 1) / col_parts};
      const infc_fault one = kernel->run(&s->task, &range, &worker);
      fault = one ? one : fault;
    }
  }
  test_free(worker.scratch);
  return fault;
}

static inline bool test_supported(const infc_kernel *kernel) {
  if (kernel->isa == INFC_ISA_X86_64_V4)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return kernel->isa == INFC_ISA_SCALAR || (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
}

// Equal up to `tolerance`, NaN and infinities only to themselves.
static inline bool test_close(float got, float want, float tolerance) {
  if (want != want)
    return got != got;
  const float difference = got - want;
  return got == want || (difference <= tolerance && difference >= -tolerance);
}

#endif // INFC_TEST_STEP_H
