// A gemm step's operands by name.
#ifndef INFC_GEMM_H
#define INFC_GEMM_H

#include "../math/ref.h"
#include "rows.h"

enum {
  INFC_PANEL = 32,         // columns of F32_K1N32
  INFC_RESIDUAL_FIRST = 2, // value of has_residual
};

// activation(x) + residual, or activation(x + residual).
static inline float infc_gemm_finish_ref(float x, const float *residual, bool first, uint32_t activation) {
  if (residual && first)
    return infc_activate_ref(x + *residual, activation);
  return residual ? infc_activate_ref(x, activation) + *residual : infc_activate_ref(x, activation);
}

typedef struct infc_gemm {
  const float *a, *b, *bias, *residual; // bias and residual may be NULL
  bool residual_first;                  // added before the activation
  float *y;
  int64_t lda, ldr, ldy;
  int64_t n, k;
  uint32_t activation;
} infc_gemm;

static inline int64_t infc_gemm_panels(int64_t n) {
  return (n + INFC_PANEL - 1) / INFC_PANEL;
}

static inline infc_gemm infc_gemm_view(const infc_task *t) {
  const bool has_bias = t->words[INFC_W_GEMM_HAS_BIAS], has_residual = t->words[INFC_W_GEMM_HAS_RESIDUAL];
  const int residual = 2 + has_bias, y = residual + has_residual;
  const int64_t n = t->operands[1].dims[1], k = t->operands[1].dims[0];
  return (infc_gemm){
      .a = t->ptr[0],
      .b = t->ptr[1],
      .bias = has_bias ? t->ptr[2] : NULL,
      .residual = has_residual ? t->ptr[residual] : NULL,
      .residual_first = t->words[INFC_W_GEMM_HAS_RESIDUAL] == INFC_RESIDUAL_FIRST,
      .y = t->ptr[y],
      .lda = infc_rows_stride(&t->operands[0], t->step, k),
      .ldr = has_residual ? infc_rows_stride(&t->operands[residual], t->step, n) : 0,
      .ldy = infc_rows_stride(&t->operands[y], t->step, n),
      .n = n,
      .k = k,
      .activation = t->words[INFC_W_GEMM_ACTIVATION],
  };
}

#endif // INFC_GEMM_H
