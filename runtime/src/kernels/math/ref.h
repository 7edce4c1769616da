// Elementwise functions of one float, the oracle of the vector versions: computed in double, rounded once.
#ifndef INFC_MATH_REF_H
#define INFC_MATH_REF_H

#include "../../layout.h"

#include <math.h>
#include <stdbool.h>

static inline float infc_exp_ref(float x) {
  return (float)exp(x);
}
static inline float infc_log_ref(float x) {
  return (float)log(x);
}
static inline float infc_tanh_ref(float x) {
  return (float)tanh(x);
}
static inline float infc_erf_ref(float x) {
  return (float)erf(x);
}
static inline float infc_relu_ref(float x) {
  return x < 0.0f ? 0.0f : x;
}

// x * s, where s is a factor that vanishes faster than x grows.
static inline double infc_gate_ref(double x, double s) {
  return s == 0.0 ? 0.0 * copysign(1.0, x) : x * s;
}

static inline double infc_logistic_ref(double x) {
  return 1.0 / (1.0 + exp(-x));
}
static inline float infc_sigmoid_ref(float x) {
  return (float)infc_logistic_ref(x);
}
static inline float infc_silu_ref(float x) {
  return (float)infc_gate_ref(x, infc_logistic_ref(x));
}
static inline float infc_quick_gelu_ref(float x) {
  return (float)infc_gate_ref(x, infc_logistic_ref((double)1.702f * (double)x));
}
static inline float infc_gelu_erf_ref(float x) {
  return (float)infc_gate_ref(x, 0.5 * erfc(-(double)x * 0.70710678118654752440));
}
static inline float infc_gelu_tanh_ref(float x) {
  double u = 0.79788456080286535588 * x * (1.0 + 0.044715 * (double)x * (double)x); // tanh(u) = 2 logistic(2 u) - 1
  return (float)infc_gate_ref(x, infc_logistic_ref(2.0 * u));
}
static inline float infc_softplus_ref(float x) {
  return (float)((x > 0.0f ? x : 0.0) + log1p(exp(-fabs((double)x))));
}

static inline float infc_relu6_ref(float x) {
  return x > 6.0f ? 6.0f : infc_relu_ref(x);
}

static inline float infc_hard_sigmoid_ref(float x, float alpha, float beta) {
  float y = fmaf(alpha, x, beta);
  y = y < 0.0f ? 0.0f : y;
  return y > 1.0f ? 1.0f : y;
}

// The functions that gemm and other kernels accept as an activation: those without parameters.
static inline bool infc_activation_supported(uint32_t code) {
  switch (code) {
  case INFC_UNARY_IDENTITY:
  case INFC_UNARY_RELU:
  case INFC_UNARY_GELU_ERF:
  case INFC_UNARY_GELU_TANH:
  case INFC_UNARY_SILU:
  case INFC_UNARY_TANH:
  case INFC_UNARY_SIGMOID:
  case INFC_UNARY_QUICK_GELU:
  case INFC_UNARY_SOFTPLUS:
  case INFC_UNARY_HARD_SWISH:
  case INFC_UNARY_RELU6:
    return true;
  default:
    return false;
  }
}

static inline float infc_activate_ref(float x, uint32_t code) {
  switch (code) {
  case INFC_UNARY_RELU:
    return infc_relu_ref(x);
  case INFC_UNARY_GELU_ERF:
    return infc_gelu_erf_ref(x);
  case INFC_UNARY_GELU_TANH:
    return infc_gelu_tanh_ref(x);
  case INFC_UNARY_SILU:
    return infc_silu_ref(x);
  case INFC_UNARY_TANH:
    return infc_tanh_ref(x);
  case INFC_UNARY_SIGMOID:
    return infc_sigmoid_ref(x);
  case INFC_UNARY_QUICK_GELU:
    return infc_quick_gelu_ref(x);
  case INFC_UNARY_SOFTPLUS:
    return infc_softplus_ref(x);
  case INFC_UNARY_HARD_SWISH:
    return x * infc_hard_sigmoid_ref(x, 1.0f / 6.0f, 0.5f);
  case INFC_UNARY_RELU6:
    return infc_relu6_ref(x);
  default:
    return x;
  }
}

#endif // INFC_MATH_REF_H
