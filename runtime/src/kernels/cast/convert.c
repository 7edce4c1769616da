#include "convert.h"

#include <math.h>
#include <string.h>

// ---- Floats of 16 bits and fewer

typedef struct format {
  int mantissa, bias;
  uint32_t sign;          // its bit
  uint32_t largest;       // code of the largest finite magnitude
  uint32_t overflow, nan; // codes of what is too large, and of NaN, without the sign
  bool unsigned_zero;     // -0 is the one NaN
} format;

static const format *format_of(uint8_t dtype) {
  static const format formats[] = {
      [INFC_DTYPE_F16] = {10, 15, 0x8000, 0x7BFF, 0x7C00, 0x7E00, false},
      [INFC_DTYPE_BF16] = {7, 127, 0x8000, 0x7F7F, 0x7F80, 0x7FC0, false},
      [INFC_DTYPE_F8E4M3FN] = {3, 7, 0x80, 0x7E, 0x7F, 0x7F, false},
      [INFC_DTYPE_F8E4M3FNUZ] = {3, 8, 0x80, 0x7F, 0x80, 0x80, true},
      [INFC_DTYPE_F8E5M2] = {2, 15, 0x80, 0x7B, 0x7C, 0x7E, false},
      [INFC_DTYPE_F8E5M2FNUZ] = {2, 16, 0x80, 0x7F, 0x80, 0x80, true},
      [INFC_DTYPE_F4E2M1] = {1, 1, 0x08, 0x07, 0x07, 0x08, false}, // NaN becomes -0, as there is none
  };
  return dtype < sizeof formats / sizeof *formats && formats[dtype].sign ? &formats[dtype] : NULL;
}

static double power_of_two(int exponent) {
  uint64_t bits = (uint64_t)(exponent + 1023) << 52;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static double decode(const format *f, uint32_t code) {
  code &= 2 * f->sign - 1;
  uint32_t magnitude = code & (f->sign - 1), fraction = magnitude & ((1u << f->mantissa) - 1);
  int exponent = (int)(magnitude >> f->mantissa);
  bool negative = code & f->sign;
  if (f->unsigned_zero && code == f->sign)
    return NAN;
  if (magnitude > f->largest) {
    double special = magnitude == f->overflow && f->overflow != f->nan ? INFINITY : NAN;
    return negative ? -special : special;
  }
  double value = exponent ? (double)(fraction + (1u << f->mantissa)) * power_of_two(exponent - f->bias - f->mantissa)
                          : (double)fraction * power_of_two(1 - f->bias - f->mantissa);
  return negative ? -value : value;
}

static uint32_t encode(const format *f, double x, bool saturate) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint32_t sign = bits >> 63 ? f->sign : 0;
  if (x != x)
    return f->nan >= f->sign ? f->nan : sign | f->nan;
  int exponent = (int)(bits >> 52 & 0x7FF) - 1023;
  if (exponent > f->bias + 1) // beyond any of the type
    return saturate || f->overflow == f->largest ? sign | f->largest
           : f->overflow >= f->sign              ? f->overflow
                                                 : sign | f->overflow;
  exponent = exponent < 1 - f->bias ? 1 - f->bias : exponent;
  // Whole steps of the last place; a carry into the exponent gives the right code.
  uint32_t steps = (uint32_t)rint(fabs(x) * power_of_two(f->mantissa - exponent));
  uint32_t code = ((uint32_t)(exponent + f->bias - 1) << f->mantissa) + steps;
  if (code > f->largest)
    code = saturate ? f->largest : f->overflow;
  if (f->unsigned_zero && (code == 0 || code >= f->sign))
    return code;
  return sign | code;
}

// float8e8m0: 2^(code - 127); 255 is NaN. The sign is dropped.
static uint8_t encode_power(float x, bool saturate, uint32_t round) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint32_t exponent = bits >> 23 & 0xFF, fraction = bits & 0x7FFFFF;
  if (exponent == 0xFF)
    return 0xFF;
  bool up = round == INFC_ROUND_UP        ? fraction != 0
            : round == INFC_ROUND_NEAREST ? fraction > 0x400000 || (fraction == 0x400000 && exponent != 0)
                                          : false;
  return (uint8_t)(up && !(saturate && exponent == 0xFE) ? exponent + 1 : exponent);
}

// ---- Every type

infc_number infc_number_of(uint8_t dtype) {
  static const uint8_t kinds[] = {
      [INFC_DTYPE_F32] = INFC_NUMBER_REAL,      [INFC_DTYPE_F64] = INFC_NUMBER_REAL,
      [INFC_DTYPE_F16] = INFC_NUMBER_REAL,      [INFC_DTYPE_BF16] = INFC_NUMBER_REAL,
      [INFC_DTYPE_F8E4M3FN] = INFC_NUMBER_REAL, [INFC_DTYPE_F8E4M3FNUZ] = INFC_NUMBER_REAL,
      [INFC_DTYPE_F8E5M2] = INFC_NUMBER_REAL,   [INFC_DTYPE_F8E5M2FNUZ] = INFC_NUMBER_REAL,
      [INFC_DTYPE_F4E2M1] = INFC_NUMBER_REAL,   [INFC_DTYPE_F8E8M0] = INFC_NUMBER_REAL,
      [INFC_DTYPE_BOOL] = INFC_NUMBER_INTEGER,  [INFC_DTYPE_I8] = INFC_NUMBER_INTEGER,
      [INFC_DTYPE_U8] = INFC_NUMBER_INTEGER,    [INFC_DTYPE_I16] = INFC_NUMBER_INTEGER,
      [INFC_DTYPE_U16] = INFC_NUMBER_INTEGER,   [INFC_DTYPE_I32] = INFC_NUMBER_INTEGER,
      [INFC_DTYPE_U32] = INFC_NUMBER_INTEGER,   [INFC_DTYPE_I64] = INFC_NUMBER_INTEGER,
      [INFC_DTYPE_I4] = INFC_NUMBER_INTEGER,    [INFC_DTYPE_U4] = INFC_NUMBER_INTEGER,
      [INFC_DTYPE_I2] = INFC_NUMBER_INTEGER,    [INFC_DTYPE_U2] = INFC_NUMBER_INTEGER,
      [INFC_DTYPE_U64] = INFC_NUMBER_UNSIGNED,
  };
  return dtype < sizeof kinds ? (infc_number)kinds[dtype] : INFC_NUMBER_NONE;
}

void infc_integer_limits(uint8_t dtype, int64_t *least, int64_t *most) {
  bool is_signed = dtype == INFC_DTYPE_I8 || dtype == INFC_DTYPE_I16 || dtype == INFC_DTYPE_I32 ||
                   dtype == INFC_DTYPE_I64 || dtype == INFC_DTYPE_I4 || dtype == INFC_DTYPE_I2;
  int bits = dtype == INFC_DTYPE_BOOL                           ? 1
             : dtype == INFC_DTYPE_I4 || dtype == INFC_DTYPE_U4 ? 4
             : dtype == INFC_DTYPE_I2 || dtype == INFC_DTYPE_U2 ? 2
                                                                : 8 * (int)infc_element_size(dtype);
  *most = (int64_t)(UINT64_MAX >> (64 - bits + is_signed));
  *least = is_signed ? -*most - 1 : 0;
}

#define LOAD(T, expression)                                                                                            \
  for (int64_t i = 0; i < n; i++) {                                                                                    \
    T x = ((const T *)from)[i];                                                                                        \
    to[i] = expression;                                                                                                \
  }                                                                                                                    \
  return
#define STORE(T, expression)                                                                                           \
  for (int64_t i = 0; i < n; i++)                                                                                      \
    ((T *)to)[i] = (T)(expression);                                                                                    \
  return

void infc_load_reals(uint8_t dtype, const void *from, int64_t n, double *to) {
  const format *f = format_of(dtype);
  switch (dtype) {
  case INFC_DTYPE_F32:
    LOAD(float, x);
  case INFC_DTYPE_F64:
    LOAD(double, x);
  case INFC_DTYPE_F16:
  case INFC_DTYPE_BF16:
    LOAD(uint16_t, decode(f, x));
  case INFC_DTYPE_F8E8M0:
    LOAD(uint8_t, x == 0xFF ? NAN : power_of_two(x - 127));
  default:
    LOAD(uint8_t, decode(f, x));
  }
}

void infc_load_integers(uint8_t dtype, const void *from, int64_t n, int64_t *to) {
  switch (dtype) {
  case INFC_DTYPE_BOOL:
    LOAD(uint8_t, x != 0);
  case INFC_DTYPE_I8:
    LOAD(int8_t, x);
  case INFC_DTYPE_U8:
    LOAD(uint8_t, x);
  case INFC_DTYPE_I16:
    LOAD(int16_t, x);
  case INFC_DTYPE_U16:
    LOAD(uint16_t, x);
  case INFC_DTYPE_I32:
    LOAD(int32_t, x);
  case INFC_DTYPE_U32:
    LOAD(uint32_t, x);
  case INFC_DTYPE_I4:
    LOAD(uint8_t, ((x & 15) ^ 8) - 8);
  case INFC_DTYPE_U4:
    LOAD(uint8_t, x & 15);
  case INFC_DTYPE_I2:
    LOAD(uint8_t, ((x & 3) ^ 2) - 2);
  case INFC_DTYPE_U2:
    LOAD(uint8_t, x & 3);
  default:
    LOAD(int64_t, x);
  }
}

void infc_store_reals(uint8_t dtype, const double *from, int64_t n, void *to, bool saturate, uint32_t round) {
  const format *f = format_of(dtype);
  switch (dtype) {
  case INFC_DTYPE_F32:
    STORE(float, from[i]);
  case INFC_DTYPE_F64:
    STORE(double, from[i]);
  case INFC_DTYPE_F16:
  case INFC_DTYPE_BF16:
    STORE(uint16_t, encode(f, from[i], false));
  case INFC_DTYPE_F8E8M0:
    STORE(uint8_t, encode_power((float)from[i], saturate, round));
  default:
    STORE(uint8_t, encode(f, from[i], saturate));
  }
}

void infc_store_integers(uint8_t dtype, const int64_t *from, int64_t n, void *to) {
  switch (dtype) {
  case INFC_DTYPE_BOOL:
    STORE(uint8_t, from[i] != 0);
  case INFC_DTYPE_I8:
  case INFC_DTYPE_U8:
    STORE(uint8_t, from[i]);
  case INFC_DTYPE_I16:
  case INFC_DTYPE_U16:
    STORE(uint16_t, from[i]);
  case INFC_DTYPE_I32:
  case INFC_DTYPE_U32:
    STORE(uint32_t, from[i]);
  case INFC_DTYPE_I4: // with its sign, as numpy's extensions hold it
    STORE(uint8_t, ((from[i] & 15) ^ 8) - 8);
  case INFC_DTYPE_U4:
    STORE(uint8_t, from[i] & 15);
  case INFC_DTYPE_I2:
    STORE(uint8_t, ((from[i] & 3) ^ 2) - 2);
  case INFC_DTYPE_U2:
    STORE(uint8_t, from[i] & 3);
  default:
    STORE(int64_t, from[i]);
  }
}
