#include "cast.h"

#include <math.h>

// From real to integer: towards zero, held to the type's range (of types of 4 and 2 bits: to 32 bits, then the low
// bits), NaN gives 0. From integer to a narrower integer: the low bits, as ONNX has it. To bool: whether it is not 0. A
// bool of any non-zero byte reads as 1.
enum { BLOCK = 256 };

static void truncate_reals(const double *from, int64_t n, uint8_t dtype, int64_t *to) {
  int64_t least, most;
  infc_integer_limits(infc_element_size(dtype) == 1 && dtype > INFC_DTYPE_BOOL ? INFC_DTYPE_I32 : dtype, &least, &most);
  double end = (double)most + 1; // exact, or the power of two next to it
  for (int64_t i = 0; i < n; i++) {
    double x = from[i];
    if (dtype == INFC_DTYPE_BOOL)
      to[i] = x != 0;
    else if (dtype == INFC_DTYPE_U64)
      to[i] = (int64_t)(x >= 0x1p64 ? UINT64_MAX : x > 0 ? (uint64_t)x : 0);
    else
      to[i] = x >= end ? most : x < (double)least ? least : x == x ? (int64_t)x : 0;
  }
}

// A double that rounds to any shorter type as the integer does: what its 53 bits cannot hold is kept as one bit.
static double sticky(uint64_t magnitude) {
  return magnitude >> 53 ? (double)((magnitude & ~(uint64_t)0x7FF) | ((magnitude & 0x7FF) ? 0x800 : 0))
                         : (double)magnitude;
}

static void reals_of_integers(const int64_t *from, int64_t n, bool is_unsigned, uint8_t dtype, void *to) {
  double reals[BLOCK];
  for (int64_t i = 0; i < n; i++) {
    bool negative = !is_unsigned && from[i] < 0;
    uint64_t magnitude = negative ? 0 - (uint64_t)from[i] : (uint64_t)from[i];
    double real = dtype == INFC_DTYPE_F64 ? (double)magnitude : sticky(magnitude);
    reals[i] = negative ? -real : real;
  }
  infc_store_reals(dtype, reals, n, to, true, INFC_ROUND_UP);
}

// At most a block of elements.
static void cast(const void *x, uint8_t from, void *y, uint8_t to, int64_t n, bool saturate, uint32_t round) {
  double reals[BLOCK];
  int64_t integers[BLOCK];
  bool to_real = infc_number_of(to) == INFC_NUMBER_REAL;
  if (infc_number_of(from) == INFC_NUMBER_REAL) {
    infc_load_reals(from, x, n, reals);
    if (to_real) {
      infc_store_reals(to, reals, n, y, saturate, round);
      return;
    }
    truncate_reals(reals, n, to, integers);
  } else {
    infc_load_integers(from, x, n, integers);
    if (to_real) {
      reals_of_integers(integers, n, from == INFC_DTYPE_U64, to, y);
      return;
    }
  }
  infc_store_integers(to, integers, n, y);
}

infc_fault infc_cast_run(const infc_task *task, const infc_range *range, infc_cast_loop loop) {
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  if (range->row0 >= range->row1)
    return INFC_FAULT_NONE;
  // Rows of the step are not the operand's where all is constant: [2, 8] may be 16 rows.
  int64_t inner = infc_operand_inner(y, 0) / (int64_t)task->step->rows, first = range->row0 * inner;
  int64_t n = (range->row1 - range->row0) * inner;
  size_t size_x = infc_element_size(x->dtype), size_y = infc_element_size(y->dtype);
  const char *from = (const char *)task->ptr[0] + (size_t)first * size_x;
  char *to = (char *)task->ptr[1] + (size_t)first * size_y;
  if (loop)
    loop(from, to, n);
  else
    for (int64_t done = 0; done < n; done += BLOCK)
      cast(from + (size_t)done * size_x, x->dtype, to + (size_t)done * size_y, y->dtype,
           n - done < BLOCK ? n - done : BLOCK, task->words[INFC_W_CAST_SATURATE], task->words[INFC_W_CAST_ROUND]);
  return INFC_FAULT_NONE;
}

infc_fault infc_cast_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_cast_run(task, range, NULL);
}

bool infc_cast_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 1, INFC_WORDS_CAST) || !infc_step_has_no_cols(step) || step->rows == 0 ||
      task->words[INFC_W_CAST_SATURATE] > 1 || task->words[INFC_W_CAST_ROUND] >= INFC_ROUND_COUNT)
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  if (infc_number_of(x->dtype) == INFC_NUMBER_NONE || infc_number_of(y->dtype) == INFC_NUMBER_NONE)
    return false;
  int64_t elements = infc_operand_inner(y, 0);
  return elements >= 0 && elements % step->rows == 0 && infc_operand_holds_rows(x, step, elements / step->rows) &&
         infc_operand_holds_rows(y, step, elements / step->rows);
}

size_t infc_cast_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
