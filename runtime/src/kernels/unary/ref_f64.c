// The functions in f64, as the C library computes them. alpha and beta are attributes, f32 in ONNX.
#include "unary.h"

#include <math.h>

static double logistic(double x) {
  return 1 / (1 + exp(-x));
}

// x * s, where s is a factor that vanishes faster than x grows.
static double gate(double x, double s) {
  return s == 0 ? 0 * copysign(1, x) : x * s;
}

static double hard_sigmoid(double x, double alpha, double beta) {
  double y = alpha * x + beta;
  y = y < 0 ? 0 : y;
  return y > 1 ? 1 : y;
}

// With y NULL: whether the function is known.
static bool apply(uint32_t function, double x, double alpha, double beta, double *y) {
  double result;
  switch (function) {
#define CASE(name, value)                                                                                              \
  case INFC_UNARY_##name:                                                                                              \
    result = value;                                                                                                    \
    break
    CASE(IDENTITY, x);
    CASE(RELU, x < 0 ? 0 : x);
    CASE(GELU_ERF, gate(x, 0.5 * erfc(-x * 0.70710678118654752440)));
    CASE(GELU_TANH, gate(x, logistic(2 * 0.79788456080286535588 * x * (1 + 0.044715 * x * x))));
    CASE(SILU, gate(x, logistic(x)));
    CASE(QUICK_GELU, gate(x, logistic(1.702 * x)));
    CASE(TANH, tanh(x));
    CASE(SIGMOID, logistic(x));
    CASE(EXP, exp(x));
    CASE(LOG, log(x));
    CASE(SQRT, sqrt(x));
    CASE(RSQRT, 1 / sqrt(x));
    CASE(RECIPROCAL, 1 / x);
    CASE(ERF, erf(x));
    CASE(ABS, fabs(x));
    CASE(NEG, -x);
    CASE(FLOOR, floor(x));
    CASE(CEIL, ceil(x));
    CASE(ROUND, rint(x));
    CASE(SIN, sin(x));
    CASE(COS, cos(x));
    CASE(TAN, tan(x));
    CASE(ASIN, asin(x));
    CASE(ACOS, acos(x));
    CASE(ATAN, atan(x));
    CASE(SINH, sinh(x));
    CASE(COSH, cosh(x));
    CASE(ASINH, asinh(x));
    CASE(ACOSH, acosh(x));
    CASE(ATANH, atanh(x));
    CASE(SOFTPLUS, (x > 0 ? x : 0) + log1p(exp(-fabs(x))));
    CASE(SIGN, x > 0 ? 1 : x < 0 ? -1 : x);
    CASE(LEAKY_RELU, x < 0 ? alpha * x : x);
    CASE(ELU, x < 0 ? alpha * expm1(x) : x);
    CASE(HARD_SIGMOID, hard_sigmoid(x, alpha, beta));
    CASE(HARD_SWISH, x * hard_sigmoid(x, 1.0 / 6, 0.5));
    CASE(SQUARE, x * x);
#undef CASE
  default:
    return false;
  }
  if (y)
    *y = result;
  return true;
}

bool infc_unary_has_f64(uint32_t function) {
  return apply(function, 0, 0, 0, NULL);
}

void infc_unary_f64(const double *x, double *y, int64_t n, uint32_t function, float alpha, float beta) {
  for (int64_t i = 0; i < n; i++)
    apply(function, x[i], alpha, beta, &y[i]);
}
