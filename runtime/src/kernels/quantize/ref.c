#include "../cast/convert.h"
#include "loops.h"

#include <string.h>

enum { BLOCK = INFC_QUANTIZE_BLOCK };

// Scale and zero of some neighbouring elements, as numbers.
typedef struct params {
  float scale[BLOCK];
  int32_t zero[BLOCK];
  double real_zero[BLOCK];
} params;

// The task by name: `q` is the operand of the quantised type.
typedef struct view {
  const infc_operand *q;
  const float *scale;
  const char *zero; // NULL: 0
  int64_t axis, inner, block, stride_row, stride_block, stride_inner;
  bool is_real;
} view;

_Static_assert((int)INFC_W_QUANTIZE_STRIDE_INNER == (int)INFC_W_DEQUANTIZE_STRIDE_INNER,
               "both operators have the same words");

static view view_of(const infc_task *task, int quantised) {
  const uint32_t *w = task->words;
  const infc_operand *q = &task->operands[quantised];
  return (view){.q = q,
                .scale = task->ptr[1],
                .zero = w[INFC_W_QUANTIZE_HAS_ZERO] ? task->ptr[2] : NULL,
                .axis = w[INFC_W_QUANTIZE_AXIS],
                .inner = w[INFC_W_QUANTIZE_INNER],
                .block = w[INFC_W_QUANTIZE_BLOCK],
                .stride_row = w[INFC_W_QUANTIZE_STRIDE_ROW],
                .stride_block = w[INFC_W_QUANTIZE_STRIDE_BLOCK],
                .stride_inner = w[INFC_W_QUANTIZE_STRIDE_INNER],
                .is_real = infc_number_of(q->dtype) == INFC_NUMBER_REAL};
}

// Of n elements from parameter `at` on, or of one.
static void load_params(const view *v, int64_t at, int64_t n, params *p) {
  memmove(p->scale, v->scale + at, (size_t)n * sizeof(float));
  const void *zero = v->zero ? v->zero + (size_t)at * infc_element_size(v->q->dtype) : NULL;
  if (!zero) {
    memset(p->zero, 0, (size_t)n * sizeof *p->zero);
    memset(p->real_zero, 0, (size_t)n * sizeof *p->real_zero);
  } else if (v->is_real) {
    infc_load_reals(v->q->dtype, zero, n, p->real_zero);
  } else {
    int64_t wide[BLOCK];
    infc_load_integers(v->q->dtype, zero, n, wide);
    for (int64_t i = 0; i < n; i++)
      p->zero[i] = (int32_t)wide[i];
  }
}

// ---- Elements

static void quantize(const infc_quantize_loops *fast, uint8_t dtype, const float *x, const params *p, bool each,
                     void *y, int64_t n, bool saturate) {
  if (dtype == INFC_DTYPE_U8) {
    fast->to_u8(x, p->scale, p->zero, each, y, n);
  } else if (dtype == INFC_DTYPE_I8) {
    fast->to_i8(x, p->scale, p->zero, each, y, n);
  } else if (infc_number_of(dtype) == INFC_NUMBER_REAL) {
    double reals[BLOCK];
    for (int64_t i = 0; i < n; i++)
      reals[i] = (double)(x[i] / p->scale[each ? i : 0]) + p->real_zero[each ? i : 0];
    infc_store_reals(dtype, reals, n, y, saturate, INFC_ROUND_NEAREST);
  } else {
    int64_t integers[BLOCK], least, most;
    infc_integer_limits(dtype, &least, &most);
    for (int64_t i = 0; i < n; i++) {
      int64_t zero = p->zero[each ? i : 0];
      float v = rintf(x[i] / p->scale[each ? i : 0]), low = (float)(least - zero), high = (float)(most - zero);
      v = v > low ? v : low;
      v = v < high ? v : high;
      integers[i] = (int64_t)v + zero;
    }
    infc_store_integers(dtype, integers, n, y);
  }
}

static void dequantize(const infc_quantize_loops *fast, uint8_t dtype, const void *x, const params *p, bool each,
                       float *y, int64_t n) {
  if (dtype == INFC_DTYPE_U8) {
    fast->from_u8(x, p->scale, p->zero, each, y, n);
  } else if (dtype == INFC_DTYPE_I8) {
    fast->from_i8(x, p->scale, p->zero, each, y, n);
  } else if (infc_number_of(dtype) == INFC_NUMBER_REAL) {
    double reals[BLOCK];
    infc_load_reals(dtype, x, n, reals);
    for (int64_t i = 0; i < n; i++)
      y[i] = (float)(reals[i] - p->real_zero[each ? i : 0]) * p->scale[each ? i : 0];
  } else {
    int64_t integers[BLOCK];
    infc_load_integers(dtype, x, n, integers);
    for (int64_t i = 0; i < n; i++)
      y[i] = (float)(integers[i] - p->zero[each ? i : 0]) * p->scale[each ? i : 0];
  }
}

// ---- The walk over rows, blocks of the axis and elements

typedef void (*visit_fn)(const infc_task *task, const infc_quantize_loops *fast, const params *p, bool each, int64_t at,
                         int64_t n);

// `run` neighbouring elements from `at` on, whose first parameter is `param`.
static void walk_run(const infc_task *task, const infc_quantize_loops *fast, const view *v, visit_fn visit, int64_t at,
                     int64_t param, int64_t run, params *p) {
  bool each = v->stride_inner;
  for (int64_t done = 0; done < run; done += BLOCK) {
    int64_t n = run - done < BLOCK ? run - done : BLOCK;
    if (each || done == 0)
      load_params(v, param + (each ? done : 0), each ? n : 1, p);
    visit(task, fast, p, each, at + done, n);
  }
}

static void walk(const infc_task *task, const infc_range *range, const infc_quantize_loops *fast, const view *v,
                 visit_fn visit) {
  params p;
  for (int64_t row = range->row0; row < range->row1; row++)
    for (int64_t a = 0; a < v->axis;) {
      // With one parameter a block, the block's elements are one run.
      int64_t left = v->axis - a, count = v->stride_inner ? 1 : v->block - a % v->block;
      count = count < left ? count : left;
      walk_run(task, fast, v, visit, (row * v->axis + a) * v->inner,
               row * v->stride_row + a / v->block * v->stride_block, count * v->inner, &p);
      a += count;
    }
}

static void quantize_at(const infc_task *task, const infc_quantize_loops *fast, const params *p, bool each, int64_t at,
                        int64_t n) {
  int y = task->step->input_count;
  uint8_t dtype = task->operands[y].dtype;
  float x[BLOCK]; // the operands may overlap
  memcpy(x, (const float *)task->ptr[0] + at, (size_t)n * sizeof *x);
  quantize(fast, dtype, x, p, each, (char *)task->ptr[y] + (size_t)at * infc_element_size(dtype), n,
           task->words[INFC_W_QUANTIZE_SATURATE]);
}

static void dequantize_at(const infc_task *task, const infc_quantize_loops *fast, const params *p, bool each,
                          int64_t at, int64_t n) {
  uint8_t dtype = task->operands[0].dtype;
  size_t size = infc_element_size(dtype);
  _Alignas(8) char x[BLOCK * sizeof(int32_t)];
  memcpy(x, (const char *)task->ptr[0] + (size_t)at * size, (size_t)n * size);
  dequantize(fast, dtype, x, p, each, (float *)task->ptr[task->step->input_count] + at, n);
}

infc_fault infc_quantize_run(const infc_task *task, const infc_range *range, const infc_quantize_loops *fast) {
  view v = view_of(task, task->step->input_count);
  walk(task, range, fast, &v, quantize_at);
  return INFC_FAULT_NONE;
}

infc_fault infc_dequantize_run(const infc_task *task, const infc_range *range, const infc_quantize_loops *fast) {
  view v = view_of(task, 0);
  walk(task, range, fast, &v, dequantize_at);
  return INFC_FAULT_NONE;
}

infc_fault infc_quantize__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_quantize_run(task, range, &loops);
}

infc_fault infc_dequantize__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_dequantize_run(task, range, &loops);
}

// ---- Validation

static bool is_quantised(uint8_t dtype) {
  switch (infc_number_of(dtype)) {
  case INFC_NUMBER_REAL:
    return infc_element_size(dtype) == 1 && dtype != INFC_DTYPE_F8E8M0;
  case INFC_NUMBER_INTEGER:
    return infc_element_size(dtype) <= 2 && dtype != INFC_DTYPE_BOOL;
  default:
    return false;
  }
}

// A dense vector that holds parameter `last`.
static bool holds(const infc_operand *operand, uint8_t dtype, int64_t last) {
  return operand->dtype == dtype && infc_operand_dense(operand) && operand->rows_symbol < 0 &&
         last < infc_operand_inner(operand, 0);
}

static bool fits(const infc_task *task, int quantised, uint32_t words) {
  const infc_step *step = task->step;
  if (step->word_count != words)
    return false;
  const uint32_t *w = task->words, has_zero = w[INFC_W_QUANTIZE_HAS_ZERO];
  if (has_zero > 1 || !infc_step_has(step, 2 + has_zero, 1, words) || !infc_step_has_no_cols(step) || step->rows == 0)
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[2 + has_zero];
  view v = view_of(task, quantised);
  int64_t row, last, term;
  if (v.axis == 0 || v.inner == 0 || v.block == 0 || v.stride_inner > 1 ||
      __builtin_mul_overflow(v.axis, v.inner, &row) ||
      __builtin_mul_overflow((int64_t)step->rows - 1, v.stride_row, &last) ||
      __builtin_mul_overflow((v.axis - 1) / v.block, v.stride_block, &term) ||
      __builtin_add_overflow(last, term, &last) || __builtin_add_overflow(last, (v.inner - 1) * v.stride_inner, &last))
    return false;
  return infc_operand_holds_rows(x, step, row) && infc_operand_holds_rows(y, step, row) &&
         holds(&task->operands[1], INFC_DTYPE_F32, last) && (!has_zero || holds(&task->operands[2], v.q->dtype, last));
}

bool infc_quantize_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  int y = task->step->input_count;
  return y >= 2 && y <= 3 && task->step->output_count == 1 && is_quantised(task->operands[y].dtype) &&
         task->operands[0].dtype == INFC_DTYPE_F32 && fits(task, y, INFC_WORDS_QUANTIZE) &&
         task->words[INFC_W_QUANTIZE_SATURATE] <= 1;
}

bool infc_dequantize_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (step->input_count < 2 || step->input_count > 3 || step->output_count != 1)
    return false;
  uint8_t dtype = task->operands[0].dtype;
  return (is_quantised(dtype) || dtype == INFC_DTYPE_I32) &&
         task->operands[step->input_count].dtype == INFC_DTYPE_F32 && fits(task, 0, INFC_WORDS_DEQUANTIZE);
}

size_t infc_quantize_scratch(const infc_task *task) {
  (void)task;
  return 0;
}

size_t infc_dequantize_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
