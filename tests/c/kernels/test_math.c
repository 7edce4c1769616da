// Vector math over the whole range of float, through every `unary` kernel this CPU runs, against double precision.
//   test_math [stride [function]]
// Every stride-th of the 2^32 bit patterns and all edges. 1 tests each float there is; the bounds are those
// docs/math.md prints.
#include "step.h"

#include <math.h>

static double sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}
static double gate(double x, double s) {
  return s == 0.0 ? 0.0 : x * s;
} // -inf * 0 is 0: the limit
static double silu(double x) {
  return gate(x, sigmoid(x));
}
static double quick_gelu(double x) {
  return gate(x, sigmoid((double)1.702f * x));
}
static double gelu_erf(double x) {
  return gate(x, 0.5 * erfc(-x * M_SQRT1_2));
}
static double gelu_tanh(double x) {
  return gate(x, sigmoid(2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double softplus(double x) {
  return (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x)));
}
static double elu(double x) {
  return x > 0.0 ? x : expm1(x);
}
static double rsqrt_(double x) {
  return 1.0 / sqrt(x);
}

// A result is right if it is within `ulp` units in the last place of the exact one, or, for x below `from`, within
// `absolute`.
static const struct function {
  const char *name;
  uint32_t code;
  double (*exact)(double);
  double ulp, from, absolute;
} functions[] = {
    {"exp", INFC_UNARY_EXP, exp, 1, -INFINITY, 0},
    {"log", INFC_UNARY_LOG, log, 1, -INFINITY, 0},
    {"tanh", INFC_UNARY_TANH, tanh, 3, -INFINITY, 0},
    {"erf", INFC_UNARY_ERF, erf, 3, -INFINITY, 0},
    {"sigmoid", INFC_UNARY_SIGMOID, sigmoid, 3, -INFINITY, 0},
    {"silu", INFC_UNARY_SILU, silu, 4, -80, 0x1p-142},
    {"quick_gelu", INFC_UNARY_QUICK_GELU, quick_gelu, 4, -45, 0x1p-142},
    {"gelu_erf", INFC_UNARY_GELU_ERF, gelu_erf, 4, -1.5, 0x1.2p-26},
    {"gelu_tanh", INFC_UNARY_GELU_TANH, gelu_tanh, 4, -0.5, 0x1p-24},
    {"softplus", INFC_UNARY_SOFTPLUS, softplus, 4, -INFINITY, 0},
    {"elu", INFC_UNARY_ELU, elu, 1, -INFINITY, 0},
    {"sin", INFC_UNARY_SIN, sin, 2, -INFINITY, 0},
    {"cos", INFC_UNARY_COS, cos, 2, -INFINITY, 0},
    {"rsqrt", INFC_UNARY_RSQRT, rsqrt_, 2, -INFINITY, 0},
};

enum { BLOCK = 4096, KERNELS = 16 };

static const infc_kernel *kernels[KERNELS];
static int kernel_count;

typedef struct worst {
  double ulp; // largest error of x >= from
  float at;
  double absolute; // largest error of x < from that is more than `ulp` units
  float tail_at;
} worst;

static double float_ulp(double exact) {
  int exponent = exact == 0.0 ? -126 : ilogb(exact);
  return ldexp(1.0, (exponent < -126 ? -126 : exponent > 127 ? 127 : exponent) - 23);
}

static double cap(double v) {
  return isinf(v) || fabs(v) > 0x1p128 ? copysign(0x1p128, v) : v;
}

static void compare(const struct function *f, const char *kernel, float x, float y, double exact, worst *worst) {
  if (isnan(exact) || isnan(y)) {
    CHECK(isnan(exact) && isnan(y), "%s %s(%a) is %a, should be %a", kernel, f->name, x, y, exact);
    return;
  }
  double error = fabs(cap(y) - cap(exact)), ulp = error / float_ulp(cap(exact));
  if (x >= f->from && ulp > worst->ulp) {
    worst->ulp = ulp;
    worst->at = x;
  }
  if (x < f->from && ulp > f->ulp && error > worst->absolute) {
    worst->absolute = error;
    worst->tail_at = x;
  }
}

static void test_block(const struct function *f, const float *x, int n, worst *worst) {
  static double exact[BLOCK];
  static float y[BLOCK];
  for (int i = 0; i < n; i++)
    exact[i] = f->exact(x[i]);
  test_step step;
  test_step_init(&step, n, 0);
  test_operand(&step, false, (void *)x, INFC_DTYPE_F32, n, 0, 1);
  test_operand(&step, true, y, INFC_DTYPE_F32, n, 0, 1);
  test_word(&step, f->code);
  test_word(&step, test_float_word(1.0f));
  test_word(&step, 0);
  CHECK(test_validate(&step, INFC_OP_UNARY, 0), "%s", f->name);
  for (int k = 0; k < kernel_count; k++) {
    test_run(&step, kernels[k], 1, 1, NULL);
    for (int i = 0; i < n; i++)
      compare(f, kernels[k]->name, x[i], y[i], exact[i], &worst[k]);
  }
}

static float from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static void test_function(const struct function *f, uint64_t stride) {
  static float x[BLOCK];
  worst worst[KERNELS] = {0};
  int n = 0;
  for (uint64_t bits = 0; bits < (1ull << 32); bits += stride) {
    x[n++] = from_bits((uint32_t)bits);
    if (n == BLOCK) {
      test_block(f, x, n, worst);
      n = 0;
    }
  }
  if (n)
    test_block(f, x, n, worst);
  n = 0;
  for (uint32_t exponent = 0; exponent < 512;
       exponent++) // both ends of every binade, both signs, denormals, infinities, NaN
    for (int32_t near = -2; near <= 2; near++)
      x[n++] = from_bits((exponent << 23) + (uint32_t)near);
  const float edges[] = {88.7228394f, 88.72284f, -87.3365479f, -103.972076f, -103.97208f, -104.0f, 9.0109f, 10.0f,
                         3.9192059f,  5.890625f, -5.890625f,   -5.9f,        -14.0f,      16.6f,   1.0f,    65536.0f};
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
    for (int k = 0; k < 2; k++)
      x[n++] = k ? -edges[i] : edges[i];
  test_block(f, x, n, worst);
  for (int k = 0; k < kernel_count; k++) {
    printf("%-20s %-10s %.3f ulp at %a (%.4g), tail %.3g at %.4g\n", kernels[k]->name, f->name, worst[k].ulp,
           worst[k].at, worst[k].at, worst[k].absolute, worst[k].tail_at);
    CHECK(worst[k].ulp <= f->ulp, "%s: %s(%a) is off by %.3f ulp", kernels[k]->name, f->name, worst[k].at,
          worst[k].ulp);
    CHECK(worst[k].absolute <= f->absolute, "%s: %s(%a) is off by %.3g", kernels[k]->name, f->name, worst[k].tail_at,
          worst[k].absolute);
  }
}

int main(int argc, char **argv) {
  uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 2503;
  if (stride == 0)
    return 2;
  for (size_t k = 0; k < infc_kernel_count; k++)
    if (infc_kernels[k].op == INFC_OP_UNARY && test_supported(&infc_kernels[k]) && kernel_count < KERNELS)
      kernels[kernel_count++] = &infc_kernels[k];
  int tested = 0;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if (argc > 2 && strcmp(argv[2], functions[i].name) != 0)
      continue;
    test_function(&functions[i], stride);
    tested++;
  }
  CHECK(tested > 0, "no such function");
  return test_result();
}
