#include "../nest.h"

#include <string.h>

// Elements are moved as bytes of a known count, whatever their type; consecutive operands get a loop the compiler can
// see through.
#define SELECT(T, sc, sa, sb)                                                                                          \
  for (int64_t i = 0; i < n; i++) {                                                                                    \
    T from_a, from_b;                                                                                                  \
    memcpy(&from_a, a + i * (sa) * (int64_t)sizeof(T), sizeof(T));                                                     \
    memcpy(&from_b, b + i * (sb) * (int64_t)sizeof(T), sizeof(T));                                                     \
    from_a = c[i * (sc)] ? from_a : from_b;                                                                            \
    memcpy(y + i * (int64_t)sizeof(T), &from_a, sizeof(T));                                                            \
  }

#define SELECT_LOOP(name, T)                                                                                           \
  static void name(const uint8_t *c, int64_t sc, const char *a, int64_t sa, const char *b, int64_t sb, char *y,        \
                   int64_t n) {                                                                                        \
    if (sc == 1 && sa == 1 && sb == 1)                                                                                 \
      SELECT(T, 1, 1, 1)                                                                                               \
    else if (sc == 1 && sa == 1 && sb == 0)                                                                            \
      SELECT(T, 1, 1, 0)                                                                                               \
    else if (sc == 1 && sa == 0 && sb == 1)                                                                            \
      SELECT(T, 1, 0, 1)                                                                                               \
    else                                                                                                               \
      SELECT(T, sc, sa, sb)                                                                                            \
  }

SELECT_LOOP(select1, uint8_t)
SELECT_LOOP(select2, uint16_t)
SELECT_LOOP(select4, uint32_t)
SELECT_LOOP(select8, uint64_t)

infc_fault infc_select_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  infc_nest nest;
  if (!infc_nest_init(&nest, task->words + INFC_W_SELECT_D0, 3, true, range))
    return INFC_FAULT_NONE;
  int64_t size = (int64_t)infc_element_size(task->operands[3].dtype);
  void (*loop)(const uint8_t *, int64_t, const char *, int64_t, const char *, int64_t, char *, int64_t) =
      size == 4   ? select4
      : size == 8 ? select8
      : size == 1 ? select1
                  : select2;
  const uint8_t *c = task->ptr[0];
  const char *a = task->ptr[1], *b = task->ptr[2];
  char *y = task->ptr[3];
  int64_t index[INFC_NEST] = {0}, at[4] = {nest.start[0], nest.start[1], nest.start[2], nest.start[3]};
  do
    loop(c + at[0], nest.strides[0][0], a + at[1] * size, nest.strides[1][0], b + at[2] * size, nest.strides[2][0],
         y + at[3] * size, nest.dims[0]);
  while (infc_nest_next(&nest, 4, 1, index, at));
  return INFC_FAULT_NONE;
}

bool infc_select_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 3, 1, INFC_WORDS_SELECT))
    return false;
  const infc_operand *c = &task->operands[0], *a = &task->operands[1], *b = &task->operands[2], *y = &task->operands[3];
  const uint32_t *dims = task->words + INFC_W_SELECT_D0;
  return c->dtype == INFC_DTYPE_BOOL && a->dtype == y->dtype && b->dtype == y->dtype &&
         infc_element_size(y->dtype) != 0 && infc_nest_fits(step, dims) && infc_nest_is_dense(y, step, dims) &&
         infc_nest_operand_fits(c, step, dims, task->words + INFC_W_SELECT_SC0, 0) &&
         infc_nest_operand_fits(a, step, dims, task->words + INFC_W_SELECT_SA0, 0) &&
         infc_nest_operand_fits(b, step, dims, task->words + INFC_W_SELECT_SB0, 0);
}

size_t infc_select_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
