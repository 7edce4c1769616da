#include "binary.h"

#include "../nest.h"
#include "loops.h"

#include <string.h>

static const infc_binary_f32 f32_loops = {{LOOPS(f32)}, f32_sqrt, f32_rsqrt};
static const infc_binary_loop f64_loops[INFC_BINARY_COUNT] = {LOOPS(f64)};
static const infc_binary_loop i32_loops[INFC_BINARY_COUNT] = {LOOPS(i32), BIT_LOOPS(i32)};
static const infc_binary_loop i64_loops[INFC_BINARY_COUNT] = {LOOPS(i64), BIT_LOOPS(i64)};
static const infc_binary_loop u64_loops[INFC_BINARY_COUNT] = {LOOPS(u64), BIT_LOOPS(u64)};
static const infc_binary_loop bool_loops[INFC_BINARY_COUNT] = {[INFC_BINARY_EQUAL] = bool_equal,
                                                               [INFC_BINARY_AND] = bool_and,
                                                               [INFC_BINARY_OR] = bool_or,
                                                               [INFC_BINARY_XOR] = bool_xor};

static bool gives_bool(uint32_t function) {
  return function >= INFC_BINARY_EQUAL && function <= INFC_BINARY_XOR;
}

// NULL where the function has no meaning for the type.
static infc_binary_loop loop_of(uint8_t dtype, uint32_t function) {
  switch (dtype) {
  case INFC_DTYPE_F32:
    return f32_loops.function[function];
  case INFC_DTYPE_F64:
    return f64_loops[function];
  case INFC_DTYPE_I32:
    return i32_loops[function];
  case INFC_DTYPE_I64:
    return i64_loops[function];
  case INFC_DTYPE_U64:
    return u64_loops[function];
  case INFC_DTYPE_BOOL:
    return bool_loops[function];
  default:
    return NULL;
  }
}

// ---- The nest: loops see consecutive elements, so others are first collected, a block at a time ----

enum { BLOCK = 256, ELEMENT_MAX = 8 };

#define COLLECT(T, step)                                                                                               \
  for (int64_t i = 0; i < n; i++)                                                                                      \
    memcpy((char *)block + i * (int64_t)sizeof(T), (const char *)from + i * (step) * (int64_t)sizeof(T), sizeof(T));
#define COLLECTOR(name, T)                                                                                             \
  static void name(const void *restrict from, int64_t stride, int64_t n, void *restrict block) {                       \
    if (stride == 0)                                                                                                   \
      COLLECT(T, 0)                                                                                                    \
    else                                                                                                               \
      COLLECT(T, stride)                                                                                               \
  }
COLLECTOR(collect1, uint8_t)
COLLECTOR(collect4, uint32_t)
COLLECTOR(collect8, uint64_t)

static void run_strided(infc_binary_loop loop, const char *a, int64_t stride_a, const char *b, int64_t stride_b,
                        char *y, size_t size, size_t result_size, int64_t n) {
  void (*collect)(const void *restrict, int64_t, int64_t, void *restrict) = size == 4   ? collect4
                                                                            : size == 8 ? collect8
                                                                                        : collect1;
  _Alignas(64) char block_a[BLOCK * ELEMENT_MAX], block_b[BLOCK * ELEMENT_MAX];
  for (int64_t done = 0; done < n; done += BLOCK) {
    int64_t count = n - done < BLOCK ? n - done : BLOCK;
    const char *from_a = a + done * stride_a * (int64_t)size, *from_b = b + done * stride_b * (int64_t)size;
    if (stride_a != 1 && (stride_a != 0 || done == 0)) // a repeated element fills its block once
      collect(from_a, stride_a, count, block_a);
    if (stride_b != 1 && (stride_b != 0 || done == 0))
      collect(from_b, stride_b, count, block_b);
    loop(stride_a == 1 ? from_a : block_a, stride_b == 1 ? from_b : block_b, y + done * (int64_t)result_size, count);
  }
}

static bool is_repeated(const infc_nest *nest, int operand) {
  for (int i = 0; i < nest->levels; i++)
    if (nest->strides[operand][i] != 0 && nest->dims[i] != 1)
      return false;
  return true;
}

infc_fault infc_binary_run(const infc_task *task, const infc_range *range, const infc_binary_f32 *f32) {
  const uint32_t *words = task->words;
  uint32_t function = words[INFC_W_BINARY_FUNCTION];
  uint8_t dtype = task->operands[0].dtype;
  infc_nest nest;
  if (!infc_nest_init(&nest, words + INFC_W_BINARY_D0, 2, true, range))
    return INFC_FAULT_NONE;
  infc_binary_loop loop =
      dtype == INFC_DTYPE_F32 && f32->function[function] ? f32->function[function] : loop_of(dtype, function);
  const char *a = task->ptr[0], *b = task->ptr[1];
  char *y = task->ptr[2];
  infc_binary_loop of_a_alone = NULL;
  if (function == INFC_BINARY_POW && dtype == INFC_DTYPE_F32 && is_repeated(&nest, 1)) {
    float exponent = ((const float *)b)[nest.start[1]];
    of_a_alone = exponent == 2       ? f32->function[INFC_BINARY_MUL]
                 : exponent == 0.5f  ? f32->sqrt
                 : exponent == -0.5f ? f32->rsqrt
                                     : NULL;
  }
  if (of_a_alone) {
    loop = of_a_alone;
    b = a;
    nest.start[1] = nest.start[0];
    memcpy(nest.strides[1], nest.strides[0], sizeof nest.strides[0]);
  }
  int64_t size = (int64_t)infc_element_size(dtype), result_size = gives_bool(function) ? 1 : size;
  int64_t stride_a = nest.strides[0][0], stride_b = nest.strides[1][0], n = nest.dims[0];
  int64_t index[INFC_NEST] = {0}, at[3] = {nest.start[0], nest.start[1], nest.start[2]};
  do {
    const char *from_a = a + at[0] * size, *from_b = b + at[1] * size;
    char *to = y + at[2] * result_size;
    if (stride_a == 1 && stride_b == 1)
      loop(from_a, from_b, to, n);
    else
      run_strided(loop, from_a, stride_a, from_b, stride_b, to, (size_t)size, (size_t)result_size, n);
  } while (infc_nest_next(&nest, 3, 1, index, at));
  return INFC_FAULT_NONE;
}

infc_fault infc_binary_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_binary_run(task, range, &f32_loops);
}

bool infc_binary_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 2, 1, INFC_WORDS_BINARY))
    return false;
  const infc_operand *a = &task->operands[0], *b = &task->operands[1], *y = &task->operands[2];
  uint32_t function = task->words[INFC_W_BINARY_FUNCTION];
  if (function >= INFC_BINARY_COUNT || !loop_of(a->dtype, function) || b->dtype != a->dtype ||
      y->dtype != (gives_bool(function) ? INFC_DTYPE_BOOL : a->dtype))
    return false;
  const uint32_t *dims = task->words + INFC_W_BINARY_D0;
  return infc_nest_fits(step, dims) && infc_nest_is_dense(y, step, dims) &&
         infc_nest_operand_fits(a, step, dims, task->words + INFC_W_BINARY_SA0, 0) &&
         infc_nest_operand_fits(b, step, dims, task->words + INFC_W_BINARY_SB0, 0);
}

size_t infc_binary_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
