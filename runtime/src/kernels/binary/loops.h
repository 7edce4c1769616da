// The scalar loops of `binary`, one for each function and type. Integers wrap; dividing by zero, or the least integer
// by -1, gives 0. min and max give NaN where either argument is.
#ifndef INFC_KERNELS_BINARY_LOOPS_H
#define INFC_KERNELS_BINARY_LOOPS_H

#include <math.h>
#include <stdint.h>

// clang-format off
#define LOOP(name, T, R, expression)                                                                                   \
  static void name(const void *pa, const void *pb, void *py, int64_t n) {                                              \
    const T *as = pa, *bs = pb;                                                                                        \
    R *y = py;                                                                                                         \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      T a = as[i], b = bs[i];                                                                                          \
      (void)b;                                                                                                         \
      y[i] = (R)(expression);                                                                                          \
    }                                                                                                                  \
  }

#define COMPARISONS(type, T)                                                                                           \
  LOOP(type##_equal, T, uint8_t, a == b)                                                                               \
  LOOP(type##_less, T, uint8_t, a < b)                                                                                 \
  LOOP(type##_less_equal, T, uint8_t, a <= b)                                                                          \
  LOOP(type##_greater, T, uint8_t, a > b)                                                                              \
  LOOP(type##_greater_equal, T, uint8_t, a >= b)

#define FLOATS(type, T, pow, mod)                                                                                      \
  LOOP(type##_add, T, T, a + b)                                                                                        \
  LOOP(type##_sub, T, T, a - b)                                                                                        \
  LOOP(type##_mul, T, T, a * b)                                                                                        \
  LOOP(type##_div, T, T, a / b)                                                                                        \
  LOOP(type##_pow, T, T, pow(a, b))                                                                                    \
  LOOP(type##_mod, T, T, mod(a, b))                                                                                    \
  LOOP(type##_min, T, T, a < b || a != a ? a : b)                                                                      \
  LOOP(type##_max, T, T, a > b || a != a ? a : b)                                                                      \
  LOOP(type##_prelu, T, T, a < 0 ? a * b : a)                                                                          \
  COMPARISONS(type, T)

#define INTEGERS(type, T, U, least)                                                                                    \
  static inline T type##_quotient(T a, T b) { return b == 0 || (b == -1 && a == least) ? 0 : a / b; }                  \
  static inline T type##_modulo(T a, T b) { /* has the divisor's sign */                                               \
    T r = b == 0 || b == -1 ? 0 : a % b;                                                                               \
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;                                                                   \
  }                                                                                                                    \
  static inline T type##_power(T a, T b) {                                                                             \
    if (b < 0)                                                                                                         \
      return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;                                                              \
    U result = 1, base = (U)a;                                                                                         \
    for (; b; b >>= 1, base *= base)                                                                                   \
      if (b & 1)                                                                                                       \
        result *= base;                                                                                                \
    return (T)result;                                                                                                  \
  }                                                                                                                    \
  LOOP(type##_add, T, T, (U)a + (U)b)                                                                                  \
  LOOP(type##_sub, T, T, (U)a - (U)b)                                                                                  \
  LOOP(type##_mul, T, T, (U)a * (U)b)                                                                                  \
  LOOP(type##_div, T, T, type##_quotient(a, b))                                                                        \
  LOOP(type##_pow, T, T, type##_power(a, b))                                                                           \
  LOOP(type##_mod, T, T, type##_modulo(a, b))                                                                          \
  LOOP(type##_min, T, T, a < b ? a : b)                                                                                \
  LOOP(type##_max, T, T, a > b ? a : b)                                                                                \
  LOOP(type##_prelu, T, T, a < 0 ? (U)a * (U)b : (U)a)                                                                 \
  COMPARISONS(type, T)

FLOATS(f32, float, powf, fmodf)
FLOATS(f64, double, pow, fmod)
INTEGERS(i32, int32_t, uint32_t, INT32_MIN)
INTEGERS(i64, int64_t, uint64_t, INT64_MIN)
LOOP(bool_equal, uint8_t, uint8_t, !a == !b)
LOOP(bool_and, uint8_t, uint8_t, a && b)
LOOP(bool_or, uint8_t, uint8_t, a || b)
LOOP(bool_xor, uint8_t, uint8_t, !a != !b)
// pow says +0 for -0 and +inf for -inf, sqrt does not.
LOOP(f32_sqrt, float, float, a == -INFINITY ? INFINITY : sqrtf(a + 0.0f))
LOOP(f32_rsqrt, float, float, a == -INFINITY ? 0 : 1 / sqrtf(a + 0.0f))
// clang-format on

#define LOOPS(type)                                                                                                    \
  {[INFC_BINARY_ADD] = type##_add,         [INFC_BINARY_SUB] = type##_sub,                                             \
   [INFC_BINARY_MUL] = type##_mul,         [INFC_BINARY_DIV] = type##_div,                                             \
   [INFC_BINARY_POW] = type##_pow,         [INFC_BINARY_MIN] = type##_min,                                             \
   [INFC_BINARY_MAX] = type##_max,         [INFC_BINARY_MOD] = type##_mod,                                             \
   [INFC_BINARY_PRELU] = type##_prelu,     [INFC_BINARY_EQUAL] = type##_equal,                                         \
   [INFC_BINARY_LESS] = type##_less,       [INFC_BINARY_LESS_EQUAL] = type##_less_equal,                               \
   [INFC_BINARY_GREATER] = type##_greater, [INFC_BINARY_GREATER_EQUAL] = type##_greater_equal}

#endif // INFC_KERNELS_BINARY_LOOPS_H
