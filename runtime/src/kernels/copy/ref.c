#include "copy.h"

#include "../nest.h"

#include <string.h>

// Elements are moved as bytes of a known count, whatever their type.
#define MOVE(T, y, x) memcpy((y), (x), sizeof(T))

// A square of x is read while the lines of y that it goes to stay in the first-level cache.
enum { TILE = 16 };
#define TRANSPOSE(name, T)                                                                                             \
  static void name(const char *x, int64_t stride_x, char *y, int64_t stride_y, int64_t rows, int64_t cols) {           \
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)                                                                        \
      for (int64_t c0 = 0; c0 < cols; c0 += TILE)                                                                      \
        for (int64_t c = c0; c < c0 + TILE && c < cols; c++)                                                           \
          for (int64_t r = r0; r < r0 + TILE && r < rows; r++)                                                         \
            MOVE(T, y + (c * stride_y + r) * (int64_t)sizeof(T), x + (r * stride_x + c) * (int64_t)sizeof(T));         \
  }

#define STRIDED(name, T)                                                                                               \
  static void name(const char *x, int64_t stride_x, char *y, int64_t stride_y, int64_t n) {                            \
    if (stride_x == 0 && stride_y == 1) {                                                                              \
      T value;                                                                                                         \
      MOVE(T, &value, x);                                                                                              \
      for (int64_t i = 0; i < n; i++)                                                                                  \
        MOVE(T, y + i * (int64_t)sizeof(T), &value);                                                                   \
      return;                                                                                                          \
    }                                                                                                                  \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      MOVE(T, y + i * stride_y * (int64_t)sizeof(T), x + i * stride_x * (int64_t)sizeof(T));                           \
  }

TRANSPOSE(transpose1, uint8_t)
TRANSPOSE(transpose2, uint16_t)
TRANSPOSE(transpose4, uint32_t)
TRANSPOSE(transpose8, uint64_t)
STRIDED(strided1, uint8_t)
STRIDED(strided2, uint16_t)
STRIDED(strided4, uint32_t)
STRIDED(strided8, uint64_t)

// The outermost level in which operand k steps by one element, or -1.
static int level_of_ones(const infc_nest *nest, int k) {
  for (int i = nest->levels - 1; i >= 0; i--)
    if (nest->strides[k][i] == 1)
      return i;
  return -1;
}

static void swap(int64_t *a, int64_t *b) {
  int64_t t = *a;
  *a = *b;
  *b = t;
}

// Iteration order is free: brings a level to the innermost place asked for.
static void swap_levels(infc_nest *nest, int a, int b) {
  swap(&nest->dims[a], &nest->dims[b]);
  swap(&nest->strides[0][a], &nest->strides[0][b]);
  swap(&nest->strides[1][a], &nest->strides[1][b]);
}

// If x is consecutive along one level and y along another, makes them levels 1 and 0.
static bool find_transposition(infc_nest *nest) {
  int of_x = level_of_ones(nest, 0), of_y = level_of_ones(nest, 1);
  if (of_x < 0 || of_y < 0 || of_x == of_y || nest->strides[0][of_y] == 0)
    return false;
  swap_levels(nest, 0, of_y);
  swap_levels(nest, 1, of_x == 0 ? of_y : of_x);
  return true;
}

infc_fault infc_copy_run(const infc_task *task, const infc_range *range, infc_copy_transpose fast_transpose4) {
  infc_nest nest;
  if (!infc_nest_init(&nest, task->words + INFC_W_COPY_D0, 2, false, range))
    return INFC_FAULT_NONE;
  int64_t size = (int64_t)infc_element_size(task->operands[0].dtype);
  const char *x = (const char *)task->ptr[0] + task->words[INFC_W_COPY_OFFSET_X] * size;
  char *y = (char *)task->ptr[1] + task->words[INFC_W_COPY_OFFSET_Y] * size;
  int64_t index[INFC_NEST] = {0}, at[2] = {nest.start[0], nest.start[1]};
  if (nest.strides[0][0] == 1 && nest.strides[1][0] == 1) {
    do
      memmove(y + at[1] * size, x + at[0] * size, (size_t)(nest.dims[0] * size));
    while (infc_nest_next(&nest, 2, 1, index, at));
  } else if (find_transposition(&nest)) {
    infc_copy_transpose transpose = size == 4   ? fast_transpose4
                                    : size == 8 ? transpose8
                                    : size == 1 ? transpose1
                                                : transpose2;
    do
      transpose(x + at[0] * size, nest.strides[0][0], y + at[1] * size, nest.strides[1][1], nest.dims[0], nest.dims[1]);
    while (infc_nest_next(&nest, 2, 2, index, at));
  } else {
    void (*move)(const char *, int64_t, char *, int64_t, int64_t) = size == 4   ? strided4
                                                                    : size == 8 ? strided8
                                                                    : size == 1 ? strided1
                                                                                : strided2;
    do
      move(x + at[0] * size, nest.strides[0][0], y + at[1] * size, nest.strides[1][0], nest.dims[0]);
    while (infc_nest_next(&nest, 2, 1, index, at));
  }
  return INFC_FAULT_NONE;
}

infc_fault infc_copy_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_copy_run(task, range, transpose4);
}

// True if no two iterations write the same element: taken from the smallest stride up, each steps over all that those
// before span.
static bool writes_once(const uint32_t *dims, const uint32_t *strides) {
  bool used[INFC_NEST] = {false};
  int64_t span = 0; // distance between the first and the last element of the levels taken
  for (int taken = 0; taken < INFC_NEST; taken++) {
    int least = -1;
    int64_t least_stride = 0;
    for (int i = 0; i < INFC_NEST; i++) {
      int64_t stride = (int32_t)strides[i];
      stride = dims[i] == 1 ? 0 : stride < 0 ? -stride : stride;
      if (!used[i] && (least < 0 || stride < least_stride)) {
        least = i;
        least_stride = stride;
      }
    }
    used[least] = true;
    if (dims[least] == 1)
      continue;
    if (least_stride <= span || __builtin_add_overflow(span, ((int64_t)dims[least] - 1) * least_stride, &span))
      return false;
  }
  return true;
}

bool infc_copy_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 1, INFC_WORDS_COPY))
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  const uint32_t *words = task->words, *dims = words + INFC_W_COPY_D0;
  return x->dtype == y->dtype && infc_element_size(x->dtype) != 0 && infc_nest_fits(step, dims) &&
         y->rows_symbol == step->rows_symbol && writes_once(dims, words + INFC_W_COPY_SY0) &&
         infc_nest_operand_fits(x, step, dims, words + INFC_W_COPY_SX0, words[INFC_W_COPY_OFFSET_X]) &&
         infc_nest_operand_fits(y, step, dims, words + INFC_W_COPY_SY0, words[INFC_W_COPY_OFFSET_Y]);
}

size_t infc_copy_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
