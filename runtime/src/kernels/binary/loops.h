// The scalar loops of `binary`, one for each function and type. Integers wrap; dividing by zero, or the least integer
// by -1, gives 0. A shift by more bits than there are, or by fewer than none, shifts all of them out. min and max give
// NaN where either argument is.
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

#define FLOATS(type, T, pow, fmod, copysign)                                                                           \
  static inline T type##_modulo(T a, T b) { /* has the divisor's sign */                                               \
    T r = fmod(a, b);                                                                                                  \
    return r == 0 ? copysign(r, b) : (r < 0) != (b < 0) ? r + b : r;                                                   \
  }                                                                                                                    \
  LOOP(type##_add, T, T, a + b)                                                                                        \
  LOOP(type##_sub, T, T, a - b)                                                                                        \
  LOOP(type##_mul, T, T, a * b)                                                                                        \
  LOOP(type##_div, T, T, a / b)                                                                                        \
  LOOP(type##_pow, T, T, pow(a, b))                                                                                    \
  LOOP(type##_mod, T, T, type##_modulo(a, b))                                                                          \
  LOOP(type##_rem, T, T, fmod(a, b))                                                                                   \
  LOOP(type##_min, T, T, a < b || a != a ? a : b)                                                                      \
  LOOP(type##_max, T, T, a > b || a != a ? a : b)                                                                      \
  LOOP(type##_prelu, T, T, a < 0 ? a * b : a)                                                                          \
  COMPARISONS(type, T)

#define BITS(type, T, U)                                                                                               \
  LOOP(type##_bit_and, T, T, a & b)                                                                                    \
  LOOP(type##_bit_or, T, T, a | b)                                                                                     \
  LOOP(type##_bit_xor, T, T, a ^ b)                                                                                    \
  LOOP(type##_shift_left, T, T, (U)b < 8 * sizeof(T) ? (U)a << b : 0)                                                  \
  LOOP(type##_shift_right, T, T, a >> ((U)b < 8 * sizeof(T) ? b : (T)(8 * sizeof(T) - 1)) >> ((U)b >= 8 * sizeof(T)))

#define UNSIGNED(type, T)                                                                                              \
  static inline T type##_power(T a, T b) {                                                                             \
    T result = 1;                                                                                                      \
    for (; b; b >>= 1, a *= a)                                                                                         \
      if (b & 1)                                                                                                       \
        result *= a;                                                                                                   \
    return result;                                                                                                     \
  }                                                                                                                    \
  LOOP(type##_add, T, T, a + b)                                                                                        \
  LOOP(type##_sub, T, T, a - b)                                                                                        \
  LOOP(type##_mul, T, T, a * b)                                                                                        \
  LOOP(type##_div, T, T, b ? a / b : 0)                                                                                \
  LOOP(type##_pow, T, T, type##_power(a, b))                                                                           \
  LOOP(type##_mod, T, T, b ? a % b : 0)                                                                                \
  LOOP(type##_rem, T, T, b ? a % b : 0)                                                                                \
  LOOP(type##_min, T, T, a < b ? a : b)                                                                                \
  LOOP(type##_max, T, T, a > b ? a : b)                                                                                \
  LOOP(type##_prelu, T, T, a)                                                                                          \
  BITS(type, T, T)                                                                                                     \
  COMPARISONS(type, T)

#define INTEGERS(type, T, U, least)                                                                                    \
  static inline T type##_quotient(T a, T b) { return b == 0 || (b == -1 && a == least) ? 0 : a / b; }                  \
  static inline T type##_remainder(T a, T b) { return b == 0 || b == -1 ? 0 : a % b; } /* has the dividend's sign */   \
  static inline T type##_modulo(T a, T b) { /* has the divisor's sign */                                               \
    T r = type##_remainder(a, b);                                                                                      \
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
  LOOP(type##_rem, T, T, type##_remainder(a, b))                                                                       \
  LOOP(type##_min, T, T, a < b ? a : b)                                                                                \
  LOOP(type##_max, T, T, a > b ? a : b)                                                                                \
  LOOP(type##_prelu, T, T, a < 0 ? (U)a * (U)b : (U)a)                                                                 \
  BITS(type, T, U)                                                                                                     \
  COMPARISONS(type, T)

FLOATS(f32, float, powf, fmodf, copysignf)
FLOATS(f64, double, pow, fmod, copysign)
INTEGERS(i32, int32_t, uint32_t, INT32_MIN)
INTEGERS(i64, int64_t, uint64_t, INT64_MIN)
UNSIGNED(u64, uint64_t)
LOOP(bool_equal, uint8_t, uint8_t, !a == !b)
LOOP(bool_and, uint8_t, uint8_t, a && b)
LOOP(bool_or, uint8_t, uint8_t, a || b)
LOOP(bool_xor, uint8_t, uint8_t, !a != !b)
// pow says +0 for -0 and +inf for -inf, sqrt does not.
LOOP(f32_sqrt, float, float, a == -INFINITY ? INFINITY : sqrtf(a + 0.0f))
LOOP(f32_rsqrt, float, float, a == -INFINITY ? 0 : 1 / sqrtf(a + 0.0f))
// clang-format on

#define LOOPS(type)                                                                                                    \
  [INFC_BINARY_ADD] = type##_add, [INFC_BINARY_SUB] = type##_sub, [INFC_BINARY_MUL] = type##_mul,                      \
  [INFC_BINARY_DIV] = type##_div, [INFC_BINARY_POW] = type##_pow, [INFC_BINARY_MIN] = type##_min,                      \
  [INFC_BINARY_MAX] = type##_max, [INFC_BINARY_MOD] = type##_mod, [INFC_BINARY_REM] = type##_rem,                      \
  [INFC_BINARY_PRELU] = type##_prelu, [INFC_BINARY_EQUAL] = type##_equal, [INFC_BINARY_LESS] = type##_less,            \
  [INFC_BINARY_LESS_EQUAL] = type##_less_equal, [INFC_BINARY_GREATER] = type##_greater,                                \
  [INFC_BINARY_GREATER_EQUAL] = type##_greater_equal
#define BIT_LOOPS(type)                                                                                                \
  [INFC_BINARY_BIT_AND] = type##_bit_and, [INFC_BINARY_BIT_OR] = type##_bit_or,                                        \
  [INFC_BINARY_BIT_XOR] = type##_bit_xor, [INFC_BINARY_SHIFT_LEFT] = type##_shift_left,                                \
  [INFC_BINARY_SHIFT_RIGHT] = type##_shift_right

#endif // INFC_KERNELS_BINARY_LOOPS_H
