#include "combine.h"

// Integers wrap: `W` is the unsigned type that arithmetic is done in. NaN wins over any maximum and minimum.
#define LOOP(name, T, expression)                                                                                      \
  static void name(void *to, const void *from, int64_t n) {                                                            \
    T *y = to;                                                                                                         \
    const T *x = from;                                                                                                 \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      const T a = y[i], b = x[i];                                                                                      \
      y[i] = (T)(expression);                                                                                          \
    }                                                                                                                  \
  }
#define TYPE(name, T, W)                                                                                               \
  LOOP(add_##name, T, (W)a + (W)b)                                                                                     \
  LOOP(mul_##name, T, (W)a *(W)b)                                                                                      \
  LOOP(max_##name, T, a > b || a != a ? a : b)                                                                         \
  LOOP(min_##name, T, a < b || a != a ? a : b)
#define MOVE(name, T)                                                                                                  \
  static void name(void *to, const void *from, int64_t n) {                                                            \
    memmove(to, from, (size_t)n * sizeof(T));                                                                          \
  }

TYPE(f32, float, float)
TYPE(f64, double, double)
TYPE(i8, int8_t, uint32_t)
TYPE(u8, uint8_t, uint32_t)
TYPE(i16, int16_t, uint32_t)
TYPE(u16, uint16_t, uint32_t)
TYPE(i32, int32_t, uint32_t)
TYPE(i64, int64_t, uint64_t)
MOVE(move1, uint8_t)
MOVE(move2, uint16_t)
MOVE(move4, uint32_t)
MOVE(move8, uint64_t)

#define ROW(DTYPE, name, move) [INFC_DTYPE_##DTYPE] = {move, add_##name, mul_##name, max_##name, min_##name}
static const infc_combine_fn combine[][INFC_SCATTER_COUNT] = {
    ROW(F32, f32, move4),        ROW(F64, f64, move8),       ROW(I8, i8, move1),          ROW(U8, u8, move1),
    ROW(I16, i16, move2),        ROW(U16, u16, move2),       ROW(I32, i32, move4),        ROW(I64, i64, move8),
    [INFC_DTYPE_BOOL] = {move1}, [INFC_DTYPE_F16] = {move2}, [INFC_DTYPE_BF16] = {move2},
};

infc_combine_fn infc_combine_for(uint32_t kind, uint8_t dtype) {
  return dtype < sizeof combine / sizeof *combine && kind < INFC_SCATTER_COUNT ? combine[dtype][kind] : NULL;
}
