// The loops for 8 bits as the compiler makes them for the instruction set of the including file.
#include "quantize.h"

#include <math.h>

// x / scale is held to what the range leaves beside the zero before it becomes an integer; NaN gives the least.
#define QUANTIZE(T, least, most, k)                                                                                    \
  for (int64_t i = 0; i < n; i++) {                                                                                    \
    float low = (float)((least) - zero[k]), high = (float)((most) - zero[k]);                                          \
    float v = rintf(x[i] / scale[k]);                                                                                  \
    v = v > low ? v : low;                                                                                             \
    v = v < high ? v : high;                                                                                           \
    y[i] = (T)((int32_t)v + zero[k]);                                                                                  \
  }
#define DEQUANTIZE(k)                                                                                                  \
  for (int64_t i = 0; i < n; i++)                                                                                      \
    y[i] = (float)(x[i] - zero[k]) * scale[k];
#define PAIR(name, T, least, most)                                                                                     \
  static void to_##name(const float *restrict x, const float *restrict scale, const int32_t *restrict zero, bool each, \
                        T *restrict y, int64_t n) {                                                                    \
    if (each)                                                                                                          \
      QUANTIZE(T, least, most, i)                                                                                      \
    else                                                                                                               \
      QUANTIZE(T, least, most, 0)                                                                                      \
  }                                                                                                                    \
  static void from_##name(const T *restrict x, const float *restrict scale, const int32_t *restrict zero, bool each,   \
                          float *restrict y, int64_t n) {                                                              \
    if (each)                                                                                                          \
      DEQUANTIZE(i)                                                                                                    \
    else                                                                                                               \
      DEQUANTIZE(0)                                                                                                    \
  }
PAIR(u8, uint8_t, 0, UINT8_MAX)
PAIR(i8, int8_t, INT8_MIN, INT8_MAX)

static const infc_quantize_loops loops = {to_u8, to_i8, from_u8, from_i8};
