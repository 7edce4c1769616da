// cast: every pair of types, with the values at the edges of their ranges. The floats of 16 bits and fewer are held
// against a search through all their codes.
#include "step.h"

#include <math.h>

enum { N = 96 };

// A type by what it means, written apart from the kernels. `exponent` and `mantissa` are a small float's bits.
typedef struct type {
  uint8_t dtype, size;
  char kind;            // 'f' float or double, 's' small float, 'p' power of two, 'i' integer, 'u' unsigned, 'b' bool
  int bits;             // of an integer
  int mantissa, bias;   // of a small float
  uint32_t codes;       // of a small float
  uint32_t largest;     // its largest code
  uint32_t beyond, nan; // codes of what is larger, and of NaN
} type;

static const type types[] = {
    {INFC_DTYPE_F32, 4, 'f', 0, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_F64, 8, 'f', 0, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_F16, 2, 's', 0, 10, 15, 0x10000, 0x7BFF, 0x7C00, 0x7E00},
    {INFC_DTYPE_BF16, 2, 's', 0, 7, 127, 0x10000, 0x7F7F, 0x7F80, 0x7FC0},
    {INFC_DTYPE_F8E4M3FN, 1, 's', 0, 3, 7, 0x100, 0x7E, 0x7F, 0x7F},
    {INFC_DTYPE_F8E4M3FNUZ, 1, 's', 0, 3, 8, 0x100, 0x7F, 0x80, 0x80},
    {INFC_DTYPE_F8E5M2, 1, 's', 0, 2, 15, 0x100, 0x7B, 0x7C, 0x7E},
    {INFC_DTYPE_F8E5M2FNUZ, 1, 's', 0, 2, 16, 0x100, 0x7F, 0x80, 0x80},
    {INFC_DTYPE_F4E2M1, 1, 's', 0, 1, 1, 0x10, 0x7, 0x7, 0x8},
    {INFC_DTYPE_F8E8M0, 1, 'p', 0, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_I8, 1, 'i', 8, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_I16, 2, 'i', 16, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_I32, 4, 'i', 32, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_I64, 8, 'i', 64, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_I4, 1, 'i', 4, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_I2, 1, 'i', 2, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_U8, 1, 'u', 8, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_U16, 2, 'u', 16, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_U32, 4, 'u', 32, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_U64, 8, 'u', 64, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_U4, 1, 'u', 4, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_U2, 1, 'u', 2, 0, 0, 0, 0, 0, 0},
    {INFC_DTYPE_BOOL, 1, 'b', 1, 0, 0, 0, 0, 0, 0},
};
enum { TYPES = sizeof types / sizeof *types };

// long double holds every element of every type exactly.
typedef long double number;

static uint64_t raw(const type *t, const void *data, int64_t at) {
  uint64_t bits = 0;
  memcpy(&bits, (const char *)data + (size_t)at * t->size, t->size);
  return bits;
}

static bool unsigned_zero(const type *t) {
  return t->nan == t->codes / 2 && t->beyond == t->nan;
}

static number value_of(const type *t, uint64_t code) {
  switch (t->kind) {
  case 'f': {
    float f;
    double d;
    uint32_t low = (uint32_t)code;
    memcpy(&f, &low, sizeof f);
    memcpy(&d, &code, sizeof d);
    return t->size == 4 ? (number)f : (number)d;
  }
  case 'p':
    return code == 255 ? (number)NAN : ldexpl(1, (int)code - 127);
  case 'b':
    return code != 0;
  case 's': {
    code &= t->codes - 1;
    uint32_t half = t->codes / 2, magnitude = (uint32_t)code % half;
    number sign = code >= half ? -1 : 1;
    if (unsigned_zero(t) && code == half)
      return (number)NAN;
    if (magnitude > t->largest)
      return magnitude == t->beyond && t->beyond != t->nan ? sign * (number)INFINITY : (number)NAN;
    int exponent = (int)(magnitude >> t->mantissa), fraction = (int)magnitude & ((1 << t->mantissa) - 1);
    return sign * (exponent ? ldexpl(fraction + (1 << t->mantissa), exponent - t->bias - t->mantissa)
                            : ldexpl(fraction, 1 - t->bias - t->mantissa));
  }
  default: {
    uint64_t mask = UINT64_MAX >> (64 - t->bits);
    code &= mask;
    if (t->kind == 'i' && code >> (t->bits - 1))
      return -(number)(mask - code) - 1;
    return (number)code;
  }
  }
}

// The code nearest to x, the even one of two.
static uint64_t small_float(const type *t, number x, bool saturate) {
  uint32_t half = t->codes / 2, sign = signbit(x) ? half : 0, best = 0;
  if (isnan(x))
    return t->nan >= half ? t->nan : sign | t->nan;
  number size = fabsl(x), largest = value_of(t, t->largest);
  number limit = largest + (largest - value_of(t, t->largest - 1)) / 2;
  bool even_limit = (t->largest & 1) == 0; // a tie at the limit goes to the even code
  if (size > limit || (size == limit && !even_limit))
    best = saturate || t->beyond == t->largest ? t->largest : t->beyond;
  else {
    uint32_t low = 0, high = t->largest;
    while (low < high) { // the largest code not above
      uint32_t middle = (low + high + 1) / 2;
      if (value_of(t, middle) <= size)
        low = middle;
      else
        high = middle - 1;
    }
    number below = size - value_of(t, low), above = low < t->largest ? value_of(t, low + 1) - size : below + 1;
    best = below < above || (below == above && low % 2 == 0) ? low : low + 1;
    if (low == t->largest)
      best = low;
  }
  if (best >= half || (unsigned_zero(t) && best == 0))
    return best;
  return sign | best;
}

static uint64_t power_of_two(number x, bool saturate, uint32_t round) {
  float f = (float)x;
  if (!isfinite(f))
    return 255;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  uint32_t exponent = bits << 1 >> 24, fraction = bits & 0x7FFFFF;
  bool more = round == 0 ? fraction : round == 2 && (exponent ? fraction >= 0x400000 : fraction > 0x400000);
  return more && !(saturate && exponent == 254) ? exponent + 1 : exponent;
}

// The low bits, in as many as the element has.
static uint64_t integer_code(const type *t, uint64_t low) {
  low &= UINT64_MAX >> (64 - t->bits);
  if (t->kind == 'i' && t->bits < 8 && low >> (t->bits - 1))
    low |= UINT64_MAX << t->bits;
  return low & (UINT64_MAX >> (64 - 8 * t->size));
}

static uint64_t expected(const type *from, uint64_t code, const type *to, bool saturate, uint32_t round) {
  number x = value_of(from, code);
  bool real = from->kind == 'f' || from->kind == 's' || from->kind == 'p';
  switch (to->kind) {
  case 'f': {
    float f = (float)x;
    double d = (double)x;
    uint64_t bits = 0;
    memcpy(&bits, to->size == 4 ? (void *)&f : (void *)&d, to->size);
    return bits;
  }
  case 's':
    return small_float(to, x, to->codes <= 0x100 && (real ? saturate : true)); // 16 bits have infinities
  case 'p':
    return power_of_two(x, real ? saturate : true, real ? round : 0);
  case 'b':
    return x != 0; // NaN is not 0
  default: {
    if (!real)
      return integer_code(to, x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x);
    int bits = to->bits < 8 ? 32 : to->bits;
    bool is_signed = to->kind == 'i' || to->bits < 8;
    number most = ldexpl(1, bits - is_signed) - 1, least = is_signed ? -most - 1 : 0;
    x = isnan(x) ? 0 : truncl(x);
    x = x < least ? least : x > most ? most : x;
    return integer_code(to, x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x);
  }
  }
}

static void fill(test_rng *rng, const type *t, void *data) {
  static const double reals[] = {
      0,       -0.0,   0.9,     -0.9,    127.5,   128,       -128.9,   -129,   255.9,    256,       65519.99, 65520,
      -65536,  0x1p31, -0x1p31, 0x1p63,  -0x1p63, 0x1p64,    1e30,     -1e30,  INFINITY, -INFINITY, NAN,      0x1p-24,
      0x1p-25, 6e-8,   448,     463.999, 464,     57344,     61440,    240,    247.9,    248,       0.25,     2.5,
      5,       6,      7,       1e-40,   0x1p127, 0x1.8p127, 0x1p-149, 3.3e38, 1.0 / 3};
  static const int64_t wholes[] = {0,
                                   -1,
                                   7,
                                   8,
                                   127,
                                   128,
                                   255,
                                   256,
                                   65535,
                                   INT32_MAX,
                                   INT32_MIN,
                                   INT64_MAX,
                                   INT64_MIN,
                                   16777217,
                                   (int64_t)1 << 53 | 1,
                                   0x7FFFFFBFFFFFFFFF,
                                   0x4000004000000000,
                                   0x4000004000000001};
  enum { REALS = sizeof reals / sizeof *reals, WHOLES = sizeof wholes / sizeof *wholes };
  for (int64_t i = 0; i < N; i++) {
    uint64_t bits = test_random(rng); // of small types any code, also what lies beside it in the byte
    if (t->kind == 'f') {
      double d = i < REALS ? reals[i] : (double)test_random_float(rng, -300, 300);
      float f = (float)d;
      memcpy(&bits, t->size == 4 ? (void *)&f : (void *)&d, t->size);
    } else if (i < WHOLES && t->size == 8)
      bits = (uint64_t)wholes[i];
    else if (i < WHOLES && t->size == 4)
      bits = (uint32_t)wholes[i];
    memcpy((char *)data + (size_t)i * t->size, &bits, t->size);
  }
}

static bool same(const type *t, uint64_t got, uint64_t want) {
  return isnan(value_of(t, want)) ? isnan(value_of(t, got)) : got == want;
}

static void test_pair(test_rng *rng, const type *from, const type *to, bool saturate, uint32_t round) {
  void *x = test_alloc(N * from->size), *y = test_alloc(N * to->size);
  fill(rng, from, x);
  test_step s;
  test_step_init(&s, 12, 1);
  test_operand(&s, false, x, from->dtype, 12, 8, 8);
  test_operand(&s, true, y, to->dtype, 12, 8, 8);
  test_word(&s, saturate);
  test_word(&s, round);
  CHECK(test_validate(&s, INFC_OP_CAST, 0), "valid");
  for (size_t k = 0; k < infc_kernel_count; k++)
    for (int parts = 1; parts <= 5; parts += 2) {
      if (infc_kernels[k].op != INFC_OP_CAST || !test_supported(&infc_kernels[k]))
        continue;
      memset(y, 0xEE, N * to->size);
      test_run(&s, &infc_kernels[k], parts, 1, NULL);
      for (int64_t i = 0; i < N; i++) {
        uint64_t code = raw(from, x, i), want = expected(from, code, to, saturate, round);
        CHECK(same(to, raw(to, y, i), want), "%s, type %d to %d, element %lld: %llx gives %llx, not %llx",
              infc_kernels[k].name, from->dtype, to->dtype, (long long)i, (unsigned long long)code,
              (unsigned long long)raw(to, y, i), (unsigned long long)want);
      }
    }
  s.step.rows = 11;
  CHECK(!test_validate(&s, INFC_OP_CAST, 0), "rows do not divide the elements");
  s.step.rows = 12;
  s.operands[0].dtype = 14;
  CHECK(!test_validate(&s, INFC_OP_CAST, 0), "a type that is not there");
  s.operands[0].dtype = from->dtype;
  s.operands[0].dims[0] = 11;
  CHECK(!test_validate(&s, INFC_OP_CAST, 0), "x is smaller than y");
  s.operands[0].dims[0] = 12;
  s.words[INFC_W_CAST_ROUND] = 3;
  CHECK(!test_validate(&s, INFC_OP_CAST, 0), "no such rounding");
  test_free(x);
  test_free(y);
}

int main(void) {
  test_rng rng = {9};
  for (int from = 0; from < TYPES; from++)
    for (int to = 0; to < TYPES; to++)
      for (int saturate = 0; saturate < 2; saturate++)
        for (uint32_t round = 0; round < (types[to].kind == 'p' ? 3 : 1); round++)
          test_pair(&rng, &types[from], &types[to], saturate, round);
  return test_result();
}
