// Elements of every type as doubles or 64-bit integers, and back: what conversion and quantisation are made of.
#ifndef INFC_KERNELS_CONVERT_H
#define INFC_KERNELS_CONVERT_H

#include "../operand.h"

typedef enum infc_number {
  INFC_NUMBER_NONE, // no known type
  INFC_NUMBER_REAL,
  INFC_NUMBER_INTEGER,  // bool too
  INFC_NUMBER_UNSIGNED, // u64: its integers are carried as their bits
} infc_number;

// How a real becomes a float8e8m0, which has powers of two alone.
enum { INFC_ROUND_UP, INFC_ROUND_DOWN, INFC_ROUND_NEAREST, INFC_ROUND_COUNT };

infc_number infc_number_of(uint8_t dtype);
// The least and the largest of an integer type but u64.
void infc_integer_limits(uint8_t dtype, int64_t *least, int64_t *most);

// n elements of a REAL type; exact.
void infc_load_reals(uint8_t dtype, const void *from, int64_t n, double *to);
// n elements of an INTEGER or UNSIGNED type. Of types of 4 and 2 bits the other bits are ignored, a bool is 0 or 1.
void infc_load_integers(uint8_t dtype, const void *from, int64_t n, int64_t *to);
// To a REAL type: to the nearest, even if halfway. What is too large becomes the largest with `saturate` and in types
// that have neither, else infinity or NaN. `saturate` is for float8 alone.
void infc_store_reals(uint8_t dtype, const double *from, int64_t n, void *to, bool saturate, uint32_t round);
// To an INTEGER or UNSIGNED type: the low bits; to bool: whether it is not 0.
void infc_store_integers(uint8_t dtype, const int64_t *from, int64_t n, void *to);

#endif // INFC_KERNELS_CONVERT_H
