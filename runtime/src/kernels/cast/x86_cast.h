// Conversions between the types that inference works with, for the compiler to vectorise, and those to and from 16 bits
// by instructions of their own. The including file defines STEP floats a vector and the vector functions.
#include "cast.h"

#include <immintrin.h>
#include <string.h>

#define TO_F32(name, T)                                                                                                \
  static void name##_to_f32(const void *px, void *py, int64_t n) {                                                     \
    const T *x = px;                                                                                                   \
    float *y = py;                                                                                                     \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      y[i] = (float)x[i];                                                                                              \
  }
TO_F32(u8, uint8_t)
TO_F32(i8, int8_t)
TO_F32(i32, int32_t)
TO_F32(i64, int64_t)

#define TO_I32(name, T)                                                                                                \
  static void name##_to_i32(const void *px, void *py, int64_t n) {                                                     \
    const T *x = px;                                                                                                   \
    int32_t *y = py;                                                                                                   \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      y[i] = (int32_t)x[i];                                                                                            \
  }
TO_I32(u8, uint8_t)
TO_I32(i8, int8_t)
TO_I32(i64, int64_t)

static void bf16_to_f32(const void *px, void *py, int64_t n) {
  const uint16_t *x = px;
  uint32_t *y = py;
  for (int64_t i = 0; i < n; i++)
    y[i] = (uint32_t)x[i] << 16;
}

static void f32_to_bf16(const void *px, void *py, int64_t n) {
  const uint32_t *x = px;
  uint16_t *y = py;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = x[i], even = bits >> 16 & 1;
    bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    y[i] = (uint16_t)((is_nan ? bits | 0x400000 : bits + 0x7FFF + even) >> 16);
  }
}

static void f16_to_f32(const void *px, void *py, int64_t n) {
  const uint16_t *x = px;
  float *y = py;
  int64_t i = 0;
  for (; i + STEP <= n; i += STEP)
    half_to_single(x + i, y + i);
  if (i < n) {
    uint16_t in[STEP] = {0};
    float out[STEP];
    memcpy(in, x + i, (size_t)(n - i) * sizeof *in);
    half_to_single(in, out);
    memcpy(y + i, out, (size_t)(n - i) * sizeof *out);
  }
}

static void f32_to_f16(const void *px, void *py, int64_t n) {
  const float *x = px;
  uint16_t *y = py;
  int64_t i = 0;
  for (; i + STEP <= n; i += STEP)
    single_to_half(x + i, y + i);
  if (i < n) {
    float in[STEP] = {0};
    uint16_t out[STEP];
    memcpy(in, x + i, (size_t)(n - i) * sizeof *in);
    single_to_half(in, out);
    memcpy(y + i, out, (size_t)(n - i) * sizeof *out);
  }
}

static infc_cast_loop loop_of(uint8_t x, uint8_t y) {
  if (y == INFC_DTYPE_F32)
    switch (x) {
    case INFC_DTYPE_U8:
      return u8_to_f32;
    case INFC_DTYPE_I8:
      return i8_to_f32;
    case INFC_DTYPE_I32:
      return i32_to_f32;
    case INFC_DTYPE_I64:
      return i64_to_f32;
    case INFC_DTYPE_F16:
      return f16_to_f32;
    case INFC_DTYPE_BF16:
      return bf16_to_f32;
    }
  if (y == INFC_DTYPE_I32)
    return x == INFC_DTYPE_U8 ? u8_to_i32 : x == INFC_DTYPE_I8 ? i8_to_i32 : x == INFC_DTYPE_I64 ? i64_to_i32 : NULL;
  if (x == INFC_DTYPE_F32)
    return y == INFC_DTYPE_F16 ? f32_to_f16 : y == INFC_DTYPE_BF16 ? f32_to_bf16 : NULL;
  return NULL;
}

infc_fault KERNEL(const infc_task *task, const infc_range *range, infc_worker *worker) {
  (void)worker;
  return infc_cast_run(task, range, loop_of(task->operands[0].dtype, task->operands[1].dtype));
}
