#include "../operand.h"

// From float to integer: towards zero, held to the type's range, NaN gives 0. From integer to a narrower integer: the
// low bits, as ONNX has it. To bool: whether it is not 0. A bool of any non-zero byte reads as 1.
typedef void (*cast_loop)(const void *x, void *y, int64_t n);

#define CAST(from, F, to, T, expression)                                                                               \
  static void from##_to_##to(const void *px, void *py, int64_t n) {                                                    \
    const F *xs = px;                                                                                                  \
    T *y = py;                                                                                                         \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      F x = xs[i];                                                                                                     \
      y[i] = (T)(expression);                                                                                          \
    }                                                                                                                  \
  }

// `end` is one more than the largest value, exact in any float.
#define TRUNCATE(T, least, most, end) (x >= (end) ? (most) : x < (least) ? (least) : x == x ? (T)x : 0)

#define CASTS_OF_FLOAT(from, F)                                                                                        \
  CAST(from, F, i32, int32_t, TRUNCATE(int32_t, INT32_MIN, INT32_MAX, 0x1p31f))                                        \
  CAST(from, F, i64, int64_t, TRUNCATE(int64_t, INT64_MIN, INT64_MAX, 0x1p63f))                                        \
  CAST(from, F, u8, uint8_t, TRUNCATE(uint8_t, 0, UINT8_MAX, 0x1p8f))                                                  \
  CAST(from, F, i8, int8_t, TRUNCATE(int8_t, INT8_MIN, INT8_MAX, 0x1p7f))

#define CASTS_OF_INTEGER(from, F, value)                                                                               \
  CAST(from, F, f32, float, value)                                                                                     \
  CAST(from, F, f64, double, value)                                                                                    \
  CAST(from, F, i32, int32_t, value)                                                                                   \
  CAST(from, F, i64, int64_t, value)                                                                                   \
  CAST(from, F, u8, uint8_t, value)                                                                                    \
  CAST(from, F, i8, int8_t, value)                                                                                     \
  CAST(from, F, b8, uint8_t, x != 0)

CASTS_OF_FLOAT(f32, float)
CASTS_OF_FLOAT(f64, double)
CAST(f32, float, f32, float, x)
CAST(f32, float, f64, double, x)
CAST(f32, float, b8, uint8_t, x != 0)
CAST(f64, double, f32, float, x)
CAST(f64, double, f64, double, x)
CAST(f64, double, b8, uint8_t, x != 0)
CASTS_OF_INTEGER(i32, int32_t, x)
CASTS_OF_INTEGER(i64, int64_t, x)
CASTS_OF_INTEGER(u8, uint8_t, x)
CASTS_OF_INTEGER(i8, int8_t, x)
CASTS_OF_INTEGER(b8, uint8_t, x != 0)

enum { TYPES = INFC_DTYPE_F64 + 1 }; // f64 has the highest number among those that are cast

#define LOOPS_OF(from)                                                                                                 \
  {[INFC_DTYPE_F32] = from##_to_f32, [INFC_DTYPE_F64] = from##_to_f64, [INFC_DTYPE_I32] = from##_to_i32,               \
   [INFC_DTYPE_I64] = from##_to_i64, [INFC_DTYPE_U8] = from##_to_u8,   [INFC_DTYPE_I8] = from##_to_i8,                 \
   [INFC_DTYPE_BOOL] = from##_to_b8}

static const cast_loop loops[TYPES][TYPES] = {
    [INFC_DTYPE_F32] = LOOPS_OF(f32), [INFC_DTYPE_F64] = LOOPS_OF(f64), [INFC_DTYPE_I32] = LOOPS_OF(i32),
    [INFC_DTYPE_I64] = LOOPS_OF(i64), [INFC_DTYPE_U8] = LOOPS_OF(u8),   [INFC_DTYPE_I8] = LOOPS_OF(i8),
    [INFC_DTYPE_BOOL] = LOOPS_OF(b8),
};

infc_fault infc_cast_any__scalar(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  if (range->row0 >= range->row1)
    return INFC_FAULT_NONE;
  // Rows of the step are not the operand's where all is constant: [2, 8] may be 16 rows.
  int64_t inner = infc_operand_inner(y, 0) / (int64_t)task->step->rows, first = range->row0 * inner;
  loops[x->dtype][y->dtype]((const char *)task->ptr[0] + (size_t)first * infc_element_size(x->dtype),
                            (char *)task->ptr[1] + (size_t)first * infc_element_size(y->dtype),
                            (range->row1 - range->row0) * inner);
  return INFC_FAULT_NONE;
}

bool infc_cast_validate(const infc_task *task, uint32_t symbol_count) {
  (void)symbol_count;
  const infc_step *step = task->step;
  if (!infc_step_has(step, 1, 1, INFC_WORDS_CAST) || !infc_step_has_no_cols(step) || step->rows == 0)
    return false;
  const infc_operand *x = &task->operands[0], *y = &task->operands[1];
  if (x->dtype >= TYPES || y->dtype >= TYPES || !loops[x->dtype][y->dtype])
    return false;
  int64_t elements = infc_operand_inner(y, 0);
  return elements >= 0 && elements % step->rows == 0 && infc_operand_holds_rows(x, step, elements / step->rows) &&
         infc_operand_holds_rows(y, step, elements / step->rows);
}

size_t infc_cast_scratch(const infc_task *task) {
  (void)task;
  return 0;
}
